"""From plain data to a JobSpec, or to every finding in one pass: fields and rules together."""

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nanochat_npu.spec.findings import FieldPath, Finding, findings_of
from nanochat_npu.spec.model import JobSpec
from nanochat_npu.spec.rules import check

__all__ = ["validate"]

_PLACEHOLDER_NAME = "unnamed"


def validate(data: dict[str, Any], raw: Mapping[FieldPath, str] | None = None) -> tuple[JobSpec | None, list[Finding]]:
    """The spec, or None and the findings.

    Types are strict: no text becomes a number, no number a truth value. Two readings follow what a person meant: a text field
    takes an unquoted scalar as it was written (``python: 3.10``), and a whole-number field takes ``2e9``.

    Args:
        data: Merged data of all layers; not changed.
        raw: Text of unquoted scalars by path.
    """
    data = deepcopy(data)
    spec, errors = _parse(data)
    if errors is not None and _reread(data, errors.errors(include_url=False), raw or {}):
        spec, errors = _parse(data)
    if spec is not None:
        findings = check(spec)
        return (None if findings else spec), findings
    if errors is None:
        return None, []
    findings = findings_of(errors)
    return None, findings + _rules_beside(data, errors.errors(include_url=False))


def _parse(data: dict[str, Any]) -> tuple[JobSpec | None, ValidationError | None]:
    try:
        return JobSpec.model_validate_json(json.dumps(data), strict=True), None
    except ValidationError as error:
        return None, error


def _reread(data: dict[str, Any], errors: list[ErrorDetails], raw: Mapping[FieldPath, str]) -> bool:
    """Put in the other reading of a scalar where that is what the field takes; True if anything changed."""
    changed = False
    for error in errors:
        path, value = tuple(error["loc"]), error["input"]
        text_helps = error["type"] == "string_type" or f"'{raw.get(path)}'" in str(error.get("ctx", {}).get("expected", ""))
        if text_helps and path in raw and not isinstance(value, str) and raw[path] and value is not None:
            changed = _put(data, path, raw[path]) or changed
        elif error["type"] in ("int_type", "int_from_float") and isinstance(value, float) and value.is_integer() and "e" in raw.get(path, "").lower():
            changed = _put(data, path, int(value)) or changed
    return changed


def _parent(data: Any, path: FieldPath) -> Any:
    """The map or list that holds the last part of a path, or None where the path leaves the data."""
    for part in path[:-1]:
        known = part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int) and part < len(data)
        if not known:
            return None
        data = data[part]
    return data


def _put(data: Any, path: FieldPath, value: Any) -> bool:
    parent = _parent(data, path)
    if not isinstance(parent, (dict, list)):
        return False
    parent[path[-1]] = value  # type: ignore[index]
    return True


# Blocks whose rules would complain that another block is absent, when we only took it away.
_READERS = {"price": ("budget",), "storage": ("run",)}


def _drop(data: Any, path: FieldPath) -> bool:
    """Take a map's field out; False where there is no such field."""
    parent = _parent(data, path)
    if not path or not isinstance(parent, dict) or path[-1] not in parent:
        return False
    del parent[path[-1]]
    return True


def _rules_beside(data: dict[str, Any], errors: list[ErrorDetails]) -> list[Finding]:
    """Findings of the rules for the rest of the spec: without the wrong fields, and not about them."""
    wrong: list[FieldPath] = []
    for error in errors:
        path = tuple(error["loc"])
        if path and path[-1] == "[key]":
            path = path[:-1]
        while isinstance(_parent(data, path), list):
            path = path[:-1]  # a list without one of its items is another list: the whole of it is in doubt
        wrong.append(path)
        _drop(data, path)
    data.setdefault("name", _PLACEHOLDER_NAME)
    spec, still_wrong = _parse(data)
    while still_wrong is not None:
        # A block that lost a field it cannot do without goes as a whole: each round takes a block away, so this ends.
        blocks = {tuple(error["loc"])[:-1] for error in still_wrong.errors(include_url=False)}
        gone = [path for path in blocks if path and _drop(data, path)]
        if not gone:
            return []
        wrong += gone + [(reader,) for path in gone for reader in _READERS.get(str(path[0]), ())]
        spec, still_wrong = _parse(data)
    if spec is None:
        return []
    return [finding for finding in check(spec) if not any(_touches(finding.path, path) for path in wrong)]


def _touches(one: FieldPath, other: FieldPath) -> bool:
    """True if one of two paths contains the other, or both stand in the same small block, whose fields depend on each other."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
