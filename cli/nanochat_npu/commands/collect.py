"""``collect``: one archive with all that helps to understand a job, without secrets."""

from pathlib import Path

from nanochat_npu import console
from nanochat_npu.backends.volcano import VolcanoBackend
from nanochat_npu.collecting import Archive, collect_cluster, collect_local
from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _
from nanochat_npu.locate import Where, job_backend
from nanochat_npu.options import (
    BackendOption,
    ContextOption,
    JobArgument,
    NamespaceOption,
    OutputFormat,
    OutputOption,
    ToOption,
)

__all__ = ["command"]


def command(
    job: JobArgument, to: ToOption = None, backend: BackendOption = None, namespace: NamespaceOption = None, context: ContextOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Pack spec, manifests, events, logs and versions of a job into one archive, with secrets taken out."""
    at = job_backend(job, Where(backend.value if backend else None, namespace, context))
    target = to or Path(f"{job}.tar.gz")
    if target.is_dir():
        target = target / f"{job}.tar.gz"
    try:
        with Archive(target, job) as archive:
            if isinstance(at, VolcanoBackend):
                collect_cluster(at, job, archive)
            else:
                collect_local(Path(at.get(job).where), archive)
    except OSError as error:
        raise UsageError(_("cannot be written: {reason}").format(reason=error.strerror), where=str(target)) from error
    if output is OutputFormat.JSON:
        console.json_data({"job": job, "archive": str(target), "files": archive.names, "notes": archive.notes})
        return
    console.data(str(target))
    for note in archive.notes:
        console.say(_("note: {text}").format(text=note))
    console.say(_("{n} files; read it before you send it on").format(n=len(archive.names)))
