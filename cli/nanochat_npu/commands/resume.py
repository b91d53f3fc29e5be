"""``resume``: let a suspended cluster job go on."""

from nanochat_npu.commands.suspend import cluster_job, tell
from nanochat_npu.locate import Where
from nanochat_npu.options import ContextOption, JobArgument, NamespaceOption, OutputFormat, OutputOption

__all__ = ["command"]


def command(job: JobArgument, namespace: NamespaceOption = None, context: ContextOption = None, output: OutputOption = OutputFormat.TEXT) -> None:
    """Let a suspended job go on from its newest checkpoint; it queues again."""
    backend = cluster_job(job, namespace, context)
    backend.control.resume(job)
    tell(backend, job, output, ("watch", job, *Where(None, namespace, context).words))
