"""Sections: the parts of which a view is made, as text for a terminal, as Markdown, or as values for JSON.

A view (`status`, the end of a run, a plan) is a list of functions that each give one section or None; whoever has something to
add appends a function to the list.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Section", "cells", "pad", "to_json", "to_markdown", "to_text"]

_ESCAPES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Section:
    """One part of a view: labelled values, or a table, or both.

    Attributes:
        key: Name in JSON.
        title: Heading; "" shows none.
        rows: Label and value each.
        header: Names of the table's columns.
        table: Its lines; columns whose cells all look like numbers are set flush right.
        value: What ``-o json`` shows under `key`; None leaves it out.
    """

    key: str
    title: str = ""
    rows: tuple[tuple[str, str], ...] = ()
    header: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    value: Any = None

    @property
    def empty(self) -> bool:
        """True if there is nothing to show."""
        return not self.rows and not self.table


def cells(text: str) -> int:
    """Columns that a text takes on a terminal: Chinese characters take two, combining marks none."""
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text filled up with spaces to a number of columns."""
    space = " " * max(0, width - cells(text))
    return space + text if right else text + space


def to_text(sections: Iterable[Section]) -> str:
    """Sections as plain text, a blank line between them, no trailing spaces."""
    blocks = []
    for section in sections:
        if section.empty:
            continue
        lines = [section.title] if section.title else []
        indent = "  " if section.title else ""
        lines += [indent + line for line in (*_row_lines(section.rows), *_table_lines(section.header, section.table))]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def to_markdown(sections: Iterable[Section]) -> str:
    """Sections as Markdown."""
    blocks = []
    for section in sections:
        if section.empty:
            continue
        lines = [f"### {section.title}", ""] if section.title else []
        if section.rows:
            lines += _markdown_table(("", ""), _joined(section.rows))
        if section.table:
            lines += ([""] if section.rows else []) + _markdown_table(section.header, section.table)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def to_json(sections: Iterable[Section]) -> dict[str, Any]:
    """The sections' values by key."""
    return {section.key: section.value for section in sections if section.value is not None}


def _clean(text: str) -> str:
    """Text of a job on one line, without control characters: what a job prints must not move our cursor."""
    return _ESCAPES.sub("", text.replace("\n", " ").replace("\t", " "))


def _row_lines(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max((cells(label) for label, _value in rows), default=0)
    return [f"{pad(label, width)}  {_clean(value)}".rstrip() for label, value in rows]


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[-–?]|[\d.,]+( ?(%|[A-Za-z/]+))*", text))


def _table_lines(header: Sequence[str], table: Sequence[Sequence[str]]) -> list[str]:
    if not table:
        return []
    lines = [list(header), *([_clean(cell) for cell in line] for line in table)]
    columns = range(len(header))
    widths = [max(cells(line[i]) for line in lines) for i in columns]
    right = [all(_is_number(line[i]) for line in lines[1:]) for i in columns]
    return ["  ".join(pad(line[i], widths[i], right=right[i]) for i in columns).rstrip() for line in lines]


def _joined(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Rows without a label joined to the one before: they are its value, broken to fit a terminal."""
    found: list[tuple[str, str]] = []
    for label, value in rows:
        if label or not found:
            found.append((label, value))
        else:
            before = found[-1][1]
            close = unicodedata.east_asian_width(before[-1:] or " ") in "WF" and unicodedata.east_asian_width(value[:1] or " ") in "WF"
            found[-1] = (found[-1][0], before + ("" if close else " ") + value)
    return found


def _markdown_table(header: Sequence[str], table: Sequence[Sequence[str]]) -> list[str]:
    def line(values: Sequence[str]) -> str:
        return "| " + " | ".join(_clean(value).replace("|", "\\|") for value in values) + " |"

    return [line(header), "|" + " --- |" * len(header), *(line(values) for values in table)]
