"""``cancel``: stop a job, with a checkpoint; ``--delete`` removes it as well."""

import time
from typing import Annotated

import typer

from nanochat_npu import console, units
from nanochat_npu.backends import ACTIVE, Backend, JobView
from nanochat_npu.errors import JobTimeout, UsageError
from nanochat_npu.i18n import _
from nanochat_npu.locate import Where, job_backend
from nanochat_npu.options import (
    BackendOption,
    ContextOption,
    JobArgument,
    NamespaceOption,
    OutputFormat,
    OutputOption,
    YesOption,
)
from nanochat_npu.periods import parse_seconds
from nanochat_npu.progress import Progress
from nanochat_npu.views import Snapshot, job_json, next_command

__all__ = ["command"]

POLL_S = {"local": 0.2, "volcano": 1.0}
NowOption = Annotated[bool, typer.Option("--now", help=_("Stop at once, without a checkpoint."))]
DeleteOption = Annotated[bool, typer.Option("--delete", help=_("Afterwards remove the job and its files on this computer."))]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", help=_("Do not wait until it has stopped."))]
WaitOption = Annotated[str | None, typer.Option("--wait-timeout", metavar="TIME", help=_("Wait at most 90s, 10m, 2h."), show_default=False)]


def command(
    job: JobArgument, now: NowOption = False, delete: DeleteOption = False, no_wait: NoWaitOption = False, wait_timeout: WaitOption = None,
    yes: YesOption = False, backend: BackendOption = None, namespace: NamespaceOption = None, context: ContextOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Stop a job. It writes a checkpoint first, so submitting the same spec again goes on from there."""
    limit_s = parse_seconds(wait_timeout, "--wait-timeout")
    if delete and no_wait:
        raise UsageError(_("--delete has to wait until the job has stopped"), where="--no-wait")
    where = Where(backend.value if backend else None, namespace, context)
    at = job_backend(job, where)
    view = at.get(job)
    if delete and not console.confirm(_("Delete {job} and everything in {where}?").format(job=job, where=view.where), yes=yes):
        if not console.is_interactive():
            raise UsageError(_("deleting needs a person's yes"), where=job, hint=_("add --yes"))
        raise typer.Abort
    was_active = view.state in ACTIVE
    # Also an ended job: a supervisor that was killed may have left processes.
    view = at.cancel(job, now=now)
    if was_active and not no_wait:
        view = _wait(at, view, limit_s)
    if delete:
        at.delete(job)
    if output is OutputFormat.JSON:
        console.json_data({**job_json(Snapshot.of(view, Progress())), "was_active": was_active, "deleted": delete})
    else:
        _tell(view, where, was_active=was_active, deleted=delete)


def _wait(backend: Backend, view: JobView, limit_s: float | None) -> JobView:
    deadline = None if limit_s is None else time.monotonic() + limit_s
    console.say(_("stopping {job} …").format(job=view.name))
    while view.state in ACTIVE:
        if deadline is not None and time.monotonic() >= deadline:
            raise JobTimeout(
                _("the job has not stopped within {time}").format(time=units.duration(limit_s or 0)), where=view.name,
                hint=_("stop it at once: nanochat-npu cancel {job} --now").format(job=view.name),
            )
        time.sleep(POLL_S[backend.name])
        view = backend.get(view.name)
    return view


def _tell(view: JobView, where: Where, *, was_active: bool, deleted: bool) -> None:
    if deleted:
        console.say(_("{job} is deleted").format(job=view.name))
        console.say_next("list", *where.words)
    elif was_active:
        console.say(_("{job}: {state}  {reason}").format(job=view.name, state=view.state, reason=view.reason))
        console.say_next("status", view.name, *where.words)
    else:
        console.say(_("{job} has already ended: {state}").format(job=view.name, state=view.state))
        console.say(_("next: {command}").format(command=next_command(view, where.words)))
