"""``explain``: why a job waits, or why it failed, in one paragraph."""

from pathlib import Path

from nanochat.contract import layout
from nanochat_npu import console
from nanochat_npu.backends import ENDED, Backend, JobState, JobView, LogQuery
from nanochat_npu.backends.volcano import VolcanoBackend
from nanochat_npu.cluster.gather import gather
from nanochat_npu.explain import Explanation, Who, explain, explain_log
from nanochat_npu.explain.ended import explain_code
from nanochat_npu.i18n import _
from nanochat_npu.jobs import read_json
from nanochat_npu.locate import Where, job_backend
from nanochat_npu.options import BackendOption, ContextOption, JobArgument, NamespaceOption, OutputFormat, OutputOption
from nanochat_npu.views import next_command

__all__ = ["command", "explain_local"]

LOG_LINES = 400
COMMANDS = ("nanochat-npu ", "kubectl ")
ENDED_RULES = ("E", "P")
"""First letters of the rules for jobs that have ended, on a cluster and here."""


def command(
    job: JobArgument, backend: BackendOption = None, namespace: NamespaceOption = None, context: ContextOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Say why a job waits or failed: cause, numbers, who can mend it, and one thing to do."""
    at = job_backend(job, Where(backend.value if backend else None, namespace, context))
    unread: tuple[str, ...] = ()
    if isinstance(at, VolcanoBackend):
        gathered = gather(at.kube, at.namespace, job)
        answer, unread = explain(gathered.facts), gathered.unread
    else:
        answer = explain_local(at, at.get(job))
    if output is OutputFormat.JSON:
        console.json_data({"job": job, **answer.as_json(), "unread": list(unread)})
        return
    console.data(_as_text(answer))
    if unread:
        console.say(_("not looked at, for lack of rights: {what}").format(what=", ".join(unread)))
    console.say(_("next: {command}").format(command=_next(answer, job)))


def _next(answer: Explanation, job: str) -> str:
    """A command: the action where it is one. A sentence stands above already, and cannot be pasted into a shell."""
    if answer.action.startswith(COMMANDS) and ", " not in answer.action:
        return answer.action
    return f"nanochat-npu logs {job} --first-failure" if answer.rule[:1] in ENDED_RULES else f"nanochat-npu status {job}"


def explain_local(at: Backend, view: JobView) -> Explanation:
    """The answer for a job on this computer, from its verdict and its last output."""
    lines = [line.text for line in at.logs(view.name, LogQuery(tail=LOG_LINES))]
    found = explain_log(lines)
    if view.state not in ENDED:
        cause = _("{job} is {state}").format(job=view.name, state=view.state.value) + (f": {view.reason}" if view.reason else "")
        return Explanation("P00", cause, Who.WAIT, f"nanochat-npu watch {view.name}").with_also(*([found.cause] if found else []))
    if view.state is JobState.SUCCEEDED:
        return Explanation("P01", _("{job} has finished").format(job=view.name), Who.WAIT, next_command(view))
    if view.state in (JobState.CANCELLED, JobState.SUSPENDED):
        return _stopped(view)
    verdict = read_json(layout.verdict_file(Path(view.where), view.attempt or 0))
    code = view.exit_code
    if code is None:
        cause = _("{job} is {state}").format(job=view.name, state=view.state.value) + (f": {view.reason}" if view.reason else "")
        return Explanation("P02", cause, Who.YOU, f"nanochat-npu logs {view.name}", raw=lines[-1] if lines else "")
    meaning, who, action = explain_code(code, view.name)
    where = _("rank {rank}").format(rank=verdict.get("rank", 0))
    if isinstance(verdict.get("step"), int):
        where += " " + _("at step {step}").format(step=verdict["step"])
    cause = _("{job} failed: {where} left with exit code {code}: {meaning}").format(job=view.name, where=where, code=code, meaning=meaning)
    message, hint = str(verdict.get("message") or ""), str(verdict.get("hint") or "")
    answer = Explanation(f"P{code}", cause, who, hint or action, raw=message, values={"exit_code": code, **{k: verdict.get(k) for k in ("rank", "step", "stage", "where")}})
    return answer.with_also(*([found.cause] if found else []))


def _stopped(view: JobView) -> Explanation:
    """The answer for a job that somebody stopped: how its processes ended and what they said meanwhile is no failure."""
    again = next_command(view)
    if view.state is JobState.CANCELLED:
        cause = _("{job} was cancelled (by you); submit the same spec to go on from its newest checkpoint").format(job=view.name)
        return Explanation("P03", cause, Who.YOU, again)
    cause = _("{job} is suspended; submit the same spec to go on from its newest checkpoint").format(job=view.name)
    return Explanation("P04", cause, Who.YOU, again).with_also(*([view.reason] if view.reason else []))


def _as_text(answer: Explanation) -> str:
    who = {
        Who.YOU: _("you can mend it"), Who.ADMIN: _("an administrator can mend it"), Who.WAIT: _("nobody has to do anything"), Who.US: _("a bug of nanochat-npu"),
    }[answer.who]
    lines = [f"{answer.cause}.", f"→ {answer.action}", f"  ({who}; {_('rule')} {answer.rule})"]
    lines += [f"  {_('also')}: {text}" for text in answer.also]
    if answer.raw:
        lines.append(f"  {_('in their own words')}: {answer.raw}")
    return "\n".join(lines)
