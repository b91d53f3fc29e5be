"""``logs``: what the ranks of a job print."""

import json
from collections.abc import Iterable
from typing import Annotated

import typer

from nanochat.contract.events import parse_line
from nanochat_npu import console
from nanochat_npu.backends import ENDED, JobView, LogLine, LogQuery
from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _
from nanochat_npu.locate import Where, job_backend
from nanochat_npu.options import BackendOption, ContextOption, JobArgument, NamespaceOption, OutputFormat, OutputOption
from nanochat_npu.periods import parse_seconds
from nanochat_npu.progress import describe
from nanochat_npu.views import next_command

__all__ = ["command"]

FollowOption = Annotated[bool, typer.Option("--follow", "-f", help=_("Go on until the job has ended."))]
RankOption = Annotated[int | None, typer.Option("--rank", "-r", min=0, help=_("Only this rank."), show_default=False)]
AttemptOption = Annotated[int | None, typer.Option("--attempt", min=0, help=_("An earlier start of the job; default: the newest."), show_default=False)]
SinceOption = Annotated[str | None, typer.Option("--since", metavar="TIME", help=_("Only the last 90s, 10m, 2h."), show_default=False)]
TailOption = Annotated[int | None, typer.Option("--tail", min=0, help=_("Only the last lines of each rank."), show_default=False)]
FirstOption = Annotated[bool, typer.Option("--first-failure", help=_("Only the rank that failed first."))]
RawOption = Annotated[bool, typer.Option("--raw", help=_("Show events as the JSON lines that they are."))]


def command(
    job: JobArgument, follow: FollowOption = False, rank: RankOption = None, attempt: AttemptOption = None, since: SinceOption = None,
    tail: TailOption = None, first_failure: FirstOption = False, raw: RawOption = False, backend: BackendOption = None, namespace: NamespaceOption = None, context: ContextOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show what the ranks of a job print, each line with its rank; with -o json one object a line."""
    where = Where(backend.value if backend else None, namespace, context)
    at = job_backend(job, where)
    query = LogQuery(rank=rank, attempt=attempt, since_s=parse_seconds(since, "--since"), tail=tail, follow=follow, first_failure=first_failure)
    if rank is not None or attempt is not None:
        _refuse_what_is_not_there(at.get(job), query)
    written = _write(at.logs(job, query), prefix=rank is None and not first_failure, raw=raw, as_json=output is OutputFormat.JSON)
    if written and output is OutputFormat.JSON:
        return
    view = at.get(job)
    if not written:
        console.say((_("{job} has left no such output") if view.state in ENDED else _("{job} has no such output yet")).format(job=job))
    following = next_command(view, where.words)
    if view.state in ENDED and " logs " not in following:
        console.say(_("next: {command}").format(command=following))
    else:  # not the command that has just run: of a running job its state, of one that failed why
        console.say_next("status", job, *where.words)


def _refuse_what_is_not_there(view: JobView, query: LogQuery) -> None:
    """Ranks and attempts are numbered from 0.

    Raises:
        UsageError: The job has no such rank, or has not been started so often.
    """
    if query.rank is not None and view.world_size is not None and query.rank >= view.world_size:
        raise UsageError(_("{job} has no rank {number}").format(job=view.name, number=query.rank), where="--rank", hint=_existing(view.world_size - 1))
    if query.attempt is not None and view.attempt is not None and query.attempt > view.attempt:
        raise UsageError(_("{job} has no attempt {number}").format(job=view.name, number=query.attempt), where="--attempt", hint=_existing(view.attempt))


def _existing(last: int) -> str:
    return _("there is only 0") if last == 0 else _("there are 0 to {last}").format(last=last)


def _write(lines: Iterable[LogLine], *, prefix: bool, raw: bool, as_json: bool) -> int:
    written = 0
    for line in lines:
        written += 1
        if as_json:
            console.stream_data(json.dumps({"source": line.source, "text": line.text}, ensure_ascii=False))
            continue
        event = None if raw else parse_line(line.text)
        text = line.text if event is None else describe(event)
        console.stream_data(f"{line.source} | {text}" if prefix else text)
    return written
