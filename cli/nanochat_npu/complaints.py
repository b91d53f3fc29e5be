"""What the parser of arguments complains about, said in our words: its own are English whatever language was chosen.

Classes are told by name and values by attribute, since Typer 0.29 and later bring their own copy of click. What is not known
here keeps the parser's sentence.
"""

import difflib
import re
from collections.abc import Sequence
from typing import Any

from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _

__all__ = ["as_usage"]

_CHOICE = re.compile(r"(?P<value>.+) is not one of (?P<choices>.+?)\.?", re.DOTALL)
_NUMBER = re.compile(r"'(?P<value>.*)' is not a valid (?:integer|int)( range)?\.?", re.DOTALL)
_RANGE = re.compile(r"(?P<value>\S+) is not in the range (?:(?P<low>-?\d+)<=)?x(?:>=(?P<least>-?\d+))?(?:<=(?P<most>-?\d+))?\.?")
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((?P<words>.*)\)\.?", re.DOTALL)
_COMMAND = re.compile(r"No such command (?P<name>'.*?'|\".*?\")\..*", re.DOTALL)


def as_usage(error: Any, command: str) -> UsageError:
    """The complaint as an error of ours, with the way out.

    Args:
        error: click's exception.
        command: What the person called, for example "nanochat-npu logs"; taken where the exception does not know it.
    """
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else command
    kind = type(error).__name__
    if kind == "NoArgsIsHelpError":
        # Its message is the whole help text: too long for an error, and no sentence for -o json.
        return UsageError(_("a command is missing"), where=path, hint=_commands(context))
    if kind == "NoSuchOption":
        return UsageError(_("there is no option {name}").format(name=error.option_name), hint=_meant(error.possibilities, path))
    if kind == "UsageError" and (found := _COMMAND.fullmatch(error.message)):
        name = found["name"][1:-1]
        close = difflib.get_close_matches(name, _inner(context), n=1, cutoff=0.7)
        return UsageError(_("there is no command '{name}'").format(name=name), where=path, hint=_meant(close, "") if close else _commands(context))
    return UsageError(_sentence(error, kind), hint=f"{path} --help")


def _sentence(error: Any, kind: str) -> str:
    message = str(error.message)
    if kind == "MissingParameter":
        return _("{name} is missing").format(name=_named(error))
    if kind == "BadParameter":
        return f"{_named(error)}: {_wrong_value(error, message)}"
    if kind == "BadOptionUsage" and "requires" in message:
        return _("{name} needs a value").format(name=error.option_name)
    if kind == "BadOptionUsage" and "not take a value" in message:
        return _("{name} takes no value").format(name=error.option_name)
    if found := _EXTRA.fullmatch(message):
        return _("too many arguments: {words}").format(words=found["words"])
    return str(error.format_message()).rstrip(".")


def _wrong_value(error: Any, message: str) -> str:
    """What is wrong with a value: pydantic's finding (Typer 0.29 and later) or click's sentence."""
    details: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    finding = details[0] if details else {}
    value, limits = finding.get("input"), finding.get("ctx") or {}
    if str(finding.get("type", "")).startswith("int_"):
        return _not_whole(value)
    if "ge" in limits or "le" in limits:
        return _outside(value, limits.get("ge"), limits.get("le"))
    text = message.removeprefix("Value error, ")
    if found := _NUMBER.fullmatch(text):
        return _not_whole(found["value"])
    if found := _RANGE.fullmatch(text):
        return _outside(found["value"], found["least"] or found["low"], found["most"])
    found = _CHOICE.fullmatch(text)
    return _("{value} is not one of {choices}").format(value=found["value"], choices=found["choices"]) if found else text.rstrip(".")


def _not_whole(value: object) -> str:
    return _("'{value}' is not a whole number").format(value=value)


def _outside(value: object, least: object, most: object) -> str:
    if least is not None and (most is None or float(str(value)) < float(str(least))):
        return _("{value} is too small; at least {limit}").format(value=value, limit=least)
    return _("{value} is too large; at most {limit}").format(value=value, limit=most)


def _named(error: Any) -> str:
    """The option or argument that it is about: ``--rank / -r``, ``SPEC``."""
    parameter = error.param
    options = [word for word in parameter.opts if word.startswith("-")] if parameter is not None else []
    return " / ".join(options) or str(getattr(parameter, "metavar", None) or error.param_hint or getattr(parameter, "name", ""))


def _inner(context: Any) -> list[str]:
    return list(context.command.list_commands(context)) if hasattr(context.command, "list_commands") else []


def _commands(context: Any) -> str:
    return _("commands: {names}").format(names=", ".join(_inner(context)))


def _meant(names: Sequence[str] | None, path: str) -> str:
    if not names:
        return f"{path} --help"
    return _("did you mean {name}?").format(name=", ".join(names))
