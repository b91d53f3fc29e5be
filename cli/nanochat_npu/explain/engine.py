"""Puts the rules in order and asks them one after the other; the first that knows something answers, the rest adds to it."""

from collections.abc import Callable, Iterable

from nanochat_npu.backends import JobState, JobView
from nanochat_npu.explain import ended, waiting
from nanochat_npu.explain.codes import find_codes
from nanochat_npu.explain.facts import Explanation, Facts, Who
from nanochat_npu.i18n import _, counted
from nanochat_npu.job_state import job_view

__all__ = ["RULES", "explain", "explain_log"]

Rule = Callable[[Facts], Explanation | None]

RULES: tuple[Rule, ...] = (
    waiting.no_volcano,
    waiting.job_missing,
    waiting.controller_silent,
    waiting.plugin_error,
    waiting.pods_refused_by_quota,
    waiting.pods_refused,
    waiting.claim_missing,
    waiting.queue_closed,
    waiting.queue_too_small,
    waiting.quota_too_small,
    waiting.never_fits_selector,
    waiting.never_fits_size,
    waiting.dead_node,
    waiting.container_cannot_start,
    waiting.mount_failed,
    waiting.device_plugin_refused,
    waiting.node_type_label,
    waiting.taints,
    waiting.node_resources,
    waiting.queue_full,
    waiting.cluster_full,
    waiting.quota_full,
    waiting.reserved_by_others,
    waiting.starting,
    waiting.unknown_text,
    waiting.queued,
)
"""Rules for a job that has not ended, the most specific first."""


def explain(facts: Facts) -> Explanation:
    """The answer to "why is it so?"; never raises, whatever is missing in the facts."""
    view = job_view(facts.objects)
    if view.state in (JobState.FAILED, JobState.CANCELLED, JobState.SUCCEEDED, JobState.SUSPENDED) and facts.job is not None:
        return ended.explain_end(facts, view)
    found = [answer for answer in (rule(facts) for rule in RULES) if answer is not None]
    if view.state is JobState.RUNNING and not any(answer.rule in _WHILE_RUNNING for answer in found):
        return _running(facts, view)
    if not found:
        return _unknown(facts, view)
    first = found[0]
    return first.with_also(*(answer.cause for answer in found[1:] if answer.rule not in ("X00", "W90", "W91")))


_WHILE_RUNNING = frozenset({"W13", "W14"})
"""Rules that may also answer for a job that Volcano calls Running."""


def _running(facts: Facts, view: JobView) -> Explanation:
    restarted = view.attempt or 0
    also = [counted(restarted, _("it has been restarted once"), _("it has been restarted {n} times"))] if restarted else []
    return Explanation(
        "W00", _("{job} is running: {n} of {wanted} workers are up").format(
            job=facts.name, n=sum(worker.state == "Running" for worker in view.workers), wanted=facts.workers
        ),
        Who.WAIT, f"nanochat-npu logs {facts.name} --follow", also=tuple(also),
    )


def _unknown(facts: Facts, view: JobView) -> Explanation:
    raw = next(iter(facts.messages()), "")
    return Explanation(
        "X00", _("nothing that is known explains why {job} is {state}").format(job=facts.name, state=view.state.value), Who.ADMIN,
        f"kubectl describe -n {facts.namespace} vcjob/{facts.name}", raw=raw,
    )


def explain_log(lines: Iterable[str]) -> Explanation | None:
    """What the codes in a log say, the most telling first; None where no code is known."""
    found = find_codes(lines)
    if not found:
        return None
    meaning, line = found[0]
    return Explanation(
        f"L-{meaning.code.replace(' ', '-')}", f"{meaning.code}: {meaning.meaning}", meaning.who, meaning.action, raw=line[:400],
        also=tuple(f"{other.code}: {other.meaning}" for other, _line in found[1:]), values={"codes": [item.code for item, _line in found]},
    )
