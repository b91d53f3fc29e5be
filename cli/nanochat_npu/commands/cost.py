"""``cost``: what jobs took and cost, against what was estimated."""

from typing import Annotated

import typer

from nanochat_npu import console, tables
from nanochat_npu.accounts import settle_local
from nanochat_npu.cost_report import GroupBy, by_job, grouped, grouped_csv, terms_of, to_csv
from nanochat_npu.errors import JobNotFound, UsageError
from nanochat_npu.i18n import _
from nanochat_npu.jobs import Store, home_dir, not_found
from nanochat_npu.ledger import Ledger
from nanochat_npu.options import OutputFormat, OutputOption

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True, help=_("Show what jobs took and cost, against their estimates."))

ByOption = Annotated[GroupBy, typer.Option("--by", help=_("One line per job, or sums."))]
CsvOption = Annotated[bool, typer.Option("--csv", help=_("All lines as CSV."))]
JobOption = Annotated[str | None, typer.Option("--job", metavar="JOB", help=_("One job: estimate against actual, by term."), show_default=False)]


@app.callback()
def _root() -> None:
    pass


@app.command("report", help=_("All jobs of this state folder: time and cost, estimate against actual."))
def report(by: ByOption = GroupBy.JOB, csv_: CsvOption = False, job: JobOption = None, output: OutputOption = OutputFormat.TEXT) -> None:
    """Print the ledger as a table, CSV or JSON."""
    if csv_ and (job or output is not OutputFormat.TEXT):
        raise UsageError(_("--csv goes alone"))
    ledger = Ledger.of(home_dir())
    settle_local()
    entries = ledger.entries()
    if csv_:
        console.data(to_csv(entries) if by is GroupBy.JOB else grouped_csv(entries, by))
        return
    if job is not None:
        found = [entry for entry in entries if entry.job == job]
        if not found and job in Store.default().names():
            raise JobNotFound(_("this job is not in the ledger"), where=job, hint=_("it gets a line with every submit; nanochat-npu status {job} shows what it did").format(job=job))
        if not found:
            raise not_found(job, {entry.job for entry in entries})
        section = terms_of(found[-1])
    else:
        section = by_job(entries) if by is GroupBy.JOB else grouped(entries, by)
    if output is OutputFormat.JSON:
        console.json_data(tables.to_json([section]))
    elif not entries:
        console.say(_("the ledger is empty; it gets a line with every submit"))
    else:
        console.data(tables.to_markdown([section]) if output is OutputFormat.MARKDOWN else tables.to_text([section]))
