"""Applies fixes to the text of a file, touching nothing else: comments, order and quoting of all other lines stay.

Only block style is edited, one value or one inserted line at a time; where a value stands in flow style (``{…}``, ``[…]``) that
would have to grow, the finding is left for the person.
"""

import json
from typing import Any

from nanochat_npu.lint.documents import Document, read_documents
from nanochat_npu.lint.engine import lint_text
from nanochat_npu.lint.findings import Finding, Fix

__all__ = ["apply_fixes"]

_ROUNDS = 50
"""Each round makes one change and reads the file anew, so that places are never stale."""


def apply_fixes(text: str, name: str) -> tuple[str, list[Finding]]:
    """(the mended text, the findings that were mended); raises SpecSyntaxError like `lint_text`."""
    mended: list[Finding] = []
    skipped: set[tuple[str, object]] = set()
    for _round in range(_ROUNDS):
        findings, _jobs = lint_text(text, name)
        todo = next((f for f in findings if f.fix is not None and (f.rule, f.path) not in skipped), None)
        if todo is None or todo.fix is None:
            break
        changed = _apply(text, name, todo, todo.fix)
        if changed is None:
            skipped.add((todo.rule, todo.path))
            continue
        text = changed
        mended.append(todo)
    return text, mended


def _apply(text: str, name: str, finding: Finding, fix: Fix) -> str | None:
    document = next(
        (d for d in read_documents(text, name) if d.index == finding.document and d.data.get("kind") == "Job" and finding.path[:1] in {p[:1] for p in d.keys}), None
    )
    if document is None:
        return None
    changed = _insert(text, document, fix) if fix.insert else _replace(text, document, fix)
    if changed is None or changed == text:
        return None
    return changed


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _replace(text: str, document: Document, fix: Fix) -> str | None:
    start, end = document.values.get(fix.path), document.ends.get(fix.path)
    if start is None or end is None or start[0] != end[0]:
        return None
    lines = text.splitlines(keepends=True)
    line = lines[start[0] - 1]
    lines[start[0] - 1] = line[: start[1] - 1] + _scalar(fix.value) + line[end[1] - 1 :]
    return "".join(lines)


def _insert(text: str, document: Document, fix: Fix) -> str | None:
    """A new key as the first line of the map that it belongs to."""
    parent = fix.path[:-1]
    first = min((place for path, place in document.keys.items() if path[:-1] == parent), default=None)
    if first is None:
        return None
    lines = text.splitlines(keepends=True)
    line = lines[first[0] - 1]
    lead = line[: first[1] - 1]
    if lead.strip(" -"):
        return None  # flow style, or something else stands before it
    added = f"{lead}{fix.path[-1]}: {_scalar(fix.value)}\n"
    lines[first[0] - 1 : first[0]] = [added, " " * len(lead) + line[first[1] - 1 :]]
    return "".join(lines)
