"""What a check says."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Check", "Level", "passed", "worst"]


class Level(StrEnum):
    """How a check came out."""

    OK = "ok"
    SKIPPED = "skipped"
    """Could not be looked at, for lack of rights or because something before it failed."""
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True)
class Check:
    """One check: what was looked at, how it came out, what was found, what to do."""

    id: str
    title: str
    level: Level
    finding: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """The check as an object."""
        return {"id": self.id, "title": self.title, "level": self.level.value, "finding": self.finding, "remedy": self.remedy or None}


def worst(checks: Iterable[Check]) -> Level:
    """The worst of all levels."""
    return max((check.level for check in checks), key=list(Level).index, default=Level.OK)


def passed(checks: Iterable[Check], identity: str) -> bool:
    """True if the check with this id came out well."""
    return any(check.id == identity and check.level is Level.OK for check in checks)
