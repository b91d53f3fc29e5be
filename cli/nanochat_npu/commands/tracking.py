"""``tracking``: what experiment trackers wrote to files, uploaded later."""

from pathlib import Path
from typing import Annotated

import typer

from nanochat_npu import console
from nanochat_npu.backends.local import connect
from nanochat_npu.errors import ClusterError, UsageError
from nanochat_npu.foreground import run_trainer
from nanochat_npu.i18n import _
from nanochat_npu.jobs import Store
from nanochat_npu.locate import Where, job_backend
from nanochat_npu.options import ContextOption, JobArgument, NamespaceOption
from nanochat_npu.periods import parse_seconds

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True, help=_("Upload what an offline tracker wrote."))

WorkspaceOption = Annotated[str | None, typer.Option("--workspace", help=_("SwanLab's workspace or W&B's entity; default: the spec's."), show_default=False)]
ProjectOption = Annotated[str | None, typer.Option("--project", help=_("Project in the tracker; default: the spec's."), show_default=False)]
AgainOption = Annotated[bool, typer.Option("--again", help=_("Also runs that were uploaded before."))]
TimeoutOption = Annotated[str, typer.Option("--timeout", metavar="TIME", help=_("How long one run may take: 90s, 30m, 2h."))]


@app.callback()
def _group() -> None:
    """Upload what an offline tracker wrote."""


@app.command("sync")
def sync(
    job: JobArgument, workspace: WorkspaceOption = None, project: ProjectOption = None, again: AgainOption = False, timeout: TimeoutOption = "30m",
    namespace: NamespaceOption = None, context: ContextOption = None,
) -> None:
    """Upload a job's offline SwanLab or W&B runs; the key comes from SWANLAB_API_KEY or WANDB_API_KEY."""
    timeout_s = parse_seconds(timeout, "--timeout")
    if not timeout_s:
        raise UsageError(_("a time is needed"), where="--timeout", hint="90s, 30m, 2h")
    folder = _folder(job, Where(None, namespace, context))
    options = [*(["--workspace", workspace] if workspace else []), *(["--project", project] if project else []), *(["--again"] if again else [])]
    code = run_trainer(connect(), "tracking", ["sync", "--job-dir", str(folder), "--timeout-s", f"{timeout_s:g}", *options], job)
    if code == 0:
        console.say(_("its charts as files: nanochat-npu report {job} --export").format(job=job))
    raise typer.Exit(code)


def _folder(job: str, where: Where) -> Path:
    """The job's folder; what its tracker wrote is fetched where the job is on a cluster.

    Raises:
        ClusterError: No tracker wrote anything.
    """
    from nanochat_npu.backends.volcano import VolcanoBackend

    here = Store.default().folder(job).path
    if not where.on_cluster and (here / "tracking").is_dir():
        return here
    backend = job_backend(job, where)
    if isinstance(backend, VolcanoBackend):
        from nanochat_npu.cluster.fetching import fetch_job, for_tracking

        return fetch_job(backend, job, for_tracking)
    raise ClusterError(
        _("no tracker wrote files in this job"), where=job, hint=_("run.tracking.logger: swanlab and run.tracking.mode: offline in the spec"),
    )
