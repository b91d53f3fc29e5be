"""``report``: what a job did, as a page and as Markdown; or its charts and numbers as files."""

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from nanochat_npu import console
from nanochat_npu.backends.local import connect
from nanochat_npu.errors import ClusterError, NanochatNpuError, UsageError
from nanochat_npu.foreground import run_trainer
from nanochat_npu.i18n import _
from nanochat_npu.jobs import Store
from nanochat_npu.ledger import Ledger
from nanochat_npu.locate import Where, job_backend
from nanochat_npu.options import ContextOption, NamespaceOption, ToOption, complete_job

__all__ = ["command"]

TRACKERS = ("swanlab", "wandb")
OptionalJob = Annotated[str | None, typer.Argument(metavar="[JOB]", help=_("Name of a job."), show_default=False, autocompletion=complete_job)]
ExportOption = Annotated[bool, typer.Option("--export", help=_("Charts as SVG and PNG and curves as CSV, instead of the report."))]
SourceOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="SOURCE", show_default=False,
        help=_("Export from: events (default), swanlab or wandb (the job's files), a folder of theirs, swanlab:WORKSPACE/PROJECT/RUN, wandb:ENTITY/PROJECT/RUN."),
    ),
]


def command(
    job: OptionalJob = None, to: ToOption = None, export: ExportOption = False, source: SourceOption = None, namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Write a job's report: one HTML page and one Markdown file, or its charts and curves as files."""
    source = source or "events"
    if source != "events" and not export:
        raise UsageError(_("a tracker has curves only; a report needs the job's own events"), where=f"--from {source}", hint=_("add --export"))
    of_job = source in ("events", *TRACKERS)
    if job is None and of_job:
        raise UsageError(_("a job is missing"), where="JOB", hint=_("for example: nanochat-npu report d20; or a tracker's folder: --export --from DIR"))
    folder = _folder(job, source, Where(None, namespace, context)) if job is not None and of_job else None
    name = job or Path(source.rpartition(":")[2]).name or "run"
    target = to or (Path.cwd() / f"{name}-charts" if export or folder is None else folder)
    arguments = [*(["--job-dir", str(folder)] if folder else []), "--to", str(target), *(["--export", "--from", source] if export else [])]
    if folder is not None and not export:
        arguments += ["--accounts", json.dumps(_accounts(name))]
    code = run_trainer(connect(), "report", arguments, name)
    if code == 0 and not export:
        console.say(_("next: open {path} in a browser").format(path=target / "report.html"))
    raise typer.Exit(code)


def _accounts(job: str) -> dict[str, Any]:
    """The ledger's line about the job's newest submission; {} without one, as a report must not fail for its books."""
    store = Store.default()
    with contextlib.suppress(NanochatNpuError):
        found = Ledger.of(store.home).latest(job, store.folder(job).receipt().submission_id)
        if found is not None:
            return asdict(found)
    return {}


def _folder(job: str, source: str, where: Where) -> Path:
    """The job's folder with what is needed of it; fetched, where it is on a cluster.

    Raises:
        ClusterError: There is nothing to report yet.
    """
    store = Store.default()
    here = store.folder(job).path
    there = any((here / "attempts").glob("*/events.jsonl")) if source == "events" else (here / "tracking").is_dir()
    if there and not where.on_cluster:
        return here
    from nanochat_npu.backends.volcano import VolcanoBackend

    backend = job_backend(job, where)
    if isinstance(backend, VolcanoBackend):
        from nanochat_npu.cluster.fetching import fetch_job, for_report, for_tracking

        return fetch_job(backend, job, for_report if source == "events" else for_tracking)
    if source != "events":
        raise ClusterError(_("{tracker} has not left any files").format(tracker=source), where=job, hint=_("run.tracking.mode: offline writes them"))
    raise ClusterError(_("the job has not left any events yet"), where=job, hint=_("see how far it is: nanochat-npu status {job}").format(job=job))
