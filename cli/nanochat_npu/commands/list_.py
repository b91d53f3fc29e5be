"""``list``: all jobs, one line each."""

from typing import Annotated

import typer

from nanochat_npu import console, tables
from nanochat_npu.backends import Backend, JobState, JobView
from nanochat_npu.backends.local import LocalBackend
from nanochat_npu.backends.volcano import VolcanoBackend
from nanochat_npu.errors import ClusterError
from nanochat_npu.i18n import _
from nanochat_npu.local_logs import recent_events
from nanochat_npu.locate import Where, all_backends
from nanochat_npu.options import BackendOption, ContextOption, NamespaceOption, OutputFormat, OutputOption
from nanochat_npu.progress import Progress
from nanochat_npu.views import Snapshot, job_list

__all__ = ["command"]

PATIENCE_S = 5.0
"""How long a list waits for a cluster that is busy or away; other commands wait for a minute."""
StateOption = Annotated[
    list[JobState] | None, typer.Option("--state", case_sensitive=False, help=_("Only jobs in this state; may be given again."), show_default=False)
]


def command(
    state: StateOption = None, backend: BackendOption = None, namespace: NamespaceOption = None, context: ContextOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """List jobs, newest first: those on this computer, and those on the cluster if one is configured."""
    where = Where(backend.value if backend else None, namespace, context)
    backends, failed = all_backends(where)
    if not backends:  # asked for by name, and not to be reached: that is no empty list
        raise failed[0]
    snapshots = []
    for each in backends:
        try:
            snapshots += [Snapshot.of(job, _brief(each, job)) for job in _jobs(each) if not state or job.state in state]
        except ClusterError as error:
            if len(backends) == 1:
                raise
            failed.append(error)
    snapshots.sort(key=lambda shot: shot.job.created_s or 0.0, reverse=True)
    section = job_list(snapshots)
    if output is OutputFormat.JSON:
        console.json_data({**tables.to_json([section]), "unreachable": [error.as_json() for error in failed]})
    elif section.empty:
        console.say(_("no jobs; start one: nanochat-npu submit tiny --backend local --follow"))
    else:
        console.data(tables.to_markdown([section]) if output is OutputFormat.MARKDOWN else tables.to_text([section]))
        console.say_next("status", snapshots[0].job.name, *where.words)
    for reason in failed if output is not OutputFormat.JSON else []:
        console.say(_("jobs on the cluster are not shown: {reason}").format(reason=reason), style="yellow")


def _jobs(backend: Backend) -> list[JobView]:
    if isinstance(backend, VolcanoBackend):
        backend.kube.patience_s = PATIENCE_S
    return backend.jobs()


def _brief(backend: Backend, job: JobView) -> Progress:
    """Where a job is. Of a cluster's jobs only what its API says: reading every job's log takes too long for a list."""
    progress = Progress()
    if isinstance(backend, LocalBackend):
        progress.feed_all(recent_events(backend.store.folder(job.name)))
    return progress
