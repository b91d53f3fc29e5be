"""Reads Kubernetes YAML of several documents with the place of every key and value.

Unlike a spec, other people's YAML may have anchors; their expansion is bounded. Duplicate keys are an error here as well: the
API server refuses them, PyYAML lets the last one win.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from nanochat_npu.errors import Problem, SpecSyntaxError
from nanochat_npu.i18n import _
from nanochat_npu.lint.findings import Path

__all__ = ["Document", "read_documents"]

MAX_NODES = 200_000
"""Nodes after expansion of anchors; a Volcano job has some hundred."""
MAX_BYTES = 8 * 1024 * 1024
_KUBERNETES_NUMBER = re.compile(r"0[oO][0-7]+|[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+")
_KUBERNETES_BOOLEAN = {"y": True, "Y": True, "n": False, "N": False}
"""Unquoted forms that PyYAML takes for text and Kubernetes' reader does not (kubernetes #14948)."""


@dataclass
class Document:
    """One object of a file: its data, and (line, column) of each key by its path, 1-based; of values too."""

    index: int
    data: dict[str, Any]
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)
    values: dict[Path, tuple[int, int]] = field(default_factory=dict)
    ends: dict[Path, tuple[int, int]] = field(default_factory=dict)
    raw: dict[Path, str] = field(default_factory=dict)
    """Text of each scalar as it was written."""

    def where(self, path: Path) -> tuple[int, int]:
        """Place of a path, or of its nearest parent that is there."""
        while path:
            if path in self.keys:
                return self.keys[path]
            if path in self.values:
                return self.values[path]
            path = path[:-1]
        return self.values.get((), (1, 1))


def read_documents(text: str, name: str) -> list[Document]:
    """The objects in a file; documents that are no Kubernetes objects are left out.

    Raises:
        SpecSyntaxError: It is not YAML, has a key twice, is too large, or uses anchors to grow.
    """
    if len(text) > MAX_BYTES:
        raise SpecSyntaxError(_("is larger than {mib} MiB").format(mib=MAX_BYTES // 2**20), where=name)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        nodes = list(yaml.compose_all(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = Problem(str(error.problem or error), file=name, line=mark.line + 1 if mark else 1, column=mark.column + 1 if mark else 1)
        raise SpecSyntaxError(_("this is not YAML"), where=name, problems=[problem]) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecSyntaxError(_("this is not YAML: {reason}").format(reason=str(error).splitlines()[0]), where=name) from error
    documents = []
    for index, node in enumerate(nodes):
        if isinstance(node, yaml.MappingNode):
            documents.append(_Reader(index, name).read(node))
    return list(_unpack_lists(documents))


def _unpack_lists(documents: list[Document]) -> Iterator[Document]:
    """A ``kind: List`` is its items."""
    for document in documents:
        items = document.data.get("items")
        if document.data.get("kind") != "List" or not isinstance(items, list):
            yield document
            continue
        for position, item in enumerate(items):
            if isinstance(item, dict):
                prefix = ("items", position)
                yield Document(
                    document.index, item, _below(document.keys, prefix), _below(document.values, prefix), _below(document.ends, prefix),
                    {path[len(prefix):]: text for path, text in document.raw.items() if path[:len(prefix)] == prefix},
                )


def _below(places: dict[Path, tuple[int, int]], prefix: Path) -> dict[Path, tuple[int, int]]:
    return {path[len(prefix) :]: place for path, place in places.items() if path[: len(prefix)] == prefix}


class _Reader:
    def __init__(self, index: int, name: str) -> None:
        self.document = Document(index, {})
        self.name = name
        self.nodes = 0
        self.constructor = yaml.SafeLoader("")

    def read(self, node: yaml.Node) -> Document:
        data = self._value(node, ())
        self.document.data = data if isinstance(data, dict) else {}
        return self.document

    def _value(self, node: yaml.Node, path: Path) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or len(path) > 60:
            raise SpecSyntaxError(_("anchors make it grow beyond {n} values").format(n=MAX_NODES), where=self.name)
        self.document.values[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
        self.document.ends[path] = (node.end_mark.line + 1, node.end_mark.column + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, i)) for i, item in enumerate(node.value)]
        self.document.raw[path] = str(node.value)
        if isinstance(node, yaml.ScalarNode) and not node.style and node.tag == "tag:yaml.org,2002:str":
            if _KUBERNETES_NUMBER.fullmatch(node.value):
                return int(node.value, 8) if node.value[1:2] in "oO" and node.value[1:2] else float(node.value)
            if node.value in _KUBERNETES_BOOLEAN:
                return _KUBERNETES_BOOLEAN[node.value]
        try:
            return self.constructor.construct_object(node)
        except (yaml.YAMLError, ValueError):
            return str(node.value)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged = self._value(value_node, path)
                result = {**(merged if isinstance(merged, dict) else {}), **result}
                continue
            key = str(key_node.value)
            place = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if (*path, key) in self.document.keys and self.document.keys[(*path, key)] != place and key in result:
                problem = Problem(_("key {key} stands here twice").format(key=key), file=self.name, line=place[0], column=place[1])
                raise SpecSyntaxError(_("a key stands twice"), where=self.name, problems=[problem])
            self.document.keys[(*path, key)] = place
            result[key] = self._value(value_node, (*path, key))
        return result
