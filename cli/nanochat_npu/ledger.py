"""The ledger: one line for every submission with what was estimated and what it came to. SQLite, from the standard library.

It lies beside the jobs (``ledger.db``), perhaps on NFS: so the rollback journal (a write-ahead log needs shared memory,
which NFS has not), full synchronisation, one short transaction per line, and a busy timeout. A process that is killed at any
moment leaves the lines before its own and nothing of its own. A ledger that cannot be read is put aside, never overwritten.
"""

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from nanochat_npu.errors import NanochatNpuError
from nanochat_npu.i18n import _

__all__ = ["FILE_NAME", "Entry", "Ledger", "LedgerError", "ratios", "week_of"]

FILE_NAME = "ledger.db"
SCHEMA = 1
_BUSY_S = 20.0


class LedgerError(NanochatNpuError):
    """The ledger cannot be read or written."""

    exit_code, kind = 6, "ledger"


@dataclass(frozen=True)
class Entry:
    """One submission.

    Attributes:
        hours_p50: None where the plan gave no point.
        estimated: Likely seconds by term, and the allowance.
        actual: Seconds by term, once it has ended; empty before.
        cost: What it came to at the price of the plan, or None without a price.
        details: Depth, batch and the like, for people.
    """

    job: str
    submission_id: str
    submitted_s: float
    backend: str = "local"
    owner: str = ""
    project: str = ""
    queue: str = ""
    chip: str = "cpu"
    stack: str = "eager"
    tier: str = "C"
    world_size: int = 1
    billed_npus: int = 0
    hours_p10: float = 0.0
    hours_p50: float | None = None
    hours_p90: float = 0.0
    cost_p50: float | None = None
    price: float | None = None
    currency: str | None = None
    state: str = "OPEN"
    exit_code: int | None = None
    ended_s: float | None = None
    hours: float | None = None
    cost: float | None = None
    estimated: dict[str, float] = field(default_factory=dict)
    actual: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Actual over estimated hours, for a job that ran from its beginning to its end and had a point estimate."""
        if self.details.get("continued") or self.details.get("calibration") or self.state != "SUCCEEDED" or not self.hours or not self.hours_p50:
            return None
        return self.hours / self.hours_p50


_COLUMNS = [f.name for f in fields(Entry)]
_JSON = frozenset({"estimated", "actual", "details"})
_TYPES = {
    "job": "TEXT NOT NULL", "submission_id": "TEXT NOT NULL", "submitted_s": "REAL NOT NULL", "world_size": "INTEGER", "billed_npus": "INTEGER",
    "exit_code": "INTEGER",
} | dict.fromkeys(("hours_p10", "hours_p50", "hours_p90", "cost_p50", "price", "ended_s", "hours", "cost"), "REAL")
_NULLABLE = frozenset({"hours_p50", "cost_p50", "price", "exit_code", "ended_s", "hours", "cost"})
_KINDS: dict[str, tuple[type, ...]] = {
    name: (int, float, *((type(None),) if name in _NULLABLE else ())) for name, kind in _TYPES.items() if not kind.startswith("TEXT")
}
_DEFINITIONS = ", ".join(name + " " + _TYPES.get(name, "TEXT") for name in _COLUMNS)
_CREATE = f"CREATE TABLE IF NOT EXISTS jobs ({_DEFINITIONS}, PRIMARY KEY (job, submission_id, submitted_s))"
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM jobs ORDER BY submitted_s, job"  # noqa: S608  (names are ours)
_INSERT = f"INSERT OR REPLACE INTO jobs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608  (names are ours)


def _to_row(entry: Entry) -> list[Any]:
    return [json.dumps(getattr(entry, name), sort_keys=True) if name in _JSON else getattr(entry, name) for name in _COLUMNS]


def _to_entry(row: sqlite3.Row) -> Entry:
    values = {name: row[name] for name in _COLUMNS}
    for name, value in values.items():
        if not isinstance(value, _KINDS.get(name, (str, type(None)))):
            raise LedgerError(
                _("the line of {job} is damaged: {field} is {value!r}").format(job=values["job"], field=name, value=value), where=FILE_NAME,
                hint=_("move the ledger aside to begin a new one"),
            )
    for name in _JSON:
        try:
            values[name] = json.loads(values[name] or "{}")
        except ValueError:
            values[name] = {}
    return Entry(**values)


@dataclass(frozen=True)
class Ledger:
    """The ledger in a state folder; the file appears with its first line."""

    path: Path

    @classmethod
    def of(cls, home: Path) -> "Ledger":
        """The ledger of a state folder."""
        return cls(home / FILE_NAME)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode=DELETE")
            connection.execute("PRAGMA synchronous=FULL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA:
                raise LedgerError(
                    _("the ledger was written by a newer version (format {version}, this one knows {known})").format(version=version, known=SCHEMA),
                    where=str(self.path), hint=_("update nanochat-npu"),
                )
            if version == 0:
                connection.execute(_CREATE)
                connection.execute(f"PRAGMA user_version={SCHEMA}")
            yield connection
        except sqlite3.Error as error:
            raise LedgerError(
                _("the ledger cannot be used: {reason}").format(reason=error), where=str(self.path),
                hint=_("move it aside to begin a new one: mv {path} {path}.broken").format(path=self.path),
            ) from error
        finally:
            if connection is not None:
                connection.close()

    def put(self, entry: Entry) -> None:
        """Write a line, or replace the one of the same submission; all of it or nothing.

        Raises:
            LedgerError: It cannot be written.
        """
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_INSERT, _to_row(entry))
            connection.execute("COMMIT")

    def entries(self) -> list[Entry]:
        """All lines, oldest first; none where there is no ledger yet.

        Raises:
            LedgerError: It is there and cannot be read.
        """
        if not os.path.lexists(self.path):
            return []
        with self._open() as connection:
            return [_to_entry(row) for row in connection.execute(_SELECT)]

    def latest(self, job: str, submission_id: str | None = None) -> Entry | None:
        """The newest line of a job, or None."""
        found = [e for e in self.entries() if e.job == job and submission_id in (None, "", e.submission_id)]
        return found[-1] if found else None


def ratios(entries: Sequence[Entry], *, chip: str, stack: str) -> dict[str, Sequence[float]]:
    """Actual over estimated time of past jobs on a chip and stack, by tier."""
    found: dict[str, list[float]] = {}
    for entry in entries:
        if entry.chip == chip and entry.stack == stack and entry.ratio is not None:
            found.setdefault(entry.tier, []).append(entry.ratio)
    return dict(found)


def week_of(seconds: float) -> str:
    """ISO week of a Unix time in UTC, as ``2026-W48``."""
    return time.strftime("%G-W%V", time.gmtime(seconds))
