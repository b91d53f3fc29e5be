"""``init``: write a spec from a preset."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanochat_npu import console
from nanochat_npu.errors import Problem, SpecError, SpecSyntaxError, UsageError
from nanochat_npu.i18n import _
from nanochat_npu.options import OutputFormat, OutputOption, SetOption, YesOption, complete_preset
from nanochat_npu.presets import preset_names, preset_path, preset_summary
from nanochat_npu.writing import write_result

if TYPE_CHECKING:
    from nanochat_npu.yaml_source import FieldPath

__all__ = ["command"]

PresetArgument = Annotated[str | None, typer.Argument(metavar="PRESET", help=_("Name of a preset; none lists them."), show_default=False, autocompletion=complete_preset)]
NameOption = Annotated[str | None, typer.Option("--name", help=_("Name of the job; default: the preset's."), show_default=False)]
FileOption = Annotated[str | None, typer.Option("--to", metavar="FILE", help=_("File to write; default: NAME.yaml here; - for stdout."), show_default=False)]


def command(
    preset: PresetArgument = None, name: NameOption = None, to: FileOption = None, set_: SetOption = None, yes: YesOption = False,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Write a spec from a preset, to be changed at will. NNPU, DEPTH, DEVICE_BATCH_SIZE and the like are taken from the environment."""
    if preset is None:
        _list_presets(output)
        return
    path = preset_path(preset)
    if path is None:
        raise UsageError(_("there is no preset '{name}'").format(name=preset), hint=_("presets: {names}").format(names=", ".join(preset_names())))
    original = path.read_text(encoding="utf-8")
    text, taken = _adapt(original, name, set_ or [], os.environ)
    target = to or f"{name or preset}.yaml"
    _check(text, target, _places(name, set_ or [], taken))
    text = _without_stale_comments(original, text, preset)
    for variable, field, value in taken:
        console.say(_("{field}: {value}, from {variable}").format(field=field, value=value, variable=variable))
    if target == "-":
        console.data(text)
        return
    _write(Path(target), text, yes=yes)
    if output is OutputFormat.JSON:
        console.json_data({"file": target, "preset": preset, "environment": {variable: field for variable, field, _value in taken}})
    else:
        console.data(target)
    console.say_next("plan", target)


def _list_presets(output: OutputFormat) -> None:
    names = preset_names()
    if output is OutputFormat.JSON:
        console.json_data({"presets": [{"name": name, "summary": preset_summary(name)} for name in names]})
    else:
        console.data("\n".join(f"{name:<8}  {_(preset_summary(name))}" for name in names))
    console.say_next("init", "tiny")


def _adapt(text: str, name: str | None, overrides: list[str], environ: Mapping[str, str]) -> tuple[str, list[tuple[str, str, str]]]:
    """The preset's text with the environment's values and the overrides in it, and what was taken from the environment."""
    from nanochat_npu.origins import parse_value, split_override
    from nanochat_npu.spec.aliases import INIT_VARIABLES
    from nanochat_npu.yaml_edit import set_value

    said = {".".join(map(str, split_override(override)[0])) for override in overrides}
    taken = [(variable, field, environ[variable]) for variable, field in INIT_VARIABLES.items() if environ.get(variable) and field not in said]
    changes: list[tuple[FieldPath, Any]] = [(tuple(field.split(".")), parse_value(value)[0]) for _variable, field, value in taken]
    changes += [leaf for path, value in map(split_override, overrides) for leaf in _leaves(path, parse_value(value)[0])]
    if name is not None:
        changes.append((("name",), name))
    for path, value in changes:
        try:
            text = set_value(text, path, value)
        except ValueError as error:
            raise UsageError(_("{path} cannot be set here").format(path=".".join(map(str, path))), hint=_("edit the file after it is written")) from error
    return text, taken


