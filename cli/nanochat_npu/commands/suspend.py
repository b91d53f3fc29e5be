"""``suspend``: free a cluster job's NPUs for a while; ``resume`` lets it go on."""

from collections.abc import Sequence

from nanochat_npu import console
from nanochat_npu.backends.volcano import VolcanoBackend
from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _
from nanochat_npu.locate import Where, job_backend
from nanochat_npu.options import ContextOption, JobArgument, NamespaceOption, OutputFormat, OutputOption
from nanochat_npu.progress import Progress
from nanochat_npu.views import Snapshot, job_json

__all__ = ["cluster_job", "command", "tell"]


def command(job: JobArgument, namespace: NamespaceOption = None, context: ContextOption = None, output: OutputOption = OutputFormat.TEXT) -> None:
    """Stop a job so that it can go on: its workers write a checkpoint, its NPUs become free, it keeps its place by name."""
    backend = cluster_job(job, namespace, context)
    backend.control.suspend(job)
    tell(backend, job, output, ("resume", job, *Where(None, namespace, context).words))


def cluster_job(job: str, namespace: str | None, context: str | None) -> VolcanoBackend:
    """The backend of a job on a cluster.

    Raises:
        UsageError: The job is on this computer.
    """
    backend = job_backend(job, Where(None, namespace, context))
    if not isinstance(backend, VolcanoBackend):
        raise UsageError(
            _("{job} runs on this computer, not on a cluster").format(job=job), where=job,
            hint=_("stop it with nanochat-npu cancel {job}; submitting the same spec goes on from its checkpoint").format(job=job),
        )
    return backend


def tell(backend: VolcanoBackend, job: str, output: OutputFormat, following: Sequence[str]) -> None:
    """Show the job as it is now, and the words of the next command."""
    view = backend.get(job)
    if output is OutputFormat.JSON:
        console.json_data(job_json(Snapshot.of(view, Progress())))
        return
    console.say(_("{job}: {state}  {reason}").format(job=view.name, state=view.state, reason=view.reason))
    console.say_next(*following)
