"""One archive with all that helps to understand a job: spec, manifests, events, logs, versions; without secrets or weights."""

import io
import json
import platform
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from nanochat_npu import __version__, partial
from nanochat_npu.backends import LogQuery
from nanochat_npu.backends.volcano import VolcanoBackend
from nanochat_npu.cluster.files import Remote
from nanochat_npu.cluster.helper import opened
from nanochat_npu.cluster.logs import read_logs
from nanochat_npu.cluster.read import read_objects
from nanochat_npu.errors import ClusterError
from nanochat_npu.i18n import _
from nanochat_npu.kube import Kube
from nanochat_npu.redact import redact
from nanochat_npu.resources import CONFIGMAPS, EVENTS

__all__ = ["Archive", "collect_cluster", "collect_local"]

MAX_FILE_BYTES = 4 * 1024 * 1024
"""Of a longer file the end is taken: that is where it failed."""
MAX_ALL_BYTES = 256 * 1024 * 1024
TAKEN = (".json", ".jsonl", ".log", ".yaml", ".txt", ".md", ".csv")
LEFT = ("checkpoints/", "tokenizer/", "data/")
"""Folders that hold weights and text, not clues."""


class Archive:
    """A .tar.gz in which every text has been redacted.

    Args:
        path: File; it appears when the archive is complete.
        job: Name of the job, and of the folder inside.
    """

    def __init__(self, path: Path, job: str) -> None:
        self.path, self.job = path, job
        self.names: list[str] = []
        self.notes: list[str] = []
        self._size = 0
        self._partial = path.with_name(f".{path.name}.partial")
        self._tar = tarfile.open(self._partial, "w:gz")  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self.add("collect.json", json.dumps({"job": self.job, "files": self.names, "notes": self.notes}, ensure_ascii=False, indent=1))
        finally:
            self._tar.close()
        if kind is None:
            self._partial.replace(self.path)
        else:
            self._partial.unlink(missing_ok=True)

    def add(self, name: str, text: str) -> None:
        """Put a text into the archive, without its secrets."""
        content = redact(text).encode("utf-8", "replace")
        if len(content) > MAX_FILE_BYTES:
            self.notes.append(f"{name}: only the last {MAX_FILE_BYTES} of {len(content)} bytes")
            content = content[-MAX_FILE_BYTES:]
        if self._size + len(content) > MAX_ALL_BYTES:
            self.notes.append(f"{name}: left out, the archive is full")
            return
        info = tarfile.TarInfo(f"{self.job}/{name}")
        info.size, info.mtime, info.mode = len(content), int(time.time()), 0o644
        self._tar.addfile(info, io.BytesIO(content))
        self._size += len(content)
        self.names.append(name)


def _versions() -> str:
    return json.dumps({"nanochat-npu": __version__, "python": platform.python_version(), "system": platform.platform()}, indent=1)


def _wanted(name: str) -> bool:
    return name.endswith(TAKEN) and not name.startswith(LEFT) and "/." not in f"/{name}"


def collect_local(folder: Path, archive: Archive) -> None:
    """Put everything of a job on this computer into the archive."""
    archive.add("versions.json", _versions())
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.is_symlink() and _wanted(name):
            try:
                archive.add(name, path.read_text(encoding="utf-8", errors="replace"))
            except OSError as error:
                archive.notes.append(f"{name}: {error.strerror}")


def collect_cluster(backend: VolcanoBackend, name: str, archive: Archive) -> None:
    """Put everything of a job on a cluster into the archive; what cannot be read is noted."""
    kube, namespace = backend.kube, backend.namespace
    archive.add("versions.json", _versions())
    objects = read_objects(kube, namespace, name)
    for title, found in (("job", objects.job), ("podgroup", objects.podgroup)):
        if found:
            archive.add(f"objects/{title}.yaml", _yaml(found))
    for pod in objects.pods:
        archive.add(f"objects/pods/{partial.text(pod, 'metadata', 'name')}.yaml", _yaml(pod))
    _rest(kube, namespace, name, archive)
    try:
        lines: dict[str, list[str]] = {}
        for line in read_logs(kube, namespace, name, LogQuery()):
            lines.setdefault(line.source, []).append(line.text)
        for source, texts in lines.items():
            archive.add(f"logs/{source.replace(' ', '')}.log", "\n".join(texts) + "\n")
    except ClusterError as error:
        archive.notes.append(f"logs: {error}")
    _volume(backend, name, archive)


def _rest(kube: Kube, namespace: str, name: str, archive: Archive) -> None:
    for title, ask in (
        ("events", lambda: kube.list(EVENTS, namespace).objects), ("server", lambda: [kube.raw("/version")]),
        ("run-configmap", lambda: [kube.get(CONFIGMAPS, f"{name}-run", namespace)]),
    ):
        try:
            archive.add(f"objects/{title}.yaml", "---\n".join(_yaml(found) for found in ask()))
        except ClusterError as error:
            archive.notes.append(f"{title}: {error}")


def _volume(backend: VolcanoBackend, name: str, archive: Archive) -> None:
    """Events, verdicts, logs and plogs of all attempts, through the helper pod."""
    try:
        mounted = backend.mounted(name)
        with opened(backend.kube, backend.namespace, mounted) as pod:
            remote = Remote(backend.kube, backend.namespace, pod, mounted.root)
            for path in _remote_files(remote):
                pieces: list[bytes] = []
                remote.read(path, pieces.append)
                archive.add(f"volume/{path}", b"".join(pieces).decode("utf-8", "replace"))
    except ClusterError as error:
        archive.notes.append(_("the output volume: {reason}").format(reason=error))


def _remote_files(remote: Remote) -> Iterator[str]:
    for entry in remote.entries(".", recursive=True):
        if entry.kind == "file" and _wanted(entry.path) and entry.size <= 16 * MAX_FILE_BYTES:
            yield entry.path


def _yaml(value: dict[str, Any]) -> str:
    kept = {**value, "metadata": {k: v for k, v in partial.mapping(value, "metadata").items() if k != "managedFields"}} if "metadata" in value else value
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)
