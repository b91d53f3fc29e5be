"""``cluster.patch``: the last word of a site on what we do not know, merged into the rendered job where everybody sees it.

Maps merge, null deletes, lists of named things merge by name, other lists are replaced; the rules of Kubernetes' strategic
merge patch, as far as a Volcano Job needs them.
"""

import re
from collections.abc import Iterator
from typing import Any

from nanochat_npu.errors import RenderError
from nanochat_npu.i18n import _
from nanochat_npu.quoting import literal_block, yaml_value

__all__ = ["dump_patched", "merge"]

_KEYS = ("name", "mountPath", "key", "containerPort")
"""Fields by which Kubernetes tells the items of a list apart; the first that all items have is taken."""
_PLAIN_KEY = re.compile("(?!true$|false$|null$|yes$|off$)[a-z][A-Za-z]{2,}")
"""Keys that mean themselves without quotes, in YAML 1.1 as well: the field names of Kubernetes."""


def merge(target: Any, patch: Any, path: tuple[str, ...] = (), changed: set[tuple[str, ...]] | None = None) -> Any:
    """A new object: the target with the patch merged in.

    Args:
        target: What is there.
        patch: What goes over it.
        path: Where we are, for `changed` and for errors.
        changed: Gets the path of every value that the patch set.

    Raises:
        RenderError: A map meets something that is not one.
    """
    changes = set() if changed is None else changed
    if isinstance(patch, dict):
        if not isinstance(target, dict | None):
            raise RenderError(_("a map cannot be merged into {kind}").format(kind=type(target).__name__), where="cluster.patch: " + ".".join(path))
        return _merge_maps(target or {}, patch, path, changes)
    if isinstance(patch, list) and isinstance(target, list) and (key := _key(target, patch)):
        return _merge_lists(target, patch, key, path, changes)
    changes.add(path)
    return patch


def _merge_maps(target: dict[str, Any], patch: dict[str, Any], path: tuple[str, ...], changes: set[tuple[str, ...]]) -> dict[str, Any]:
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
            changes.add(path)
        else:
            result[key] = merge(result.get(key), value, (*path, str(key)), changes)
    return result


def _key(target: list[Any], patch: list[Any]) -> str | None:
    items = [*target, *patch]
    return next((key for key in _KEYS if items and all(isinstance(item, dict) and key in item for item in items)), None)


def _merge_lists(target: list[Any], patch: list[Any], key: str, path: tuple[str, ...], changes: set[tuple[str, ...]]) -> list[Any]:
    merged = {item[key]: item for item in target}
    for item in patch:
        inner = (*path, f"{key}={item[key]}")
        rest = {name: value for name, value in item.items() if name != key}
        merged[item[key]] = {key: item[key], **merge(merged.get(item[key]), rest, inner, changes)}
    return list(merged.values())


def dump_patched(value: dict[str, Any], changed: set[tuple[str, ...]]) -> str:
    """The object as block YAML with every string quoted; values that the patch set carry a comment."""
    return "".join(f"{line}\n" for line in _lines(value, (), changed, 0))


def _lines(value: Any, path: tuple[str, ...], changed: set[tuple[str, ...]], indent: int) -> Iterator[str]:
    pad = " " * indent
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _entry(f"{pad}{key if _PLAIN_KEY.fullmatch(key) else yaml_value(key)}:", item, (*path, str(key)), changed, indent + 2)
        return
    named = _key(value, [])
    for item in value:
        inner = (*path, f"{named}={item[named]}") if named else path
        if isinstance(item, dict) and item:
            first, *rest = _lines(item, inner, changed, indent + 2)
            yield f"{pad}- {first.lstrip()}"
            yield from rest
        else:
            yield from _entry(f"{pad}-", item, inner, changed, indent + 2)


def _entry(head: str, value: Any, path: tuple[str, ...], changed: set[tuple[str, ...]], indent: int) -> Iterator[str]:
    mark = "  # cluster.patch" if path in changed else ""
    if isinstance(value, dict | list) and value:
        yield head + mark
        yield from _lines(value, path, changed, indent)
    else:
        text = literal_block(value, indent) if isinstance(value, str) else yaml_value(value)
        first, *rest = text.split("\n")
        yield f"{head} {first}{mark}"
        yield from rest
