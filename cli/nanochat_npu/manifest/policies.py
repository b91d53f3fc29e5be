"""The Volcano policies, made from the exit-code table."""

from nanochat.contract import FINAL, RESTART, ExitCode, describe
from nanochat_npu.manifest.types import Policy

__all__ = ["policies"]


def policies() -> tuple[Policy, ...]:
    """What Volcano does at each end of a pod, in the order in which it tries them.

    Made from the exit-code table, so it cannot disagree with the launcher or the local backend. Volcano takes the first
    entry that matches, by code or by event: codes stand before PodFailed, or it would swallow them. Only actions on the
    whole job: a collective cannot lose a member, and RestartPod and RestartTask do not make pods anew (volcano#4743).
    """
    final = [Policy("TerminateJob", exit_code=int(code), why=describe(code)) for code in sorted(FINAL) if code is not ExitCode.DONE]
    again = [Policy("RestartJob", exit_code=int(code), why=describe(code)) for code in sorted(RESTART)]
    events = [
        Policy("RestartJob", event="PodEvicted", why="preempted, drained, or its node broke"),
        Policy("RestartJob", event="PodFailed", why="any code that is not listed; the launcher counts failures and ends with 83"),
        Policy("CompleteJob", event="TaskCompleted", why="every worker left with 0"),
    ]
    return (*final, *again, *events)
