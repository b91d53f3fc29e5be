"""``status``: how one job is doing."""

from nanochat_npu import console, tables
from nanochat_npu.accounts import settle_seen
from nanochat_npu.accounts_view import estimate_section
from nanochat_npu.i18n import _
from nanochat_npu.locate import Where, job_backend
from nanochat_npu.options import BackendOption, ContextOption, JobArgument, NamespaceOption, OutputFormat, OutputOption
from nanochat_npu.progress import Progress
from nanochat_npu.views import STATUS_SECTIONS, Snapshot, job_json, next_command, sections

__all__ = ["command"]


def command(
    job: JobArgument, backend: BackendOption = None, namespace: NamespaceOption = None, context: ContextOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show how a job is doing: state and why, stage, step, loss, speed, results, workers, last events."""
    where = Where(backend.value if backend else None, namespace, context)
    at = job_backend(job, where)
    view, source, progress = at.get(job), at.events(job), Progress()
    try:
        seen = source.poll()
        progress.feed_all(seen)
    finally:
        source.close()
    settle_seen(view, seen)
    snapshot = Snapshot.of(view, progress)
    made = sections([*STATUS_SECTIONS, estimate_section], snapshot)
    if output is OutputFormat.JSON:
        console.json_data({**job_json(snapshot), **tables.to_json(made)})
        return
    console.data(tables.to_markdown(made) if output is OutputFormat.MARKDOWN else tables.to_text(made))
    console.say(_("next: {command}").format(command=next_command(view, where.words)))
