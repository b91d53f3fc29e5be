"""Reading what the ranks of a local job write, while they write it: events and log lines, over all attempts."""

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanochat.contract import events, layout
from nanochat_npu import lenient
from nanochat_npu.backends import LogLine, LogQuery
from nanochat_npu.errors import ClusterError
from nanochat_npu.i18n import _
from nanochat_npu.jobs import JobFolder, read_json

__all__ = ["POLL_S", "FileEvents", "Tail", "read", "recent_events"]

POLL_S = 0.2
"""How often a followed file is looked at."""
RECENT_BYTES = 64_000
_ECHO = re.compile(r"\[rank \d+\] ")
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
    """Lines of a job's logs: the ranks', and what launchers say beyond echoing their ranks.

    Args:
        folder: The job.
        query: Which lines.
        still_running: Asked while following; when it says no, what is left is read and the iterator ends.
    """
    if query.first_failure:
        query = _narrowed(folder, query)
    attempts = folder.attempts if query.attempt is None else [query.attempt]
    oldest = attempts[-1] if attempts else 0
    sources: dict[Path, _Source] = {}
    echoed: Counter[tuple[int, str]] = Counter()
    for log in _files(folder, query, oldest):
        sources[log.path] = source = _Source(log, echoed)
        yield from source.selected(query)
    while query.follow:
        running = still_running()
        for log in _files(folder, query, oldest):
            yield from sources.setdefault(log.path, _Source(log, echoed)).fresh()
        if not running:
            break
        time.sleep(POLL_S)
    for source in sources.values():
        yield from source.rest()


def _narrowed(folder: JobFolder, query: LogQuery) -> LogQuery:
    """The query for the rank that failed first.

    Raises:
        ClusterError: No attempt has a verdict.
    """
    for attempt in [query.attempt] if query.attempt is not None else reversed(folder.attempts):
        verdict = read_json(layout.verdict_file(folder.path, attempt))
        if isinstance(verdict.get("rank"), int):
            return replace(query, attempt=attempt, rank=verdict["rank"], first_failure=False, follow=False)
    raise ClusterError(_("no rank of this job has left word of a failure"), where=folder.name, hint=_("see all output: nanochat-npu logs {name}").format(name=folder.name))


@dataclass(frozen=True, order=True)
class _Log:
    """A log file; sorted so that ranks come before launchers, which repeat them."""

    attempt: int
    is_launcher: bool
    number: int
    path: Path


class _Source:
    """The lines of one log. A launcher prints its ranks' lines again, rank 0's bare and others' with "[rank N]": those are left out."""

    def __init__(self, log: _Log, echoed: "Counter[tuple[int, str]]") -> None:
        self._log, self._echoed = log, echoed
        self._tail = Tail(log.path)
        self._name = f"{'launcher' if log.is_launcher else 'rank'} {log.number}"

    def fresh(self) -> list[LogLine]:
        """New lines."""
        return [LogLine(self._name, line) for line in self._tail.lines() if self._is_own(line)]

    def selected(self, query: LogQuery) -> Iterable[LogLine]:
        """The lines that are there already, as far as the query wants them."""
        lines: Iterable[LogLine] = self.fresh()
        if query.since_s is not None:
            lines = _recent(self._log.path, lines, time.time() - query.since_s)
        return lines if query.tail is None else deque(lines, maxlen=query.tail)

    def rest(self) -> list[LogLine]:
        """What stands after the last newline."""
        line = self._tail.rest()
        return [LogLine(self._name, line)] if line and self._is_own(line) else []

    def _is_own(self, line: str) -> bool:
        key = (self._log.attempt, line)
        if not self._log.is_launcher:
            if self._log.number == 0:
                self._echoed[key] += 1
            return True
        if self._echoed[key] > 0 and self._log.number == 0:
            self._echoed[key] -= 1
            return False
        return not _ECHO.match(line)


def _files(folder: JobFolder, query: LogQuery, oldest: int) -> list[_Log]:
    """Log files that the query asks for; while following, of newer attempts too."""
    found = []
    for attempt in [query.attempt] if query.attempt is not None else [n for n in folder.attempts if n >= oldest]:
        try:
            paths = list(layout.attempt_dir(folder.path, attempt).iterdir())
        except OSError:
            continue
        for path in paths:
            match = _LOG_NAME.fullmatch(path.name)
            if match and (query.rank is None or (match[1] == "rank" and int(match[2]) == query.rank)):
                found.append(_Log(attempt, match[1] == "launcher", int(match[2]), path))
    return sorted(found)


def _recent(path: Path, lines: Iterable[LogLine], since: float) -> Iterator[LogLine]:
    """Lines that are not older than `since` (Unix time).

    Plain lines carry no time: one has that of the event before it, and before the first event that of the file's last change.
    """
    try:
        moment = path.stat().st_mtime
    except OSError:
        return
    for line in lines:
        event = events.parse_line(line.text)
        if event is not None:
            moment = lenient.moment(event.get("t")) or moment
        if moment >= since:
            yield line
