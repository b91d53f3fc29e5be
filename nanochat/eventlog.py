"""The events of a run: one JSON object a line, to a file and to stdout."""

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from nanochat.contract.events import EventKind, encode

__all__ = ["EventLog"]

Listener = Callable[[EventKind, str, dict[str, Any]], None]


class EventLog:
    """Writes events where people and programs look for them; a full disk silences it but never stops training.

    Args:
        path: ``events.jsonl``, or None for ranks that only print (all but rank 0).
        rank: Rank that writes.
        attempt: Attempt number.
        stream: Where the same lines are printed; None prints nothing.
    """

    def __init__(self, path: Path | None, *, rank: int = 0, attempt: int = 0, stream: TextIO | None = None) -> None:
        self.rank, self.attempt = rank, attempt
        self.stage = ""
        self.step = 0
        self._stream = sys.stdout if stream is None else stream
        self._listeners: list[Listener] = []
        self._file: TextIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)

    def listen(self, listener: Listener) -> None:
        """Call listener(kind, stage, fields) for every event from now on (trackers)."""
        self._listeners.append(listener)

    def emit(self, event: EventKind, **fields: Any) -> None:
        """Write one event of the stage that is running; `contract.events.FIELDS` lists the fields of each kind."""
        line = encode(event, stage=self.stage, t=time.time(), rank=self.rank, attempt=self.attempt, fields=fields)
        for sink in (self._file, self._stream):
            if sink is not None:
                self._write(sink, line)
        for listener in self._listeners:
            listener(event, self.stage, fields)

    def warn(self, code: str, message: str) -> None:
        """Write a warning event: something went wrong that training survives."""
        self.emit("warning", code=code, message=message)

    def _write(self, sink: TextIO, line: str) -> None:
        try:
            sink.write(line)
            sink.flush()
        except OSError as error:
            print(f"event lost: {error}", file=sys.stderr)

    def close(self) -> None:
        """Close the file; printing goes on working."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk refuses the last lines once more
                self._file.close()
            self._file = None
