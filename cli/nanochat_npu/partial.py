"""Reading Kubernetes objects of which any part may be missing: each function gives a value of its type, whatever it is handed.

``status`` is empty until a controller has seen an object, older servers leave fields out, and a proxy may hand us something
else altogether. A command that only reads must not fall over that, so nothing outside this module indexes into an object.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

__all__ = ["annotation", "dig", "integer", "items", "label", "latest", "mapping", "text", "when"]


def dig(obj: Any, *path: str | int) -> Any:
    """The value at this path of keys and list positions, or None where a part of it is missing or of another type."""
    for step in path:
        if isinstance(step, str):
            obj = obj.get(step) if isinstance(obj, dict) else None
        else:
            obj = obj[step] if isinstance(obj, list) and -len(obj) <= step < len(obj) else None
    return obj


def text(obj: Any, *path: str | int) -> str:
    """The string at this path, or ""."""
    value = dig(obj, *path)
    return value if isinstance(value, str) else ""


def integer(obj: Any, *path: str | int) -> int:
    """The whole number at this path (also one that is written as a string), or 0."""
    value = dig(obj, *path)
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19 else 0


def mapping(obj: Any, *path: str | int) -> dict[str, Any]:
    """The object at this path with its string keys, or {}."""
    value = dig(obj, *path)
    return {key: inner for key, inner in value.items() if isinstance(key, str)} if isinstance(value, dict) else {}


def items(obj: Any, *path: str | int) -> list[dict[str, Any]]:
    """The objects in the list at this path, or []; entries that are no objects are left out."""
    value = dig(obj, *path)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def label(obj: Any, key: str) -> str:
    """Value of a label, or ""."""
    return text(obj, "metadata", "labels", key)


def annotation(obj: Any, key: str) -> str:
    """Value of an annotation, or ""."""
    return text(obj, "metadata", "annotations", key)


def when(obj: Any, *path: str | int) -> datetime | None:
    """The time at this path (RFC 3339, as Kubernetes writes it), with its time zone, or None."""
    value = text(obj, *path)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def latest(objects: Iterable[dict[str, Any]], *path: str | int) -> dict[str, Any] | None:
    """The object whose time at `path` is the latest; the last of equals, objects without a time first."""
    best: dict[str, Any] | None = None
    best_key: tuple[bool, float] = (False, 0.0)
    for obj in objects:
        moment = when(obj, *path)
        key = (moment is not None, moment.timestamp() if moment else 0.0)
        if best is None or key >= best_key:
            best, best_key = obj, key
    return best
