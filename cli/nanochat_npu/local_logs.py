"""Reading what the ranks of a local job write, while they write it: events and log lines, over all attempts."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from nanochat.contract import events, layout
from nanochat_npu.backends import LogLine, LogQuery
from nanochat_npu.jobs import JobFolder

__all__ = ["POLL_S", "FileEvents", "Tail", "read", "recent_events"]

POLL_S = 0.2
"""How often a followed file is looked at."""
RECENT_BYTES = 64_000
_LOG_NAME = re.compile(r"(launcher|rank)(\d+)\.log")


class Tail:
    """New, complete lines of a growing file; a last line without its newline waits for the rest."""

    def __init__(self, path: Path, *, last_bytes: int | None = None) -> None:
        self.path = path
        self._offset = max(0, _size(path) - last_bytes) if last_bytes is not None else 0
        self._rest = b""

    def lines(self) -> list[str]:
        """Lines since the last call; none while the file does not exist."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                fresh = file.read()
        except OSError:
            return []
        self._offset += len(fresh)
        *complete, self._rest = (self._rest + fresh).split(b"\n")
        return [line.decode("utf-8", "replace").rstrip("\r") for line in complete]

    def rest(self) -> str:
        """What stands after the last newline, for a file that nobody writes any more."""
        return self._rest.decode("utf-8", "replace")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def recent_events(folder: JobFolder) -> list[dict[str, Any]]:
    """The last events of the newest attempt, enough to tell where a job is without reading all of a long one."""
    attempts = folder.attempts
    if not attempts:
        return []
    return list(events.parse_lines(Tail(layout.events_file(folder.path, attempts[-1]), last_bytes=RECENT_BYTES).lines()))


class FileEvents:
    """The events of a local job: each attempt's ``events.jsonl``, one attempt after the other."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._tails: dict[int, Tail] = {}

    def poll(self) -> list[dict[str, Any]]:
        """Events since the last call, in order."""
        found: list[dict[str, Any]] = []
        for attempt in self._folder.attempts:
            # An attempt that has a successor writes no more, but may not have been read to its end.
            tail = self._tails.setdefault(attempt, Tail(layout.events_file(self._folder.path, attempt)))
            found.extend(events.parse_lines(tail.lines()))
        return found

    def close(self) -> None:
        """Nothing is held open between calls."""


def read(folder: JobFolder, query: LogQuery, *, still_running: Callable[[], bool]) -> Iterator[LogLine]:
    """Lines of a job's logs.

    Args:
        folder: The job.
        query: Which lines.
        still_running: Asked while following; when it says no, what is left is read and the iterator ends.
    """
    attempts = folder.attempts if query.attempt is None else [query.attempt]
    oldest = attempts[-1] if attempts else 0
    tails: dict[Path, Tail] = {}
    for path in _files(folder, query, oldest):
        tails[path] = Tail(path)
        yield from _first(path, tails[path], query)
    while query.follow:
        running = still_running()
        for path in _files(folder, query, oldest):
            tail = tails.setdefault(path, Tail(path))
            yield from (LogLine(_source(path), line) for line in tail.lines())
        if not running:
            break
        time.sleep(POLL_S)
    yield from (LogLine(_source(path), tail.rest()) for path, tail in tails.items() if tail.rest())


def _files(folder: JobFolder, query: LogQuery, oldest: int) -> list[Path]:
    """Log files that the query asks for: launchers before ranks, in order of number; while following, of newer attempts too."""
    attempts = [query.attempt] if query.attempt is not None else [n for n in folder.attempts if n >= oldest]
    found: list[tuple[int, str, int, Path]] = []
    for attempt in attempts:
        try:
            names = [path.name for path in layout.attempt_dir(folder.path, attempt).iterdir()]
        except OSError:
            continue
        for name in names:
            match = _LOG_NAME.fullmatch(name)
            if match and (query.rank is None or (match[1] == "rank" and int(match[2]) == query.rank)):
                found.append((attempt, match[1], int(match[2]), layout.attempt_dir(folder.path, attempt) / name))
    return [entry[-1] for entry in sorted(found)]


def _source(path: Path) -> str:
    match = _LOG_NAME.fullmatch(path.name)
    return f"{match[1]} {match[2]}" if match else path.stem


def _first(path: Path, tail: Tail, query: LogQuery) -> Iterator[LogLine]:
    lines: Iterable[str] = tail.lines()
    if query.since_s is not None:
        lines = _recent(path, lines, time.time() - query.since_s)
    if query.tail is not None:
        lines = deque(lines, maxlen=query.tail)
    return (LogLine(_source(path), line) for line in lines)


def _recent(path: Path, lines: Iterable[str], since: float) -> Iterator[str]:
    """Lines that are not older than `since` (Unix time).

    Plain lines carry no time: one has that of the event before it, and before the first event that of the file's last change.
    """
    try:
        moment = path.stat().st_mtime
    except OSError:
        return
    for line in lines:
        event = events.parse_line(line)
        if event is not None and isinstance(event.get("t"), (int, float)):
            moment = float(event["t"])
        if moment >= since:
            yield line
