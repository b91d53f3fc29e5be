"""Turns pydantic's errors into sentences about the spec: what was expected here, and what was probably meant."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nanochat_npu.i18n import _
from nanochat_npu.spec.aliases import UPSTREAM_FLAGS
from nanochat_npu.spec.currencies import CURRENCIES, CURRENCY_NAMES
from nanochat_npu.spec.model import JobSpec

__all__ = ["SHAPES", "FieldPath", "Finding", "findings_of", "known_paths", "model_at", "nearest", "nearest_currency"]

FieldPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Finding:
    """Something wrong at a field of the spec; `at_key` if it is the key and not its value."""

    path: FieldPath
    message: str
    hint: str | None = None
    at_key: bool = False


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, or None."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def nearest_currency(word: str) -> str | None:
    """The code of the currency that was probably meant, or None."""
    said = word.strip().upper()
    return CURRENCY_NAMES.get(said) or nearest(said, sorted(CURRENCIES))


def model_at(path: FieldPath) -> type[BaseModel] | None:
    """The model whose fields stand at a path of the spec, or None where that is no block of fields."""
    model: type[BaseModel] = JobSpec
    position = 0
    while position < len(path):
        info = model.model_fields.get(str(path[position]))
        inner = _model_in(info.annotation) if info else None
        if info is None or inner is None:
            return None
        in_container = inner[1]
        position += 2 if in_container else 1
        model = inner[0]
    return model


def _model_in(annotation: Any) -> tuple[type[BaseModel], bool] | None:
    """A model in an annotation, and whether a list position or a key of a map stands before it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    origin = getattr(annotation, "__origin__", None)
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found:
            return found[0], found[1] or origin in (list, dict)
    return None


def known_paths(model: type[BaseModel] = JobSpec, prefix: str = "") -> list[str]:
    """Dotted paths of all fields, blocks included, in the order of the models."""
    paths = []
    for name, info in model.model_fields.items():
        paths.append(prefix + name)
        inner = _model_in(info.annotation)
        if inner and not inner[1]:
            paths.extend(known_paths(inner[0], f"{prefix}{name}."))
    return paths


def findings_of(error: ValidationError) -> list[Finding]:
    """All findings of a failed validation, in sentences, without those that only follow from a misspelt key."""
    details = error.errors(include_url=False, include_context=True)
    unknown = [tuple(item["loc"]) for item in details if item["type"] == "extra_forbidden"]
    return [_finding(item) for item in details if not _is_echo(item, unknown)]


def _is_echo(item: ErrorDetails, unknown: list[FieldPath]) -> bool:
    """True for a missing field whose misspelt key is reported beside it."""
    if item["type"] != "missing":
        return False
    path = tuple(item["loc"])
    return any(other[:-1] == path[:-1] and nearest(str(other[-1]), [str(path[-1])]) for other in unknown)


def _finding(item: ErrorDetails) -> Finding:
    path, kind = tuple(item["loc"]), item["type"]
    if path and path[-1] == "[key]":
        return Finding(path[:-1], _("'{key}' cannot be a name here").format(key=path[-2]), _shape_hint(item), at_key=True)
    if kind == "extra_forbidden":
        return _unknown_key(path)
    if kind == "missing":
        return Finding(path, _("is missing"), _describe(path), at_key=True)
    context: Mapping[str, Any] = item.get("ctx", {})
    writer = _SENTENCES.get(kind)
    message = writer(item["input"], context) if writer else str(item["msg"])
    return Finding(path, message, _hint(kind, item, path))


def _unknown_key(path: FieldPath) -> Finding:
    word = str(path[-1])
    model = model_at(path[:-1])
    siblings = list(model.model_fields) if model else []
    close = nearest(word, siblings)
    elsewhere = UPSTREAM_FLAGS.get(word.replace("-", "_")) or next((known for known in known_paths() if known.split(".")[-1] == word), None)
    hint: str | None = None
    if close and (not elsewhere or word[:3] == close[:3]):
        hint = _("did you mean {name}?").format(name=close)
    elif elsewhere:
        hint = _("did you mean {name}?").format(name=elsewhere)
    else:
        hint = _("keys here: {keys}").format(keys=", ".join(siblings)) if siblings else None
    return Finding(path, _("unknown key"), hint, at_key=True)


def _describe(path: FieldPath) -> str | None:
    model = model_at(path[:-1])
    info = model.model_fields.get(str(path[-1])) if model else None
    return _(info.description) if info and info.description else None


def _hint(kind: str, item: ErrorDetails, path: FieldPath) -> str | None:
    value = item["input"]
    if kind in ("enum", "literal_error") and isinstance(value, str):
        close = nearest(value, _expected(item.get("ctx", {})))
        return _("did you mean {name}?").format(name=close) if close else None
    if kind == "bool_type" and isinstance(value, str) and value.lower() in _YAML11_BOOL:
        return _("YAML 1.2 reads {value} as text; write {word}").format(value=value, word=_YAML11_BOOL[value.lower()])
    if kind in ("int_type", "float_type") and isinstance(value, str):
        return _number_hint(value)
    if kind == "string_pattern_mismatch" and path[-2:] == ("price", "currency") and (close := nearest_currency(str(value))):
        return _("did you mean {name}?").format(name=close)
    if kind == "string_pattern_mismatch":
        return _shape_hint(item)
    return _describe(path)