def _leaves(path: "FieldPath", value: Any) -> Iterator[tuple["FieldPath", Any]]:
    """A map key by key, as ``--set`` lays it over a spec everywhere else."""
    if isinstance(value, dict) and value:
        for key, inner in reversed(value.items()):  # a key that is new is put first into its block
            yield from _leaves((*path, key), inner)
    else:
        yield path, value


_SIZED_BY = ("run.model.depth", "resources.nodes", "resources.npus_per_node")
"""Fields of which the presets' comments speak: what the heading says, and what takes how many GB."""
_SIZE_COMMENT = re.compile(r" +# .*( GB|\bwidth \d).*")
_DATA_COMMENT = re.compile(r"^( +data: \{.*\}) +# .*")


def _without_stale_comments(original: str, text: str, preset: str) -> str:
    """The text with a heading that is true where depth, counts or data are no longer the preset's, and no comments on what is not there now."""
    from nanochat_npu.yaml_source import parse_yaml

    before, after = (parse_yaml(content.encode(), preset) for content in (original, text))
    paths = {field: tuple(field.split(".")) for field in (*_SIZED_BY, "run.data.source")}
    changed = {field: after.raw[path] for field, path in paths.items() if path in after.raw and before.raw.get(path) != after.raw[path]}
    lines = text.split("\n")
    if changed and lines[0].startswith("#"):
        lines[0] = f"# From the preset {preset}, with {', '.join(f'{field}: {value}' for field, value in changed.items())}."
    if _SIZED_BY[0] in changed:
        lines = [_SIZE_COMMENT.sub("", line) for line in lines]
    if before.data["run"].get("data") != after.data["run"].get("data"):
        lines = [_DATA_COMMENT.sub(r"\1", line) for line in lines]
    cleaned = "\n".join(lines)
    try:
        same = parse_yaml(cleaned.encode(), preset).data == after.data
    except SpecSyntaxError:
        same = False
    return cleaned if same else text  # a value looked like a comment: then all of them stay


def _places(name: str | None, overrides: list[str], taken: list[tuple[str, str, str]]) -> dict[str, str]:
    """Field -> what its value is from, where that is not the preset: a variable, ``--set`` or ``--name``."""
    from nanochat_npu.origins import split_override

    places = {field: _("environment") + f" ${variable}" for variable, field, _value in taken}
    places.update({".".join(map(str, split_override(override)[0])): f"--set {override}" for override in overrides})
    return places if name is None else {**places, "name": f"--name {name}"}


def _check(text: str, target: str, places: Mapping[str, str]) -> None:
    """Refuse what would not be a good spec, before anything is written; the environment is not looked at twice.

    Args:
        text: The spec.
        target: Name of the file that it will be.
        places: From `_places`, for the error.

    Raises:
        SpecError: It is wrong.
    """
    from nanochat_npu.load import load_text

    quiet = {key: os.environ[key] for key in ("HOME", "USER", "LOGNAME", "XDG_CONFIG_HOME", "NANOCHAT_NPU_SITE") if key in os.environ}
    try:
        load_text(text.encode(), target, environ=quiet)
    except SpecError as error:
        found = [_at_its_place(problem, places) for problem in error.problems]
        raise type(error)(error.message, where=found[0].file if found[0].line is None else error.where, hint=error.hint, problems=found) from error


def _at_its_place(problem: Problem, places: Mapping[str, str]) -> Problem:
    """The problem at the variable or option that the value is from: the file that it would stand in was never written."""
    for field, place in places.items():
        if f"{field}.".startswith(f"{problem.path}.") or problem.path.startswith((f"{field}.", f"{field}[")):
            return replace(problem, file=place, line=None, column=None, source=None)
    return problem


def _write(path: Path, text: str, *, yes: bool) -> None:
    if path.is_file() and not console.confirm(_("{path} exists. Overwrite it?").format(path=path), yes=yes):
        raise UsageError(_("{path} exists").format(path=path), hint=_("choose another file with --to, or --yes to overwrite it"))
    write_result(path, text)
