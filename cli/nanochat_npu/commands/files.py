"""``files``: look at what a job on a cluster wrote, from a laptop."""

import datetime
from pathlib import Path
from typing import Annotated

import typer

from nanochat_npu import console, units
from nanochat_npu.backends.volcano import VolcanoBackend
from nanochat_npu.cluster.files import Remote
from nanochat_npu.cluster.helper import opened
from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _
from nanochat_npu.locate import Where, job_backend
from nanochat_npu.options import ContextOption, NamespaceOption, OutputFormat, OutputOption

__all__ = ["app", "parse_target"]

app = typer.Typer(add_completion=False, no_args_is_help=True, help=_("Look at a cluster job's files: ls, cat, get, put."))

TargetArgument = Annotated[str, typer.Argument(metavar="JOB[:PATH]", help=_("A job, and a path in its folder."), show_default=False)]
RecursiveOption = Annotated[bool, typer.Option("--recursive", "-r", help=_("Everything below."))]


def parse_target(text: str) -> tuple[str, str]:
    """(job, path) of ``JOB:PATH``; the path may be left out.

    Raises:
        UsageError: There is no job in it.
    """
    job, _colon, path = text.partition(":")
    if not job:
        raise UsageError(_("a job is missing"), where=text, hint=_("for example: nanochat-npu files ls d20:attempts/0"))
    return job, path or "."


def _backend(job: str, where: Where) -> VolcanoBackend:
    backend = job_backend(job, where)
    if not isinstance(backend, VolcanoBackend):
        raise UsageError(_("{job} runs on this computer; its folder is {path}").format(job=job, path=backend.get(job).where), where=job)
    return backend


@app.command("ls")
def list_files(
    target: TargetArgument, recursive: RecursiveOption = False, namespace: NamespaceOption = None, context: ContextOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """List a folder of the job."""
    job, path = parse_target(target)
    backend = _backend(job, Where(None, namespace, context))
    mounted = backend.mounted(job)
    with opened(backend.kube, backend.namespace, mounted) as pod:
        found = Remote(backend.kube, backend.namespace, pod, mounted.root).entries(path, recursive=recursive)
    if output is OutputFormat.JSON:
        console.json_data({"job": job, "root": mounted.root, "entries": [{"path": e.path, "kind": e.kind, "size_bytes": e.size, "mtime": e.mtime_s} for e in found]})
        return
    for entry in found:
        when = datetime.datetime.fromtimestamp(entry.mtime_s).strftime("%Y-%m-%d %H:%M")
        console.data(f"{entry.size:>14,}  {when}  {entry.path}{'/' if entry.kind == 'dir' else ''}")


@app.command("cat")
def show_file(target: TargetArgument, namespace: NamespaceOption = None, context: ContextOption = None) -> None:
    """Write a file of the job to stdout."""
    job, path = parse_target(target)
    backend = _backend(job, Where(None, namespace, context))
    mounted = backend.mounted(job)
    with opened(backend.kube, backend.namespace, mounted) as pod:
        Remote(backend.kube, backend.namespace, pod, mounted.root).read(path, console.binary_data)


@app.command("get")
def get_files(
    target: TargetArgument, to: Annotated[Path, typer.Argument(metavar="TO", help=_("A folder or file on this computer."))] = Path(),
    recursive: RecursiveOption = False, namespace: NamespaceOption = None, context: ContextOption = None,
) -> None:
    """Fetch a file, or with -r a folder; each is checked by sha256 and appears when it is complete."""
    job, path = parse_target(target)
    backend = _backend(job, Where(None, namespace, context))
    mounted = backend.mounted(job)
    with opened(backend.kube, backend.namespace, mounted) as pod:
        remote = Remote(backend.kube, backend.namespace, pod, mounted.root)
        found = [entry for entry in remote.entries(path, recursive=recursive) if entry.kind == "file"]
        if not recursive and [entry.path for entry in found] != [path.rstrip("/").removeprefix("./")]:
            raise UsageError(_("{path} is a folder").format(path=path), where=target, hint=_("fetch all of it: nanochat-npu files get -r {target}").format(target=target))
        for entry in found:
            goal = to / Path(entry.path).relative_to(path) if recursive and path != "." else to / entry.path if recursive else _goal(to, entry.path)
            console.say(f"{entry.path} ({units.size(entry.size)})")
            remote.fetch(entry.path, goal)
            console.data(str(goal))


@app.command("put")
def put_file(
    source: Annotated[Path, typer.Argument(metavar="FILE", help=_("On this computer."), exists=True, dir_okay=False)], target: TargetArgument,
    namespace: NamespaceOption = None, context: ContextOption = None,
) -> None:
    """Send a file into the job's folder."""
    job, path = parse_target(target)
    backend = _backend(job, Where(None, namespace, context))
    mounted = backend.mounted(job)
    goal = f"{path.rstrip('/')}/{source.name}" if path == "." or path.endswith("/") else path
    with opened(backend.kube, backend.namespace, mounted) as pod:
        Remote(backend.kube, backend.namespace, pod, mounted.root).send(source, goal)
    console.say(_("{job}:{path} is written").format(job=job, path=goal))


def _goal(to: Path, path: str) -> Path:
    return to / Path(path).name if to.is_dir() or str(to).endswith("/") else to
