"""Rules for a job that has ended: the rank that failed first, what its code means, and what to do."""

from typing import Any

from nanochat.contract import ExitCode
from nanochat_npu import partial
from nanochat_npu.backends import JobState, JobView
from nanochat_npu.explain.codes import find_codes
from nanochat_npu.explain.facts import Explanation, Facts, Who
from nanochat_npu.i18n import _
from nanochat_npu.meanings import meaning
from nanochat_npu.views import next_command

__all__ = ["explain_code", "explain_end"]


def _actions(job: str) -> dict[int, tuple[Who, str]]:
    return {
        ExitCode.USAGE: (Who.ADMIN, _("the image lacks part of the trainer: nanochat-npu build")),
        ExitCode.BAD_DATA: (Who.YOU, _("correct run.data in the spec, then submit again")),
        ExitCode.DEVICE_LOST: (Who.ADMIN, _("look at the node's NPUs: npu-smi info; then nanochat-npu submit again, which resumes")),
        ExitCode.BUG: (Who.US, f"nanochat-npu collect {job}"),
        ExitCode.NOT_READY: (Who.ADMIN, _("a worker, a name or the rank table did not come in time: nanochat-npu logs {job}").format(job=job)),
        ExitCode.BAD_CONFIG: (Who.YOU, _("correct the spec as the message says, then submit again")),
        ExitCode.DIVERGED: (Who.YOU, _("lower the learning rates or resume from an earlier step: nanochat-npu submit SPEC --resume-from {job}@STEP").format(job=job)),
        ExitCode.BUDGET: (Who.YOU, _("raise budget in the spec and submit again: it goes on from the checkpoint")),
        ExitCode.INTERRUPTED: (Who.WAIT, _("submit again: it goes on from the checkpoint")),
        ExitCode.RETRIES_SPENT: (Who.YOU, f"nanochat-npu logs {job} --first-failure"),
        137: (Who.YOU, _("killed by the system, mostly for memory: raise resources.memory or lower the loader's buffers")),
        139: (Who.US, f"nanochat-npu collect {job}"),
        143: (Who.WAIT, _("the pod was ended from outside: nanochat-npu submit again, which resumes")),
    }


def explain_code(code: int, job: str) -> tuple[str, Who, str]:
    """(meaning, who, action) of a rank's exit code; total over all integers."""
    who, action = _actions(job).get(code, (Who.YOU, f"nanochat-npu logs {job} --first-failure"))
    return meaning(code), who, action


def explain_end(facts: Facts, view: JobView) -> Explanation:
    """The answer for a job that has ended or is suspended."""
    if view.state is JobState.SUCCEEDED:
        return Explanation("E00", _("{job} has finished").format(job=facts.name), Who.WAIT, next_command(view))
    if view.state is JobState.SUSPENDED:
        return Explanation("E01", _because(_("{job} is suspended").format(job=facts.name), view), Who.YOU, f"nanochat-npu resume {facts.name}")
    if view.state is JobState.CANCELLED:
        return Explanation("E02", _because(_("{job} was cancelled").format(job=facts.name), view), Who.YOU, _("submit again: it goes on from the newest checkpoint"))
    return _failure(facts, view)


def _because(text: str, view: JobView) -> str:
    return f"{text}: {view.reason}" if view.reason else text


def _failure(facts: Facts, view: JobView) -> Explanation:
    verdict: dict[str, Any] = facts.verdict or {}
    code = partial.integer(verdict, "code") or view.exit_code
    tried = _("after {n} attempts").format(n=(view.attempt or 0) + 1) if view.attempt else ""
    if not code:
        sync = view.reason or _("Volcano ended the job without a reason")
        return Explanation("E10", _("{job} failed: {why}").format(job=facts.name, why=sync), Who.ADMIN, f"kubectl describe -n {facts.namespace} vcjob/{facts.name}", raw=next(iter(facts.messages("FailedCreate", "PluginError", "PodGroupError")), ""))
    meaning, who, action = explain_code(code, facts.name)
    where = _("rank {rank}").format(rank=verdict["rank"]) if isinstance(verdict.get("rank"), int) else ""
    if isinstance(verdict.get("step"), int):
        where = _("{where} at step {step}").format(where=where, step=verdict["step"]).strip()
    message = partial.text(verdict, "message") or view.reason
    cause = _("{job} failed {tried}: {where} left with exit code {code}: {meaning}").format(
        job=facts.name, tried=tried, where=where or _("the first worker that failed"), code=code, meaning=meaning
    ).replace("  ", " ").replace(" :", ":")
    found = find_codes(facts.log_lines)
    answer = Explanation(f"E{code}", cause, who, action, raw=message, values={"exit_code": code, "rank": verdict.get("rank"), "step": verdict.get("step"), "codes": [item.code for item, _line in found]})
    if found:
        item, line = found[0]
        answer = Explanation(answer.rule, f"{cause}. {item.code}: {item.meaning}", item.who, item.action, raw=line[:400], values=answer.values)
        answer = answer.with_also(*(f"{other.code}: {other.meaning}" for other, _l in found[1:]))
    return answer
