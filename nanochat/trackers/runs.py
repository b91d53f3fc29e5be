"""Runs that SwanLab and Weights & Biases wrote to files: which there are, in which order, and the records in them.

Both write the same framing, LevelDB's log format (blocks of 32 KiB; each record has a checksum, a length and a kind:
https://github.com/google/leveldb/blob/main/doc/log_format.md) with two changes: a header of seven bytes of their own, and
zlib's CRC-32 in place of CRC-32C. What is in the records are protocol buffers, which only their own libraries can read.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

from nanochat.errors import BadData

__all__ = ["OfflineRun", "Tracker", "find_runs", "records"]


class Tracker(StrEnum):
    """A tracker that leaves files."""

    SWANLAB = "swanlab"
    WANDB = "wandb"


@dataclass(frozen=True)
class OfflineRun:
    """One start of a run on disk.

    Attributes:
        tracker: Who wrote it.
        folder: What the tracker's own ``sync`` takes.
        file: The records.
    """

    tracker: Tracker
    folder: Path
    file: Path

    @property
    def size_bytes(self) -> int:
        """Bytes of the records; they grow while the run goes on."""
        return self.file.stat().st_size


_HEADERS = {Tracker.SWANLAB: b":SWL\xd6\xe1\x02", Tracker.WANDB: b":W&B\xe1\xbe\x00"}
"""ident, magic (little endian), version: swanlab 0.8 to 0.10, wandb 0.10 to 0.31."""
_BLOCK_BYTES = 32768
_FRAME_BYTES = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_SEEDS = [zlib.crc32(bytes([kind])) for kind in range(5)]


def find_runs(folder: Path) -> list[OfflineRun]:
    """All runs at or below a folder, oldest first: SwanLab's ``run-*/run-*.swanlab``, W&B's ``[offline-]run-*/run-*.wandb``."""
    found = [
        OfflineRun(tracker, path.parent, path)
        for tracker in Tracker
        for path in folder.rglob(f"run-*.{tracker}")
        if path.is_file()
    ]
    return sorted(found, key=_age)


def _age(run: OfflineRun) -> tuple[str, str, int]:
    """Both name folders by the second of their start, [offline-]run-YYYYMMDD_HHMMSS-ID; within one, the older file goes first."""
    return run.tracker, run.folder.name.removeprefix("offline-")[: len("run-YYYYMMDD_HHMMSS")], run.file.stat().st_mtime_ns


def records(run: OfflineRun) -> Iterator[bytes]:
    """The records of a run's file, up to where it was cut off: a run that was killed leaves a torn end.

    Raises:
        BadData: It is not such a file, or of another version.
    """
    try:
        with run.file.open("rb") as file:
            yield from _records(run, file)
    except OSError as error:
        raise BadData(f"cannot be read: {error.strerror}", where=str(run.file)) from error


def _records(run: OfflineRun, file: IO[bytes]) -> Iterator[bytes]:
    header = file.read(len(_HEADERS[run.tracker]))
    if header != _HEADERS[run.tracker]:
        if not header:
            return  # it was killed before its first write
        raise BadData(f"not a run of {run.tracker}, or of another version of its format", where=str(run.file))
    whole = b""
    while (part := _frame(file)) is not None:
        kind, data = part
        whole = data if kind in (_FULL, _FIRST) else whole + data
        if kind in (_FULL, _LAST):
            yield whole


def _frame(file: IO[bytes]) -> tuple[int, bytes] | None:
    """The next frame; None at the end, or where the rest is torn."""
    left = _BLOCK_BYTES - file.tell() % _BLOCK_BYTES
    if left < _FRAME_BYTES:
        file.read(left)  # zeros
    head = file.read(_FRAME_BYTES)
    if len(head) < _FRAME_BYTES:
        return None
    checksum, length, kind = struct.unpack("<IHB", head)
    data = file.read(length)
    if len(data) < length or kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or zlib.crc32(data, _SEEDS[kind]) != checksum:
        return None
    return kind, data
