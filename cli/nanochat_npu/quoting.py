"""Filters that put values into generated files so that they mean there exactly what they mean here.

Templates lay out, they do not decide: a value that a template forgot is an error (`StrictUndefined`), so is a value that is
None, and every value in a YAML template passes `yaml_value` (a test reads the templates and holds that).
"""

import json
import math
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2

from nanochat_npu.errors import RenderError
from nanochat_npu.i18n import _

__all__ = ["comment_text", "docker_value", "environment", "kubernetes_text", "literal_block", "plain_word", "shell_word", "shell_words", "yaml_value"]

TEMPLATES = Path(__file__).parent / "templates"
"""A symlink to the repository's ``templates/`` in a checkout, real files in an installed wheel."""

_NOT_PRINTABLE = re.compile("[^\x09\x0a\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""What YAML 1.1 does not allow unescaped, or takes for a line break (U+0085, U+2028, U+2029), or may drop (U+FEFF)."""


def yaml_value(value: object) -> str:
    """The value as JSON that is also YAML: it parses to the same value and type, whatever characters it holds.

    Unquoted, ``on``, ``0123``, ``6e-4``, ``y`` and ``a: b`` change their meaning; here strings always have quotes.

    Raises:
        RenderError: None, NaN, infinity or half a surrogate pair, which no file can hold.
    """
    _refuse_unwritable(value)
    return _encode(value)


def _encode(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_encode(key)}: {_encode(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_encode(item) for item in value) + "]"
    if isinstance(value, float):
        # YAML 1.1 takes 1e-07 for text: its numbers have a point.
        text = repr(float(value))
        return text if "." in text else text.replace("e", ".0e")
    return _NOT_PRINTABLE.sub(lambda match: f"\\u{ord(match.group()):04x}", json.dumps(value, ensure_ascii=False))


def _refuse_unwritable(value: object) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_unwritable(key)
            _refuse_unwritable(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_unwritable(item)
    elif value is None:
        raise RenderError(_("a template was given nothing where a value belongs"), hint=_("this is a bug; please report the spec"))
    elif isinstance(value, float) and not math.isfinite(value):
        raise RenderError(_("{value} cannot be written to a file").format(value=value))
    elif isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise RenderError(_("text with half a character cannot be written to a file: {text}").format(text=ascii(value)))


def kubernetes_text(value: str) -> str:
    """The text with ``$`` doubled: Kubernetes expands ``$(NAME)`` in command, args and env values and reads ``$$`` as ``$``."""
    return value.replace("$", "$$")


def literal_block(text: str, indent: int) -> str:
    """The text as the value of a YAML key: a readable literal block if it survives that exactly, else a quoted string.

    Args:
        text: Any text.
        indent: Columns by which the lines of the block are indented.
    """
    representable = text.endswith("\n") and not text.endswith("\n\n") and not text.startswith((" ", "\t", "\n")) and not _NOT_PRINTABLE.search(text)
    if not representable or "\n\t" in text:
        return yaml_value(text)
    pad = " " * indent
    return "|\n" + "\n".join(pad + line if line else "" for line in text[:-1].split("\n"))


def shell_word(value: object) -> str:
    """The value as one word of a POSIX shell line."""
    text = _one_line(value)
    return shlex.quote(text)


def shell_words(values: Iterable[object]) -> str:
    """The values as words of a POSIX shell line."""
    return " ".join(shell_word(value) for value in values)


def plain_word(value: object) -> str:
    """The value where a Dockerfile allows no quotes (FROM, file names, label keys); refused if it could mean anything else there.

    Raises:
        RenderError: It has characters beyond letters, digits and ``._:/@+-``.
    """
    text = str(value)
    if not re.fullmatch(r"[A-Za-z0-9._:/@+-]+", text):
        raise RenderError(_("{text} cannot stand in a Dockerfile here").format(text=ascii(text)))
    return text


def docker_value(value: object) -> str:
    """The value in double quotes as ENV, LABEL and ARG of a Dockerfile read it: backslash, quote and dollar are escaped."""
    text = _one_line(value)
    return '"' + re.sub(r'([\\"$])', r"\\\1", text) + '"'


def comment_text(value: object) -> str:
    """The value as the rest of a comment line; whatever could end the line is shown as its escape."""
    return _NOT_PRINTABLE.sub(lambda match: ascii(match.group())[1:-1], str(value).replace("\n", " ").replace("\t", " "))


def _one_line(value: object) -> str:
    _refuse_unwritable(value)
    text = str(value)
    if "\n" in text or "\r" in text or "\0" in text:
        raise RenderError(_("text with line breaks cannot stand in a Dockerfile: {text}").format(text=ascii(text)))
    return text


def _finalize(value: Any) -> Any:
    if value is None:
        raise RenderError(_("a template was given nothing where a value belongs"), hint=_("this is a bug; please report the spec"))
    return value


def environment() -> jinja2.Environment:
    """The Jinja environment of all templates; it reads nothing but files of this package."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, finalize=_finalize, autoescape=False,  # noqa: S701
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )
    env.filters |= {"q": yaml_value, "k8s": kubernetes_text, "block": literal_block, "comment": comment_text, "sh": shell_word, "docker": docker_value, "word": plain_word, "words": shell_words}
    return env
