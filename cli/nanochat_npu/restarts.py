"""What follows from how an attempt of a local job ended: restart or not, and as what the job ends. Pure.

The table of codes is `nanochat.contract`'s, the same from which the Volcano policies are generated; here it meets the counts of
failures and preemptions, and what people asked for meanwhile.
"""

import json
import signal
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nanochat.contract import ExitCode, is_failure, may_restart
from nanochat_npu.backends import JobState
from nanochat_npu.jobs import JobFolder

__all__ = ["STOPPED", "Decision", "Settings", "Stop", "Tally", "Why", "attempt_code", "decide"]


class Stop(StrEnum):
    """What somebody wants of a running job."""

    NO = "no"
    GRACEFULLY = "gracefully"
    """A person wants it to write a checkpoint and leave."""
    NOW = "now"
    OUTSIDE = "outside"
    """A signal from nobody we know: the computer is going down."""


class Why(StrEnum):
    """Reasons for the state that is written down; `backends.local_view` has the sentences."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    SESSION_LIMIT = "session_limit"
    FINAL_CODE = "final_code"
    FAILURES_SPENT = "failures_spent"
    PREEMPTIONS_SPENT = "preemptions_spent"
    RESTARTING = "restarting"
    CANCELLED = "cancelled"
    CANCELLED_NOW = "cancelled_now"
    STOPPED_OUTSIDE = "stopped_outside"
    CANNOT_START = "cannot_start"
    """The command or its folder is missing, or the system has no process left to give."""


@dataclass(frozen=True)
class Settings:
    """What the supervisor was told, from ``supervisor.json``."""

    command: list[str]
    cwd: str
    nodes: int = 1
    ranks_per_node: int = 1
    failures: int = 2
    preemptions: int = 20
    grace_period_s: float = 300.0
    restart_delay_s: float = 1.0
    """Before the first restart; doubled for each one after that, up to `MAX_DELAY_S`."""
    peer_grace_s: float = 8.0
    """How long launchers may take to notice by themselves that another one has failed."""
    node_env: list[dict[str, str]] = field(default_factory=list)
    """Variables of each node beyond the common ones (which NPUs it may see)."""

    @classmethod
    def read(cls, folder: JobFolder) -> "Settings":
        """The settings that `submit` wrote."""
        return cls(**json.loads(folder.settings_file.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Tally:
    """Ends of this submission's attempts so far."""

    failures: int = 0
    preemptions: int = 0

    def after(self, code: int) -> "Tally":
        """The tally with one more attempt that ended with this code."""
        if code == ExitCode.DONE:
            return self
        failed = is_failure(code)
        return Tally(self.failures + failed, self.preemptions + (not failed))


@dataclass(frozen=True)
class Decision:
    """What follows from the end of an attempt."""

    state: JobState
    why: Why


def decide(code: int, tally: Tally, settings: Settings, *, stop: Stop = Stop.NO, resumable: bool = False) -> Decision:
    """What to do after an attempt: pure, and total over all codes.

    Args:
        code: Exit code of the attempt.
        tally: Ends so far, this one included.
        settings: Holds the allowed failures and preemptions.
        stop: What somebody asked for meanwhile. A stop that was asked for is never restarted.
        resumable: The trainer said that it stopped at a session's limit and can go on.
    """
    if code == ExitCode.DONE:
        return Decision(JobState.SUSPENDED, Why.SESSION_LIMIT) if resumable else Decision(JobState.SUCCEEDED, Why.FINISHED)
    if stop is Stop.NOW:
        return Decision(JobState.CANCELLED, Why.CANCELLED_NOW)
    if stop is Stop.GRACEFULLY:
        return Decision(JobState.CANCELLED, Why.CANCELLED)
    if not may_restart(code):
        return Decision(JobState.FAILED, Why.FINAL_CODE)
    if stop is Stop.OUTSIDE:
        return Decision(JobState.SUSPENDED, Why.STOPPED_OUTSIDE)
    if is_failure(code) and tally.failures > settings.failures:
        return Decision(JobState.FAILED, Why.FAILURES_SPENT)
    if not is_failure(code) and tally.preemptions > settings.preemptions:
        return Decision(JobState.FAILED, Why.PREEMPTIONS_SPENT)
    return Decision(JobState.RESTARTING, Why.RESTARTING)


def attempt_code(verdict: dict[str, Any], ended: dict[int, int]) -> int:
    """The exit code of an attempt: that of the first rank which failed, not that of a peer which only lost its connection.

    Args:
        verdict: Content of the attempt's ``verdict.json``, {} where there is none.
        ended: Exit code of each node's launcher, in the order in which they ended.
    """
    bad = [code for code in ended.values() if code != ExitCode.DONE]
    if not bad:
        return ExitCode.DONE
    code = verdict.get("code")
    if isinstance(code, int) and 0 < code < 256:
        return code
    told_to_stop = (ExitCode.INTERRUPTED, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
    return next((code for code in bad if code not in told_to_stop), bad[0])


STOPPED: dict[Stop, Decision] = {
    Stop.GRACEFULLY: Decision(JobState.CANCELLED, Why.CANCELLED),
    Stop.NOW: Decision(JobState.CANCELLED, Why.CANCELLED_NOW),
    Stop.OUTSIDE: Decision(JobState.SUSPENDED, Why.STOPPED_OUTSIDE),
}
"""What a job is that was stopped between two attempts."""