_YAML11_BOOL = {"on": "true", "yes": "true", "y": "true", "off": "false", "no": "false", "n": "false"}


def _number_hint(value: str) -> str | None:
    """Numbers that YAML 1.1 and 1.2 read differently are refused with both readings."""
    digits = value.lstrip("+-")
    if digits.isdigit() and digits.startswith("0") and digits.isascii():
        octal = int(digits, 8) if set(digits) <= set("01234567") else None
        if octal is not None:
            return _("some YAML readers take {value} for {octal}; write {plain}").format(value=value, octal=octal, plain=int(digits))
        return _("write {plain}").format(plain=int(digits))
    if ":" in digits and digits.replace(":", "").isdigit():
        return _("some YAML readers take {value} for a number to base 60; write a plain number").format(value=value)
    if digits.isdigit():
        return _("write it without quotes: {plain}").format(plain=value)
    compact = digits.replace(",", "").replace("_", "").replace(" ", "")
    return _("write {plain}").format(plain=compact) if compact.isdigit() and compact != digits else None


SHAPES = {
    "[a-z]([-a-z0-9]*[a-z0-9])?$": "small letters, digits and '-'; a letter first, no '-' at the end (Volcano makes a Service of that name)",
    "(Ki|Mi|Gi|Ti|k|M|G|T)": "a number with a unit of Kubernetes: 512Gi, 1.5Ti; not 512GB",
    "auto|never": "auto, never, or JOB@STEP (JOB@latest)",
    "auto|[SL]": "auto, or S and L, one letter a layer, tiled: SSSL",
    "[A-Za-z_][A-Za-z0-9_]*": "letters, digits and '_'; no digit first",
    "^/[": "a path that starts with /, without ':'",
    "-a-z0-9.": "small letters, digits, '-' and '.'",
    "-a-z0-9": "small letters, digits and '-'",
    r"^3\.": "a version like 3.12",
    r"^\d+\.\d+": "a version like 9.1.0 (torch_npu: 2.12.0 or 2.9.0.post6)",
    "[A-Z]{3}": "three capital letters: CNY, USD",
}
"""Part of a pattern -> what it asks for, in words; the first that is contained in the pattern holds."""


def _shape_hint(item: ErrorDetails) -> str | None:
    pattern = str(item.get("ctx", {}).get("pattern", ""))
    words = next((words for part, words in SHAPES.items() if part in pattern), None)
    return _("expected: {shape}").format(shape=_(words) if words else pattern) if pattern else None


def _expected(context: Mapping[str, Any]) -> list[str]:
    return [word.strip().strip("'") for word in str(context.get("expected", "")).replace(" or ", ", ").split(",")]


def _show(value: Any) -> str:
    """A value as it looks in YAML, short."""
    if isinstance(value, dict):
        return _("a map")
    if isinstance(value, list):
        return _("a list")
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...") if isinstance(value, str) else text


def _must_be(what: Callable[[], str]) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda value, _context: _("must be {what}, not {value}").format(what=what(), value=_show(value))


def _limit(text: Callable[[], str], key: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda value, context: text().format(value=_show(value), limit=context[key])


def _one_of(value: Any, context: Mapping[str, Any]) -> str:
    words = _expected(context)
    if len(words) == 1:
        return _("must be {what}, not {value}").format(what=words[0], value=_show(value))
    return _("{value} is none of {words}").format(value=_show(value), words=", ".join(words))


_SENTENCES: dict[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "model_type": _must_be(lambda: _("a map (key: value)")),
    "dict_type": _must_be(lambda: _("a map (key: value)")),
    "list_type": _must_be(lambda: _("a list")),
    "int_type": _must_be(lambda: _("a whole number")),
    "int_from_float": _must_be(lambda: _("a whole number")),
    "int_parsing": _must_be(lambda: _("a whole number")),
    "int_parsing_size": _must_be(lambda: _("a smaller number")),
    "float_type": _must_be(lambda: _("a number")),
    "float_parsing": _must_be(lambda: _("a number")),
    "finite_number": _must_be(lambda: _("a finite number")),
    "bool_type": _must_be(lambda: _("true or false")),
    "bool_parsing": _must_be(lambda: _("true or false")),
    "string_type": _must_be(lambda: _("text")),
    "date_type": _must_be(lambda: _("a date like 2026-11-01")),
    "date_parsing": _must_be(lambda: _("a date like 2026-11-01")),
    "date_from_datetime_parsing": _must_be(lambda: _("a date like 2026-11-01")),
    "enum": _one_of,
    "literal_error": _one_of,
    "greater_than": _limit(lambda: _("{value} is not more than {limit}"), "gt"),
    "greater_than_equal": _limit(lambda: _("{value} is less than {limit}"), "ge"),
    "less_than": _limit(lambda: _("{value} is not less than {limit}"), "lt"),
    "less_than_equal": _limit(lambda: _("{value} is more than {limit}"), "le"),
    "multiple_of": _limit(lambda: _("{value} is not a multiple of {limit}"), "multiple_of"),
    "string_too_long": _limit(lambda: _("{value} is longer than {limit} characters"), "max_length"),
    "string_pattern_mismatch": lambda value, _context: _("{value} does not have the right form").format(value=_show(value)),
    "too_short": _must_be(lambda: _("a list with something in it")),
}
"""pydantic's error type -> our sentence. Types that are not here keep pydantic's own text."""
