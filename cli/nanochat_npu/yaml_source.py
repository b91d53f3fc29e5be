"""Reading YAML strictly, with the place of every key and value.

What PyYAML's loaders accept silently is an error here: duplicate keys, anchors and aliases (bombs), tags, several documents.
Scalars are read by YAML 1.2's core schema, not 1.1's: ``on``, ``no`` and ``1:30`` are text, ``6e-4`` is a number. Numbers
that differ between the two (``0123``) stay text, so that a number field refuses them by name. The raw text of plain scalars is
kept, so that a text field gets ``3.10`` as it was written.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from nanochat_npu.errors import Problem, SpecSyntaxError
from nanochat_npu.i18n import _

__all__ = ["MAX_BYTES", "FieldPath", "Mark", "YamlSource", "parse_scalar", "parse_yaml"]

MAX_BYTES = 1_000_000
"""A spec is a page of text; whatever is larger is another file."""
MAX_DEPTH = 40
"""Nesting; deeper input is built to exhaust a stack."""
MAX_PROBLEMS = 50
"""Findings that are listed; more do not help anybody."""

FieldPath = tuple[str | int, ...]
"""Keys and list positions from the root."""

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*|[1-9][0-9]{0,2}(_[0-9]{3})+)")
_HEX_OCT = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff\ud800-\udfff]")


@dataclass(frozen=True)
class Mark:
    """Where something stands in a file, 1-based."""

    line: int
    column: int
    width: int = 1


@dataclass
class YamlSource:
    """Parsed data with the place of each key and value.

    Attributes:
        name: File name as the person wrote it, or the name of an option.
        data: Maps, lists and scalars; keys are always text.
        keys: Place of each key; values: place of each value; raw: text of each unquoted scalar.
    """

    name: str
    text: str = ""
    data: Any = None
    keys: dict[FieldPath, Mark] = field(default_factory=dict)
    values: dict[FieldPath, Mark] = field(default_factory=dict)
    raw: dict[FieldPath, str] = field(default_factory=dict)

    def locate(self, path: FieldPath, *, key: bool = False) -> Mark | None:
        """Place of a value (or of its key); of the nearest parent where the file has neither."""
        order = (self.keys, self.values) if key else (self.values, self.keys)
        while path:
            for places in order:
                if path in places:
                    return places[path]
            path, order = path[:-1], (self.keys, self.values)
        return None

    def problem(self, message: str, path: FieldPath = (), *, hint: str | None = None, key: bool = False) -> Problem:
        """A problem at a field of this file."""
        return self.problem_at(message, self.locate(path, key=key), hint=hint, path=dotted(path))

    def problem_at(self, message: str, mark: Mark | None, *, hint: str | None = None, path: str = "") -> Problem:
        """A problem at a place of this file."""
        lines = self.text.splitlines()
        source = lines[mark.line - 1] if mark and mark.line <= len(lines) else None
        return Problem(
            message, path=path, hint=hint, file=self.name, line=mark.line if mark else None, column=mark.column if mark else None,
            source=source, width=mark.width if mark else 1,
        )


def dotted(path: FieldPath) -> str:
    """``("run", "stages", 0)`` as ``run.stages[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def parse_scalar(raw: str) -> Any:
    """Value of an unquoted scalar by YAML 1.2's core schema; text where it is nothing else."""
    if raw in _SPECIAL:
        return _SPECIAL[raw]
    if _INT.fullmatch(raw):
        return int(raw) if len(raw) < 400 else raw
    if _HEX_OCT.fullmatch(raw):
        return int(raw, 0)
    return float(raw) if _FLOAT.fullmatch(raw) else raw


def parse_yaml(content: bytes, name: str, *, empty_hint: str | None = None) -> YamlSource:
    """The document in a file.

    Args:
        content: Bytes of the file.
        name: Its name, for messages.
        empty_hint: The way out of a file without content; where a spec is read, the command that writes one.

    Raises:
        SpecSyntaxError: with every problem up to the first one that ends reading.
    """
    source = YamlSource(name)
    source.text = _decode(content, source)
    reader = _Reader(source)
    try:
        reader.read()
    except _TooDeepError:
        pass  # said where it was found
    except yaml.MarkedYAMLError as error:
        reader.problems.append(_syntax_problem(source, error))
    except yaml.reader.ReaderError as error:
        reader.problems.append(source.problem_at(_("this is not text: {reason}").format(reason=error.reason), None))
    if reader.problems:
        raise _syntax_error(source, reader.problems)
    if not source.text.strip() or source.data is None:
        raise _syntax_error(source, [source.problem_at(_("the file has no content"), None, hint=empty_hint)])
    if not isinstance(source.data, dict):
        kind = _("a list") if isinstance(source.data, list) else _("a single value")
        raise _syntax_error(source, [source.problem_at(_("the file must be a map (key: value), this is {kind}").format(kind=kind), Mark(1, 1))])
    return source


def _syntax_error(source: YamlSource, problems: list[Problem]) -> SpecSyntaxError:
    first = problems[0]
    return SpecSyntaxError(first.message, where=source.name, hint=first.hint, problems=problems[:MAX_PROBLEMS])


def _decode(content: bytes, source: YamlSource) -> str:
    if len(content) > MAX_BYTES:
        message = _("the file is larger than {limit} bytes; a spec is a page of text").format(limit=MAX_BYTES)
        raise _syntax_error(source, [source.problem_at(message, None)])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = _("this is not UTF-8 text (byte {value:#04x} in line {line})").format(value=content[error.start], line=line)
        raise _syntax_error(source, [source.problem_at(message, None, hint=_("save it as UTF-8"))]) from error
    found = _CONTROL.search(text)
    if found:
        source.text = text
        mark = Mark(text.count("\n", 0, found.start()) + 1, found.start() - text.rfind("\n", 0, found.start()))
        message = _("control character U+{code:04X}: this is not a text file").format(code=ord(found.group()))
        raise _syntax_error(source, [Problem(message, file=source.name, line=mark.line, column=mark.column)])
    return text


def _syntax_problem(source: YamlSource, error: yaml.MarkedYAMLError) -> Problem:
    """libyaml's complaint as one sentence about the place where it stopped."""
    at = error.problem_mark or error.context_mark
    if at and error.context_mark and at.line >= len(source.text.splitlines()):
        at = error.context_mark
    mark = Mark(at.line + 1, at.column + 1) if at else None
    lines = source.text.splitlines()
    line = lines[mark.line - 1] if mark and mark.line <= len(lines) else ""
    indent = line[: len(line) - len(line.lstrip())]
    if mark and "\t" in indent:
        tab = Mark(mark.line, indent.index("\t") + 1)
        return source.problem_at(_("a tab at the start of the line; YAML is indented with spaces"), tab, hint=_("replace each tab by two spaces"))
    if error.problem == "mapping values are not allowed in this context":
        return source.problem_at(
            _("a second ': ' in this line"), mark, hint=_("put the value in quotes, or start a new line with the right indentation")
        )
    reason = ", ".join(part for part in (error.context, error.problem) if part)
    return source.problem_at(_("not valid YAML: {reason}").format(reason=reason), mark)


class _TooDeepError(Exception):
    """Ends reading at a nesting that no spec has."""


class _Reader:
    """Builds data from libyaml's events, which need no stack of their own, so depth is under our control."""

    def __init__(self, source: YamlSource) -> None:
        self.source = source
        self.problems: list[Problem] = []
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events: Iterator[yaml.Event] = yaml.parse(source.text, Loader=loader)

    def read(self) -> None:
        """Fill in the source; problems that do not end reading are collected."""
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents == 2:
                    self._complain(_("a second document (---); a spec is one"), event)
                    return
            elif isinstance(event, yaml.NodeEvent):
                self.source.data = self._node(event, ())

    def _complain(self, message: str, event: yaml.Event, *, hint: str | None = None, path: FieldPath = ()) -> None:
        self.problems.append(self.source.problem_at(message, _mark(event), hint=hint, path=dotted(path)))

    def _node(self, event: yaml.Event, path: FieldPath) -> Any:
        self._refuse_references(event, path)
        if len(path) > MAX_DEPTH:
            self._complain(_("nested deeper than {limit} levels").format(limit=MAX_DEPTH), event)
            raise _TooDeepError
        self.source.values[path] = _mark(event)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path)
        if not isinstance(event, yaml.ScalarEvent):
            return None
        if not event.implicit[0]:
            return event.value
        self.source.raw[path] = event.value
        return parse_scalar(event.value)

    def _refuse_references(self, event: yaml.Event, path: FieldPath) -> None:
        """Anchors, aliases and tags: nothing in a spec needs them, and they are how a small file becomes a huge one."""
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            self._complain(_("alias *{name}: anchors and aliases are not read").format(name=anchor), event, hint=_("write the value out"), path=path)
        elif anchor is not None:
            self._complain(_("anchor &{name}: anchors and aliases are not read").format(name=anchor), event, hint=_("write the value out"), path=path)
        tag = getattr(event, "tag", None)
        if tag is not None and not (isinstance(event, yaml.ScalarEvent) and tag == "!"):
            self._complain(_("tag {tag}: tags are not read").format(tag=tag), event, path=path)

    def _sequence(self, path: FieldPath) -> list[Any]:
        items: list[Any] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self._node(event, (*path, len(items))))
        return items

    def _mapping(self, path: FieldPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._key(event, path, values)
            inner = (*path, key)
            if key not in values:
                self.source.keys[inner] = _mark(event)
            value = self._node(next(self._events), inner)
            values.setdefault(key, value)
        return values

    def _key(self, event: yaml.Event, path: FieldPath, seen: Mapping[str, Any]) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            self._complain(_("a key must be a plain word"), event, path=path)
            self._node(event, (*path, "?"))
            return "?"
        self._refuse_references(event, path)
        if event.value in seen:
            first = self.source.keys[(*path, event.value)].line
            message = _("key '{key}' is given twice (first in line {line})").format(key=event.value, line=first)
            self._complain(message, event, hint=_("keep one of them"), path=(*path, event.value))
        elif event.value == "<<":
            self._complain(_("merge key '<<' is not read"), event, hint=_("write the values out"), path=path)
        return str(event.value)


def _mark(event: yaml.Event) -> Mark:
    start, end = event.start_mark, event.end_mark
    if start is None or end is None:
        return Mark(1, 1)
    width = end.column - start.column if end.line == start.line and isinstance(event, yaml.ScalarEvent) else 1
    return Mark(start.line + 1, start.column + 1, max(1, width))
