"""The ledger of a job: its attempts and their ends. Failures are counted apart from preemptions.

Volcano's retryCount rises for both, so the launcher counts by itself, on the output volume.
"""

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from nanochat.contract import ExitCode, is_failure, layout, may_restart
from nanochat.errors import BadData
from nanochat.files import write_atomic

__all__ = ["Attempt", "begin", "end", "failures", "final_code", "next_attempt", "read", "spent_s"]


@dataclass(frozen=True)
class Attempt:
    """One start of the job. `code` is None while it runs, and for ever if its launcher was lost."""

    attempt: int
    started: float
    ended: float | None = None
    code: int | None = None
    message: str = ""

    @property
    def failed(self) -> bool:
        """True if it counts against the failures that the spec allows.

        A launcher that vanished without a word (node lost, pod evicted past its grace) counts as a preemption.
        """
        return self.code is not None and is_failure(self.code)


def read(job: Path) -> list[Attempt]:
    """Attempts so far, oldest first; none where there is no ledger yet.

    Raises:
        BadData: The file is there, but not a ledger.
    """
    path = layout.ledger_file(job)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        known = Attempt.__dataclass_fields__
        return [Attempt(**{key: entry[key] for key in known if key in entry}) for entry in record["attempts"]]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError) as error:
        raise BadData(f"not a ledger of attempts: {error}", where=str(path), hint=f"remove it: rm {path}") from error


def failures(attempts: list[Attempt]) -> int:
    """How many attempts ended in a failure of their own."""
    return sum(entry.failed for entry in attempts)


def spent_s(job: Path, *, but: int | None = None) -> float:
    """Seconds that the attempts of a job took together; they share its budget.

    Told from the attempts' folders: a person who lets a job go on forgives its failures, but not what it has spent. An attempt
    lasts from its run.json, written before its ranks start, to the last file that it wrote.

    Args:
        job: The job's folder.
        but: An attempt to leave out: the one that begins now.
    """
    known = {entry.attempt: entry for entry in read(job)}
    total = 0.0
    for number in _numbers(job):
        entry = known.get(number)
        if number == but:
            continue
        if entry is not None and entry.ended is not None:
            total += max(0.0, entry.ended - entry.started)
        else:
            total += _lasted_s(layout.attempt_dir(job, number))
    return total


def _numbers(job: Path) -> list[int]:
    try:
        names = [path.name for path in layout.attempt_dir(job, 0).parent.iterdir()]
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _lasted_s(folder: Path) -> float:
    written = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            written.append(path.stat().st_mtime)
    return max(written) - min(written) if written else 0.0


def next_attempt(attempts: list[Attempt]) -> int:
    """Number of the next start."""
    return max((entry.attempt for entry in attempts), default=-1) + 1


def final_code(code: int, failed_before: int, allowed: int) -> int:
    """The code to leave with: 83 instead of one that asks for a restart, once the allowed failures are spent."""
    if may_restart(code) and is_failure(code) and failed_before + 1 > allowed:
        return int(ExitCode.RETRIES_SPENT)
    return code


def begin(job: Path, attempt: int) -> None:
    """Note that an attempt starts."""
    others = [entry for entry in read(job) if entry.attempt != attempt]
    _write(job, [*others, Attempt(attempt, started=time.time())])


def end(job: Path, attempt: int, code: int, message: str = "") -> None:
    """Note how an attempt ended: the rank's own code, not the one that the launcher makes of it."""
    now = time.time()
    attempts = {entry.attempt: entry for entry in read(job)}
    started = attempts[attempt].started if attempt in attempts else now
    attempts[attempt] = Attempt(attempt, started=started, ended=now, code=code, message=message)
    _write(job, list(attempts.values()))


def _write(job: Path, attempts: list[Attempt]) -> None:
    ordered = sorted(attempts, key=lambda entry: entry.attempt)
    record = {"v": 1, "failures": failures(ordered), "attempts": [asdict(entry) for entry in ordered]}
    write_atomic(layout.ledger_file(job), json.dumps(record, ensure_ascii=False, indent=1) + "\n")
