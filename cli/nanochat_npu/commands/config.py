"""``config``: every resolved value with its origin, and the format of specs as a JSON Schema."""

import json
import os
from typing import Annotated, Any

import typer

from nanochat_npu import console, tables
from nanochat_npu.i18n import _
from nanochat_npu.load import LoadedSpec, load_spec
from nanochat_npu.options import OutputFormat, OutputOption, SetOption, SpecArgument, ToOption, set_flags
from nanochat_npu.site import SITE_VARIABLE, site_file
from nanochat_npu.writing import write_result

__all__ = ["app", "resolved_values"]

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

ChangedOption = Annotated[bool, typer.Option("--changed", help=_("Only values that are not defaults."))]
DEFAULT = "default"


@app.callback()
def _config() -> None:
    """Show every resolved value and where it came from."""


@app.command("show")
def show(spec: SpecArgument, set_: SetOption = None, changed: ChangedOption = False, output: OutputOption = OutputFormat.TEXT) -> None:
    """Show every value of a spec and where it came from: default, site file, spec, environment or --set."""
    loaded = load_spec(spec, set_ or [])
    values = [value for value in resolved_values(loaded) if not changed or value["origin"] != DEFAULT]
    site = site_file(os.environ)
    if output is OutputFormat.JSON:
        console.json_data({"job": loaded.spec.name, "site_file": site and str(site), "values": values})
        return
    table = tuple((value["path"], _flow(value["value"]), _(value["origin"])) for value in values)
    section = tables.Section("values", header=(_("field"), _("value"), _("origin")), table=table)
    console.data(tables.to_markdown([section]) if output is OutputFormat.MARKDOWN else tables.to_text([section]))
    console.say(_("site file: {path}").format(path=site) if site else _("no site file; an administrator can write one and name it in {name}").format(name=SITE_VARIABLE))
    console.say_next("plan", spec, *set_flags(set_))


@app.command("schema")
def schema(to: ToOption = None) -> None:
    """Print the JSON Schema of specs; editors complete and check with it."""
    from nanochat_npu.spec import JobSpec

    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **JobSpec.model_json_schema()}
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if to is None:
        console.data(text)
        return
    write_result(to, text)
    console.data(str(to))
    console.say(_("first line of a spec: {line}").format(line=f"# yaml-language-server: $schema={to}"))


def resolved_values(loaded: LoadedSpec) -> list[dict[str, Any]]:
    """Every value of a spec: path, value, origin. Lists are one value; empty maps and nulls are shown too."""
    values: list[dict[str, Any]] = []
    _walk(loaded, loaded.spec.model_dump(mode="json"), "", values)
    return values


def _walk(loaded: LoadedSpec, node: dict[str, Any], prefix: str, values: list[dict[str, Any]]) -> None:
    for key, value in node.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            _walk(loaded, value, f"{path}.", values)
        else:
            values.append({"path": path, "value": value, "origin": loaded.origins.get(path, DEFAULT)})


def _flow(value: Any) -> str:
    """A value as it would be written in YAML, on one line."""
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        return value if value and value == value.strip() and value.isprintable() else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value)
