"""Image layers made from wheels: unpacked in memory, packed into a tar whose bytes depend on nothing but the content."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _

__all__ = ["Entry", "Layer", "wheel_entries", "write_layer"]

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Entry:
    """One file of a layer."""

    path: str
    content: bytes
    executable: bool = False


@dataclass(frozen=True)
class Layer:
    """A finished layer on disk.

    Attributes:
        digest: Of the compressed file: its name in a registry.
        diff_id: Of the tar inside: its name in an image's config.
    """

    path: Path
    digest: str
    diff_id: str
    size_bytes: int


def wheel_entries(wheels: Iterable[Path], root: str) -> Iterator[Entry]:
    """The files of some wheels as an installer would lay them under one folder; scripts go to its bin.

    Raises:
        ImageError: A file is not a wheel, or names a path outside its own folder.
    """
    for wheel in sorted(wheels, key=lambda path: path.name):
        try:
            with zipfile.ZipFile(wheel) as archive:
                for info in sorted(archive.infolist(), key=lambda entry: entry.filename):
                    if not info.is_dir():
                        yield Entry(f"{root}/{_target(info.filename, wheel)}", archive.read(info), bool((info.external_attr >> 16) & 0o100))
        except (zipfile.BadZipFile, OSError) as error:
            raise ImageError(_("a wheel cannot be read: {reason}").format(reason=error), where=str(wheel)) from error


def _target(name: str, wheel: Path) -> str:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts:
        raise ImageError(_("a wheel names a path outside itself: {name}").format(name=name), where=str(wheel))
    if parts[0].endswith(".data") and len(parts) > 2:
        rest = "/".join(parts[2:])
        return {"scripts": f"bin/{rest}", "headers": f"include/{rest}"}.get(parts[1], rest)
    return name


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


class _Sink(Protocol):
    def write(self, data: bytes, /) -> int: ...


class _Tee(io.RawIOBase):
    """A writer that hashes what passes and counts it."""

    def __init__(self, target: _Sink, digest: _Hash) -> None:
        self._target, self._digest = target, digest
        self.count = 0

    def writable(self) -> bool:
        """Always: it is a writer."""
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Pass the bytes on."""
        block = bytes(data)
        self._digest.update(block)
        self._target.write(block)
        self.count += len(block)
        return len(block)


def write_layer(entries: Iterable[Entry], target: Path) -> Layer:
    """Pack entries, folders included, into a gzipped tar without times, owners or order of its own.

    Raises:
        ImageError: The disk is full.
    """
    outer, inner = hashlib.sha256(), hashlib.sha256()
    try:
        with target.open("wb") as file:
            packed = _Tee(file, outer)
            with (
                gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=6, mtime=0) as zipped,
                tarfile.open(fileobj=_Tee(zipped, inner), mode="w|", format=tarfile.PAX_FORMAT) as archive,
            ):
                _add_all(archive, entries)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise ImageError(_("a layer cannot be written: {reason}").format(reason=error.strerror or error), where=str(target)) from error
    return Layer(target, f"sha256:{outer.hexdigest()}", f"sha256:{inner.hexdigest()}", packed.count)


def _add_all(archive: tarfile.TarFile, entries: Iterable[Entry]) -> None:
    folders: set[str] = set()
    files: dict[str, bytes] = {}
    for entry in entries:
        digest = hashlib.sha256(entry.content).digest()
        if entry.path in files:
            # Wheels of one namespace share small files; builders refuse a layer that names a path twice.
            if files[entry.path] != digest:
                raise ImageError(_("two wheels have different files of one name"), where=entry.path)
            continue
        files[entry.path] = digest
        for parent in reversed(PurePosixPath(entry.path).parents):
            if str(parent) not in (".", "/") and str(parent) not in folders:
                folders.add(str(parent))
                folder = tarfile.TarInfo(str(parent))
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(folder)
        info = tarfile.TarInfo(entry.path)
        info.size, info.mode = len(entry.content), 0o755 if entry.executable else 0o644
        archive.addfile(info, io.BytesIO(entry.content))
