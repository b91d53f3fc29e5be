"""``data``: bring training text to a cluster."""

import datetime
from pathlib import Path
from typing import Annotated

import typer

from nanochat_npu import console, partial, units
from nanochat_npu.backends.volcano import connect
from nanochat_npu.bundle import JOB
from nanochat_npu.cluster.files import Remote, push_folder
from nanochat_npu.cluster.helper import Mounted, opened
from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _
from nanochat_npu.load import load_spec
from nanochat_npu.options import ContextOption, NamespaceOption, OutputFormat, OutputOption, SetOption, SpecArgument
from nanochat_npu.plan import make_plan
from nanochat_npu.render import render
from nanochat_npu.verify import parse_documents

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True, help=_("Bring training text to a cluster: push."))


@app.callback()
def _root() -> None:
    pass


@app.command("push")
def push(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help=_("A folder on this computer."), exists=True, file_okay=False)], spec: SpecArgument,
    to: Annotated[str, typer.Option("--into", help=_("Folder below the data volume."))] = ".", set_: SetOption = None,
    namespace: NamespaceOption = None, context: ContextOption = None, output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Fill the data volume of a spec from a folder: only what is missing or differs is sent, and each file is checked by sha256."""
    plan = make_plan(load_spec(spec, set_ or []).spec, datetime.date.today())
    volume = plan.spec.storage.data
    if volume is None or plan.spec.backend != "volcano":
        raise UsageError(
            _("this spec has no data volume on a cluster"), where="storage.data", hint=_("for example: --set storage.data.claim=corpus --set storage.data.path=/data")
        )
    backend = connect(namespace=namespace or plan.spec.cluster.namespace, context=context or plan.spec.cluster.context)
    (job,) = parse_documents(render(plan).files[JOB], JOB)
    mounted = Mounted(_writable(job), "data", volume.path)
    with opened(backend.kube, backend.namespace, mounted) as pod:
        remote = Remote(backend.kube, backend.namespace, pod, mounted.root)
        sent, kept = push_folder(remote, folder, to, lambda path, size: console.say(f"{path} ({units.size(size)})"))
    if output is OutputFormat.JSON:
        console.json_data({"sent": sent, "kept": kept, "path": f"{volume.path}/{to}"})
    else:
        console.say(_("{sent} files sent, {kept} were there already").format(sent=sent, kept=kept))


def _writable(job: dict[str, object]) -> dict[str, object]:
    """The job with its data volume mounted for writing: workers only read it, the one who fills it must not."""
    pod = partial.mapping(job, "spec", "tasks", 0, "template", "spec")
    for mount in partial.items(pod, "containers", 0, "volumeMounts"):
        if mount.get("name") == "data":
            mount.pop("readOnly", None)
    for volume in partial.items(pod, "volumes"):
        if volume.get("name") == "data":
            volume.get("persistentVolumeClaim", {}).pop("readOnly", None)
    return job
