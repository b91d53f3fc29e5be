"""The verdict of an attempt: what failed first. Written once, before the rank that failed leaves.

Ranks whose connection breaks because another one left look here for the reason and leave with the same code, so that
"the data is bad" is never out-shouted by "a peer is gone".
"""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nanochat.contract import ExitCode, describe, layout
from nanochat.files import write_once

__all__ = ["Verdict", "read", "wait_for", "write_first"]


@dataclass(frozen=True)
class Verdict:
    """How an attempt ended, told by the first process that knew."""

    code: int
    rank: int
    message: str
    stage: str = ""
    step: int = 0
    attempt: int = 0
    where: str | None = None
    hint: str | None = None
    t: float = field(default_factory=time.time)
    v: int = 1

    @property
    def name(self) -> str:
        """Name of the exit code, or "" where it is not one of ours."""
        try:
            return ExitCode(self.code).name
        except ValueError:
            return ""

    def to_json(self) -> str:
        """The verdict as one line of JSON."""
        return json.dumps({**asdict(self), "name": self.name, "meaning": describe(self.code)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Verdict | None":
        """The verdict in a text, leniently: unknown keys are ignored, what is not a verdict is None."""
        try:
            record = json.loads(text)
            known = {key: record[key] for key in cls.__dataclass_fields__ if key in record}
            return cls(**known)
        except (ValueError, TypeError, AttributeError):
            return None


def write_first(job: Path, verdict: Verdict) -> bool:
    """True if this is the attempt's first verdict and now stands; a later one changes nothing."""
    return write_once(layout.verdict_file(job, verdict.attempt), verdict.to_json() + "\n")


def read(job: Path, attempt: int) -> Verdict | None:
    """The attempt's verdict, if it has one."""
    try:
        return Verdict.from_json(layout.verdict_file(job, attempt).read_text(encoding="utf-8"))
    except OSError:
        return None


def wait_for(job: Path, attempt: int, timeout_s: float) -> Verdict | None:
    """The attempt's verdict as soon as there is one, or None after timeout_s.

    Whoever fails writes before leaving, so a peer that saw the connection break hardly waits; only over a network file
    system may the name appear late.
    """
    deadline = time.monotonic() + timeout_s
    while (found := read(job, attempt)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
