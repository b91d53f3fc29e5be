"""The small files of a job on a cluster, brought to this computer for commands that work on a job's folder."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from nanochat_npu import console, units
from nanochat_npu.backends.volcano import VolcanoBackend
from nanochat_npu.cluster.files import Entry, Remote
from nanochat_npu.cluster.helper import opened
from nanochat_npu.errors import ClusterError
from nanochat_npu.i18n import _
from nanochat_npu.jobs import Store

__all__ = ["bring", "fetch_job", "for_report", "for_tracking"]

SAME_TIME_S = 1e-3
"""What a time of change may lose on its way through JSON and a file system."""


def for_report(path: str) -> bool:
    """True for what a report is made of: events, verdicts, results and descriptions; no weights, no text."""
    name = path.rpartition("/")[2]
    top = "/" not in path and name.endswith((".json", ".yaml"))
    return top or (path.startswith("attempts/") and name in ("events.jsonl", "verdict.json")) or (path.startswith("results/") and name.endswith(".json"))


def for_tracking(path: str) -> bool:
    """True for what a tracker wrote, and for the run's description, which has the id that all attempts share."""
    return path == "run.json" or (path.startswith("tracking/") and not path.rpartition("/")[2].endswith((".log", "synced.json")))


def fetch_job(backend: VolcanoBackend, job: str, wanted: Callable[[str], bool]) -> Path:
    """A folder on this computer with the job's files that are wanted; those that have not changed since are not sent again.

    Raises:
        ClusterError: Nothing that is wanted is there, or it cannot be reached.
    """
    store, mounted = Store.default(), backend.mounted(job)
    folder = store.home / "fetched" / backend.namespace / job
    with opened(backend.kube, backend.namespace, mounted) as pod:
        found = bring(Remote(backend.kube, backend.namespace, pod, mounted.root), folder, wanted)
    if not found:
        raise ClusterError(_("there is nothing of it on the volume yet"), where=job, hint=_("see how far it is: nanochat-npu status {job}").format(job=job))
    receipt = store.folder(job).path / "receipt.json"
    if receipt.is_file():
        shutil.copyfile(receipt, folder / "receipt.json")
    return folder


def bring(remote: Remote, folder: Path, wanted: Callable[[str], bool]) -> list[str]:
    """Paths of a volume's files that are wanted, all of which are now below `folder`, and no others that are wanted; those that have not
    changed were not sent again.

    What lies there may be an earlier run's, or of a job of this name on another cluster: only a file of the same size and time is the same.
    """
    found = []
    for entry in remote.entries(".", recursive=True):
        if entry.kind != "file" or not wanted(entry.path) or ".." in Path(entry.path).parts:
            continue
        found.append(entry.path)
        target = folder / entry.path
        if _is_same(target, entry):
            continue
        console.say(f"{entry.path} ({units.size(entry.size)})")
        remote.fetch(entry.path, target)
        os.utime(target, (entry.mtime_s, entry.mtime_s))
    _remove_others(folder, found, wanted)
    return found


def _is_same(here: Path, there: Entry) -> bool:
    """True for a file that was brought, and has not changed on the volume since."""
    if not here.is_file():
        return False
    info = here.stat()
    return info.st_size == there.size and abs(info.st_mtime - there.mtime_s) < SAME_TIME_S


def _remove_others(folder: Path, found: Iterable[str], wanted: Callable[[str], bool]) -> None:
    keep = set(found)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        name = path.relative_to(folder).as_posix()
        if wanted(name) and name not in keep:
            path.unlink()
            with contextlib.suppress(OSError):  # not empty
                path.parent.rmdir()
