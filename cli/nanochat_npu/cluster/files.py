"""Files on a job's volume: list, read, fetch and send them, checked by sha256, and going on where a transfer broke off."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanochat_npu import partial
from nanochat_npu.cluster.agent import PART
from nanochat_npu.cluster.exec import Session, agent_command
from nanochat_npu.errors import ClusterError, UsageError
from nanochat_npu.i18n import _
from nanochat_npu.kube import Kube

__all__ = ["Entry", "Remote", "push_folder"]

CHUNK_BYTES = 1 << 20
TRIES = 4
"""How often one file's transfer is taken up again after the connection broke."""


@dataclass(frozen=True)
class Entry:
    """One thing in a folder; `path` is relative to the folder that is shown."""

    path: str
    kind: str
    size: int
    mtime_s: float


@dataclass(frozen=True)
class Remote:
    """A folder inside of a running helper pod."""

    kube: Kube
    namespace: str
    pod: str
    root: str

    def entries(self, path: str, *, recursive: bool = False) -> list[Entry]:
        """What is in a folder, sorted; of a file, itself.

        Raises:
            ClusterError: There is no such thing, or it leads out of the folder.
        """
        rows = self._lines("ls", path, "1" if recursive else "0")
        return [
            Entry(partial.text(row, "path"), partial.text(row, "kind"), partial.integer(row, "size"), float(row.get("mtime") or 0.0)) for row in rows
        ]

    def read(self, path: str, write: Callable[[bytes], object]) -> int:
        """Hand a file's bytes to `write`, in order; how many there were.

        Raises:
            ClusterError: There is no such file, or it arrived damaged.
        """
        done, digest = 0, hashlib.sha256()
        for attempt in range(TRIES):
            try:
                with self._session("read", path, str(done)) as session:
                    header, pieces = _header(session.output())
                    for piece in pieces:
                        digest.update(piece)
                        write(piece)
                        done += len(piece)
                    session.finish()
            except ClusterError as error:
                if error.kind != "lost_response" or attempt == TRIES - 1:
                    raise
                continue
            if done == partial.integer(header, "size"):
                break
        if done != partial.integer(header, "size") or digest.hexdigest() != partial.text(header, "sha256"):
            raise ClusterError(_("{path} changed while it was read, or arrived damaged").format(path=path), where=path, hint=_("try again"))
        return done

    def fetch(self, path: str, target: Path) -> int:
        """Write a file to a path on this computer; it appears there when it is complete."""
        part = target.with_name(f".{target.name}{PART}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                size = self.read(path, file.write)
            part.replace(target)
        except OSError as error:
            raise UsageError(_("cannot write: {reason}").format(reason=error.strerror or error), where=str(target)) from error
        finally:
            part.unlink(missing_ok=True)
        return size

    def send(self, source: Path, path: str, *, begun: int = 0, sha256: str | None = None) -> None:
        """Send a file from this computer; it appears there when its sum is right. `begun` bytes of it are there already."""
        size, sha256 = source.stat().st_size, sha256 or _sha256(source)
        for attempt in range(TRIES):
            try:
                with self._session("write", path, str(size), str(begun), sha256, stdin=True) as session:
                    output = session.output()
                    next(output, b"")  # it is ready, or will tell what is wrong when it ends
                    session.send(_pieces(source, begun))
                    for _rest in output:
                        pass
                    session.finish()
                return
            except ClusterError as error:
                if error.kind != "lost_response" or attempt == TRIES - 1:
                    raise
            begun = self.sums(str(Path(path).parent)).get(Path(path).name + PART, (0, ""))[0]

    def sums(self, path: str) -> dict[str, tuple[int, str]]:
        """(size, sha256) of every file below a folder; the sum of an upload that was cut off is empty. {} if there is no such folder."""
        return {partial.text(row, "path"): (partial.integer(row, "size"), partial.text(row, "sha256")) for row in self._lines("sums", path)}

    def archive(self, path: str, into: str) -> str:
        """Put a folder aside below `into`; where it is now, "" if there was none."""
        return next((partial.text(row, "moved") for row in self._lines("archive", path, into)), "")

    def _lines(self, *arguments: str) -> list[dict[str, Any]]:
        with self._session(*arguments) as session:
            raw = b"".join(session.output())
            session.finish()
        return [row for row in map(json.loads, raw.splitlines()) if isinstance(row, dict)]

    def _session(self, operation: str, *arguments: str, stdin: bool = False) -> Session:
        return Session(self.kube, self.namespace, self.pod, agent_command(operation, self.root, *arguments), stdin=stdin)


def push_folder(remote: Remote, folder: Path, into: str, say: Callable[[str, int], None]) -> tuple[int, int]:
    """Bring a folder's files to the volume; those that are there with the same bytes are left alone.

    Args:
        remote: Where to.
        folder: On this computer.
        into: Folder below the remote's root.
        say: Called for each file that is sent, with its path and size.

    Returns:
        (files sent, files that were there already).
    """
    there = remote.sums(into)
    sent = kept = 0
    for source in sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
        relative = source.relative_to(folder).as_posix()
        size, known = there.get(relative, (-1, ""))
        sha256 = _sha256(source) if size == source.stat().st_size or size < 0 else ""
        if known and known == sha256:
            kept += 1
            continue
        say(relative, source.stat().st_size)
        begun = min(there.get(relative + PART, (0, ""))[0], source.stat().st_size)
        remote.send(source, f"{into}/{relative}", begun=begun, sha256=sha256 or None)
        sent += 1
    return sent, kept


def _header(output: Iterator[bytes]) -> tuple[dict[str, Any], Iterator[bytes]]:
    """The first line as an object, and the rest."""
    begun = b""
    for piece in output:
        begun += piece
        head, newline, rest = begun.partition(b"\n")
        if newline:
            def pieces(first: bytes = rest) -> Iterator[bytes]:
                if first:
                    yield first
                yield from output

            return json.loads(head), pieces()
    return {}, iter(())


def _pieces(path: Path, start: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
