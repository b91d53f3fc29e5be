"""Layers of values, and which layer each value came from: default < site file < spec < environment < ``--set``."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import yaml

from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _
from nanochat_npu.yaml_source import FieldPath, YamlSource, parse_scalar

__all__ = ["ENVIRONMENT", "Layer", "Merged", "Origin", "environment_layers", "merge", "parse_path", "parse_value", "set_layer", "split_override"]


class Origin(StrEnum):
    """Where a value came from, weakest first."""

    DEFAULT = "default"
    SITE = "site file"
    SPEC = "spec"
    ENVIRONMENT = "environment"
    SET = "--set"


@dataclass(frozen=True)
class Layer:
    """One source of values."""

    origin: Origin
    source: YamlSource

    @property
    def label(self) -> str:
        """The origin, with the name of the variable where it is one."""
        return f"{self.origin} {self.source.name}" if self.origin is Origin.ENVIRONMENT else str(self.origin)


@dataclass
class Merged:
    """All layers as one: data, the raw text of scalars, and the layer of each value."""

    data: dict[str, Any] = field(default_factory=dict)
    raw: dict[FieldPath, str] = field(default_factory=dict)
    layers: dict[FieldPath, Layer] = field(default_factory=dict)

    def layer_of(self, path: FieldPath) -> Layer | None:
        """The layer that a value came from, or that of the nearest parent; None where nobody gave one."""
        while path:
            if path in self.layers:
                return self.layers[path]
            path = path[:-1]
        return None

    def given(self, path: FieldPath) -> bool:
        """True if a layer gives this value, or the whole list or scalar that it stands in."""
        return any(path[:end] in self.layers and not isinstance(self._at(path[:end]), dict) for end in range(1, len(path) + 1))

    def _at(self, path: FieldPath) -> Any:
        value: Any = self.data
        for part in path:
            value = value[part]
        return value


def merge(layers: Iterable[Layer]) -> Merged:
    """The layers laid over each other: maps are merged key by key, everything else is replaced."""
    merged = Merged()
    for layer in layers:
        _lay(merged, merged.data, layer.source.data, (), layer)
    return merged


def _lay(merged: Merged, under: dict[str, Any], over: Mapping[str, Any], path: FieldPath, layer: Layer) -> None:
    for key, value in over.items():
        inner = (*path, key)
        if isinstance(value, dict) and isinstance(under.get(key), dict):
            merged.layers.setdefault(inner, layer)
            _lay(merged, under[key], value, inner, layer)
            continue
        _forget(merged, inner)
        if isinstance(value, dict):
            under[key] = {}
            merged.layers[inner] = layer
            _lay(merged, under[key], value, inner, layer)
        else:
            under[key] = value
            merged.layers[inner] = layer
            merged.raw.update({at: text for at, text in layer.source.raw.items() if at[: len(inner)] == inner})


def _forget(merged: Merged, path: FieldPath) -> None:
    for table in (merged.layers, merged.raw):
        for known in [known for known in table if known[: len(path)] == path]:
            del table[known]


_PART = re.compile(r'"([^"]*)"|\[(\d+)\]|([^.\[\]"]+)')


def parse_path(text: str) -> FieldPath:
    """``cluster.node_selector."a.b/c"`` as parts; a part in quotes may contain dots."""
    parts: list[str | int] = []
    position = 0
    while position < len(text):
        if parts and text[position] == ".":
            position += 1
        found = _PART.match(text, position)
        if not found:
            return ()
        quoted, index, word = found.groups()
        parts.append(int(index) if index is not None else (quoted if quoted is not None else word))
        position = found.end()
    return tuple(parts)


def set_layer(override: str) -> Layer:
    """The layer of one ``--set KEY=VALUE``.

    The value is YAML (``[a, b]``, ``null``, ``12``); what is not valid YAML is text.

    Raises:
        UsageError: no ``=``, or a key that is no path.
    """
    path, text = split_override(override)
    return Layer(Origin.SET, _single(f"--set {override}", path, text))


def split_override(override: str) -> tuple[FieldPath, str]:
    """Path and value of ``KEY=VALUE``.

    Raises:
        UsageError: no ``=``, or a key that is no path.
    """
    key, equals, text = override.partition("=")
    path = parse_path(key.strip())
    if not equals or not path or any(isinstance(part, int) for part in path):
        raise UsageError(_("--set {text}: expected KEY=VALUE").format(text=override), hint="--set run.model.depth=12")
    return path, text


def _single(name: str, path: FieldPath, text: str) -> YamlSource:
    """A source that holds one value, given as text."""
    value, raw = parse_value(text)
    data: Any = value
    for part in reversed(path):
        data = {part: data}
    source = YamlSource(name, data=data)
    source.raw.update({(*path, *inner): word for inner, word in raw.items()})
    return source


def parse_value(text: str) -> tuple[Any, dict[FieldPath, str]]:
    """A value written on one line, and the raw text of its unquoted scalars."""
    text = text.strip()
    if not text or text[0] not in "[{\"'":
        return parse_scalar(text), {(): text}
    raw: dict[FieldPath, str] = {}
    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return _plain(node, (), raw, 0), raw
    except (yaml.YAMLError, RecursionError, ValueError):
        return text, {(): text}


def _plain(node: yaml.Node | None, path: FieldPath, raw: dict[FieldPath, str], depth: int) -> Any:
    if depth > 40 or node is None:
        raise ValueError("too deep")
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _plain(value, (*path, str(key.value)), raw, depth + 1) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*path, i), raw, depth + 1) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.ScalarNode) or node.style:  # the C loader has "" for plain, the other None
        return node.value
    raw[path] = node.value
    return parse_scalar(node.value)


ENVIRONMENT: dict[str, str] = {
    "NANOCHAT_LOGGER": "run.tracking.logger",
    "SWANLAB_WORKSPACE": "run.tracking.workspace",
    "SWANLAB_PROJ_NAME": "run.tracking.project",
    "SWANLAB_MODE": "run.tracking.mode",
    "WANDB_ENTITY": "run.tracking.workspace",
    "WANDB_PROJECT": "run.tracking.project",
}
"""Variables that change a spec, as users of the trackers know them. Those of a tracker count only where it is the one in use."""


def environment_layers(environ: Mapping[str, str], logger: str) -> list[Layer]:
    """The layers of all variables that are set and apply.

    Args:
        environ: The environment.
        logger: Tracker in use unless ``NANOCHAT_LOGGER`` names another one.
    """
    logger = environ.get("NANOCHAT_LOGGER") or logger
    names: Sequence[str] = [name for name in ENVIRONMENT if environ.get(name) and name.startswith(("NANOCHAT_", f"{logger.upper()}_"))]
    return [Layer(Origin.ENVIRONMENT, _single(f"${name}", parse_path(ENVIRONMENT[name]), environ[name])) for name in names]
