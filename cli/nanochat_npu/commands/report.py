"""``report``: what a job did, as a page and as Markdown; or its charts and numbers as files."""

from pathlib import Path
from typing import Annotated

import typer

from nanochat_npu import console
from nanochat_npu.backends.local import connect
from nanochat_npu.errors import ClusterError
from nanochat_npu.foreground import run_trainer
from nanochat_npu.i18n import _
from nanochat_npu.jobs import JobFolder, Store
from nanochat_npu.options import JobArgument, ToOption

__all__ = ["command"]

ExportOption = Annotated[bool, typer.Option("--export", help=_("Charts as SVG and curves as CSV, instead of the report."))]


def command(job: JobArgument, to: ToOption = None, export: ExportOption = False) -> None:
    """Write a job's report: one HTML page and one Markdown file, or its charts and curves as files."""
    folder = Store.default().existing(job)
    _require_events(folder)
    target = to or (Path.cwd() / f"{job}-charts" if export else folder.path)
    arguments = ["--job-dir", str(folder.path), "--to", str(target), *(["--export"] if export else [])]
    code = run_trainer(connect(), "report", arguments, job)
    if code == 0 and not export:
        console.say(_("next: open {path} in a browser").format(path=target / "report.html"))
    raise typer.Exit(code)


def _require_events(folder: JobFolder) -> None:
    if any((folder.path / "attempts").glob("*/events.jsonl")):
        return
    if folder.receipt().backend == "volcano":
        raise ClusterError(
            _("its events are on the cluster"), where=folder.name, hint=_("fetch them: nanochat-npu files {job} --help").format(job=folder.name)
        )
    raise ClusterError(
        _("the job has not left any events yet"), where=folder.name, hint=_("see how far it is: nanochat-npu status {job}").format(job=folder.name)
    )
