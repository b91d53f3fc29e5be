"""``recover``: free a job whose pod hangs on a dead node."""

import typer

from nanochat_npu import console, partial
from nanochat_npu.commands.suspend import cluster_job, tell
from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _, counted
from nanochat_npu.locate import Where
from nanochat_npu.options import ContextOption, JobArgument, NamespaceOption, OutputFormat, OutputOption, YesOption

__all__ = ["command"]


def command(
    job: JobArgument, yes: YesOption = False, namespace: NamespaceOption = None, context: ContextOption = None, output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Force the deletion of pods that do not end because their node is dead; the job then restarts on other nodes."""
    backend, place = cluster_job(job, namespace, context), Where(None, namespace, context).words
    stuck = backend.control.stuck(job)
    if not stuck:
        if output is not OutputFormat.JSON:
            console.say(_("no pod of {job} hangs on a dead node").format(job=job))
        tell(backend, job, output, ("explain", job, *place))
        return
    for pod in stuck:
        console.say(_("{pod} on node {node} should have ended at {time}; its deletion will be forced").format(
            pod=partial.text(pod, "metadata", "name"), node=partial.text(pod, "spec", "nodeName") or "?", time=partial.text(pod, "metadata", "deletionTimestamp"),
        ))
    console.say(_("Do this only if the node is really off: a pod that still runs there could write into the same folder as its successor."))
    if not console.confirm(counted(len(stuck), _("Force the deletion of {n} pod?"), _("Force the deletion of {n} pods?")), yes=yes):
        if not console.is_interactive():
            raise UsageError(_("forcing needs a person's yes"), where=job, hint=_("add --yes"))
        raise typer.Abort
    backend.control.force(stuck)
    tell(backend, job, output, ("watch", job, *place))
