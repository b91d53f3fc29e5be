"""The ranks' output on the launcher's stdout, so that ``kubectl logs`` shows it.

Ranks write to files by themselves: a reader of our stdout that stalls can never stall a rank.
"""

from pathlib import Path
from typing import BinaryIO, TextIO

__all__ = ["Echo"]

CHUNK_BYTES = 1 << 20


class Echo:
    """Copies whole lines of growing files; rank 0's as they are (events stay JSON), others' with their rank in front."""

    def __init__(self, logs: dict[int, Path], out: TextIO) -> None:
        self._logs = logs
        self._out = out
        self._files: dict[int, BinaryIO] = {}
        self._rest: dict[int, bytes] = dict.fromkeys(logs, b"")

    def pump(self, *, final: bool = False) -> None:
        """Print what has been written since the last call; final prints an unfinished last line too."""
        for rank in self._logs:
            self._pump_rank(rank, final)
        try:
            self._out.flush()
        except OSError:
            self._logs = {}  # nobody reads any more; the files are complete anyway

    def _pump_rank(self, rank: int, final: bool) -> None:
        file = self._open(rank)
        if file is None:
            return
        while chunk := file.read(CHUNK_BYTES):
            lines = (self._rest[rank] + chunk).split(b"\n")
            self._rest[rank] = lines.pop()
            for line in lines:
                self._print(rank, line)
        if final and self._rest[rank]:
            self._print(rank, self._rest[rank])
            self._rest[rank] = b""

    def _open(self, rank: int) -> BinaryIO | None:
        if rank not in self._files:
            try:
                self._files[rank] = self._logs[rank].open("rb")
            except FileNotFoundError:
                return None
        return self._files[rank]

    def _print(self, rank: int, line: bytes) -> None:
        prefix = "" if rank == 0 else f"[rank {rank}] "
        try:
            self._out.write(f"{prefix}{line.decode('utf-8', 'replace')}\n")
        except OSError:
            return

    def close(self) -> None:
        """Print the rest and close the files."""
        self.pump(final=True)
        for file in self._files.values():
            file.close()
