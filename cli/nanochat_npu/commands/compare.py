"""``compare``: several jobs side by side."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from nanochat_npu import console, tables
from nanochat_npu.comparing import compare
from nanochat_npu.comparing_page import curves_of, page, picture
from nanochat_npu.cost_report import by_job
from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _
from nanochat_npu.jobs import Store, home_dir, read_json
from nanochat_npu.ledger import Ledger
from nanochat_npu.lenient import mapping
from nanochat_npu.locate import Where, job_backend
from nanochat_npu.options import BackendOption, ContextOption, NamespaceOption, OutputFormat, OutputOption, complete_job
from nanochat_npu.tables import Section
from nanochat_npu.views import Snapshot, read_snapshot
from nanochat_npu.writing import write_result

__all__ = ["command"]

FORMS = (".html", ".svg")
ToOption = Annotated[Path | None, typer.Option("--to", metavar="FILE", help=_("Also write a page (.html) or the curves alone (.svg)."), show_default=False)]
JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB JOB ...", help=_("Names of jobs."), show_default=False, autocompletion=complete_job)]


def command(
    jobs: JobsArgument, to: ToOption = None, backend: BackendOption = None, namespace: NamespaceOption = None, context: ContextOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Set jobs side by side: what each reached, how fast, what it cost, and in which settings they differ."""
    if len(set(jobs)) < 2:
        raise UsageError(_("name at least two jobs"), hint=_("see all jobs: nanochat-npu list"))
    where = Where(backend.value if backend else None, namespace, context)
    snapshots = [read_snapshot(job_backend(name, where), name) for name in dict.fromkeys(jobs)]
    sections = [*compare(snapshots, [_run_config(shot) for shot in snapshots]), *_costs([shot.job.name for shot in snapshots])]
    if to is not None:
        _write(to, snapshots, sections)
    if output is OutputFormat.JSON:
        console.json_data(tables.to_json(sections))
    else:
        console.data(tables.to_markdown(sections) if output is OutputFormat.MARKDOWN else tables.to_text(sections))


def _write(to: Path, snapshots: Sequence[Snapshot], sections: Sequence[Section]) -> None:
    names, curves = [shot.job.name for shot in snapshots], curves_of(snapshots)
    if to.suffix.lower() not in FORMS:
        raise UsageError(_("a comparison is an .html or an .svg file"), where=str(to))
    write_result(to, picture(curves, names) if to.suffix.lower() == ".svg" else page(sections, curves, names))
    console.say(_("written: {path}").format(path=to))


def _costs(names: Sequence[str]) -> list[Section]:
    """What the jobs were estimated to take and took, from the ledger; nothing where it knows none of them."""
    entries = [entry for entry in Ledger.of(home_dir()).entries() if entry.job in names]
    return [replace(by_job(entries), key="cost", title=_("Cost and time, estimated and actual"))] if entries else []


def _run_config(snapshot: Snapshot) -> dict[str, object]:
    """What the job was told, as far as it is written down on this computer."""
    return mapping(read_json(Store.default().folder(snapshot.job.name).run_file).get("run"))
