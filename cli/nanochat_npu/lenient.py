"""Values out of JSON that somebody else wrote: what is of the right kind is used, anything else counts as missing."""

import math
from typing import Any

__all__ = ["mapping", "mappings", "moment", "number", "text", "whole"]

_LARGEST = 2**63
_YEAR_9999_S = 253_402_300_800.0


def text(value: object) -> str:
    """The text, or ""."""
    return value if isinstance(value, str) else ""


def whole(value: object) -> int | None:
    """The whole number, or None; also for one that no counter of ours can reach."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST else None


def number(value: object) -> float | None:
    """The finite number, or None. NaN and infinity (events spell them as strings) are nothing to show or to add up."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 1e300:
        return None
    return float(value) if math.isfinite(value) else None


def moment(value: object) -> float | None:
    """Unix seconds that a clock can show, or None."""
    seconds = number(value)
    return seconds if seconds is not None and 0 < seconds < _YEAR_9999_S else None


def mapping(value: object) -> dict[str, Any]:
    """The object, or {}."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[dict[str, Any]]:
    """The objects in a list, or []."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
