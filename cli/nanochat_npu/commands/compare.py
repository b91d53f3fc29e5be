"""``compare``: several jobs side by side."""

from typing import Annotated

import typer

from nanochat_npu import console, tables
from nanochat_npu.comparing import compare
from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _
from nanochat_npu.jobs import Store, read_json
from nanochat_npu.lenient import mapping
from nanochat_npu.locate import Where, job_backend
from nanochat_npu.options import BackendOption, ContextOption, NamespaceOption, OutputFormat, OutputOption, complete_job
from nanochat_npu.views import Snapshot, read_snapshot

__all__ = ["command"]

JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB JOB ...", help=_("Names of jobs."), show_default=False, autocompletion=complete_job)]


def command(
    jobs: JobsArgument, backend: BackendOption = None, namespace: NamespaceOption = None, context: ContextOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Set jobs side by side: what each reached, how fast, and in which settings they differ."""
    if len(set(jobs)) < 2:
        raise UsageError(_("name at least two jobs"), hint=_("see all jobs: nanochat-npu list"))
    where = Where(backend.value if backend else None, namespace, context)
    snapshots = [read_snapshot(job_backend(name, where), name) for name in dict.fromkeys(jobs)]
    sections = compare(snapshots, [_run_config(shot) for shot in snapshots])
    if output is OutputFormat.JSON:
        console.json_data(tables.to_json(sections))
    else:
        console.data(tables.to_markdown(sections) if output is OutputFormat.MARKDOWN else tables.to_text(sections))


def _run_config(snapshot: Snapshot) -> dict[str, object]:
    """What the job was told, as far as it is written down on this computer."""
    return mapping(read_json(Store.default().folder(snapshot.job.name).run_file).get("run"))
