"""Writing YAML that reads back as it was meant, and changing single values in a text that a person wrote."""

import json
import re
from typing import Any

import yaml

from nanochat_npu.yaml_source import FieldPath, Mark, YamlSource, parse_scalar, parse_yaml

__all__ = ["dump_yaml", "set_value"]

_PLAIN = re.compile(r"[A-Za-z0-9_./@-][A-Za-z0-9_./@ -]*")


def set_value(text: str, path: FieldPath, value: Any) -> str:
    """The text with another value at a path; a key that is missing is put first into its block.

    Args:
        text: A YAML document that `parse_yaml` accepts.
        path: Keys from the root.
        value: A scalar, or a list of scalars.

    Raises:
        ValueError: What stands there now is a map or a block of lines.
    """
    source = parse_yaml(text.encode(), "spec")
    mark = source.values.get(path)
    if mark is not None and path in source.raw:
        return _replace(text, mark, len(source.raw[path]), scalar(value))
    if mark is not None:
        return _replace(text, mark, _width(text, path), scalar(value))
    return _insert(source, path, value)


def _width(text: str, path: FieldPath) -> int:
    """Characters that a quoted scalar or a ``[list]`` takes.

    Raises:
        ValueError: It is a map, or a block of lines, which are the person's own layout.
    """
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for part in path:
        node = node.value[part] if isinstance(part, int) else next(value for key, value in node.value if key.value == part)
    if isinstance(node, yaml.MappingNode) or getattr(node, "flow_style", True) is False or getattr(node, "style", None) in ("|", ">"):
        raise ValueError(f"{path} is not a plain scalar")
    return int(node.end_mark.index - node.start_mark.index)


def scalar(value: Any) -> str:
    """A value in YAML, quoted only where it must be."""
    if isinstance(value, list):
        return "[" + ", ".join(scalar(item) for item in value) + "]"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and parse_scalar(value) == value and not value.endswith(" ") else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def _offset(text: str, mark: Mark) -> int:
    lines = text.splitlines(keepends=True)
    return sum(len(line) for line in lines[: mark.line - 1]) + mark.column - 1


def _replace(text: str, mark: Mark, width: int, new: str) -> str:
    """Replace a scalar; a comment behind it keeps its column where there is room."""
    at = _offset(text, mark)
    rest = text[at + width :]
    shift = len(new) - width
    spaces = len(rest) - len(rest.lstrip(" "))
    if rest.lstrip(" ").startswith("#") and spaces > max(shift, 0):
        rest = rest[shift:] if shift >= 0 else " " * -shift + rest
    return text[:at] + new + rest


def _insert(source: YamlSource, path: FieldPath, value: Any) -> str:
    depth = len(path) - 1
    while depth and path[:depth] not in source.values:
        depth -= 1
    tail = scalar(value)
    for part in reversed(path[depth + 1 :]):
        tail = f"{{{part}: {tail}}}"
    entry = f"{path[depth]}: {tail}"
    text, place = source.text, source.values[path[:depth]]
    at = _offset(text, place)
    if text[at] == "{":
        separator = "" if text[at + 1 :].lstrip().startswith("}") else ", "
        return f"{text[: at + 1]}{entry}{separator}{text[at + 1 :]}"
    if depth == 0:
        return text + ("" if text.endswith("\n") else "\n") + entry + "\n"
    indent = " " * (place.column - 1)
    return f"{text[:at]}{entry}\n{indent}{text[at:]}"


class _Dumper(yaml.SafeDumper):
    """PyYAML writes for YAML 1.1: it quotes ``on`` but not ``0E0``, which 1.2 reads as a number. Ours quotes by both."""

    def represent_text(self, value: str) -> yaml.ScalarNode:
        """A string, quoted wherever its plain form would be something else to us."""
        same = parse_scalar(value) == value and isinstance(parse_scalar(value), str)
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=None if same else "'")


_Dumper.add_representer(str, _Dumper.represent_text)


def dump_yaml(data: Any) -> str:
    """Plain data as YAML in the order it has; `parse_yaml` reads exactly the same data from it."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
