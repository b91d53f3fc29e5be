"""``build``: the container image of a spec."""

import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from nanochat_npu import console
from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _
from nanochat_npu.load import load_spec
from nanochat_npu.options import OutputFormat, OutputOption, SetOption, SpecArgument, set_flags
from nanochat_npu.plan import make_plan

__all__ = ["command"]

BuilderOption = Annotated[str | None, typer.Option("--builder", metavar="NAME", help=_("docker, buildah, podman, nerdctl or layers; default: the first that is installed."), show_default=False)]
OciOption = Annotated[Path | None, typer.Option("--oci", metavar="PATH", help=_("Write an OCI layout there instead of pushing."), show_default=False)]
HandoffOption = Annotated[Path | None, typer.Option("--handoff", metavar="PATH", help=_("Write a folder with which somebody else can build."), show_default=False)]
PlanOption = Annotated[bool, typer.Option("--plan", help=_("Say what would be built and sent, and do nothing."))]
ForceOption = Annotated[bool, typer.Option("--force", help=_("Build even if the registry has this tag."))]


def command(
    spec: SpecArgument, set_: SetOption = None, builder: BuilderOption = None, oci: OciOption = None, handoff: HandoffOption = None,
    plan_only: PlanOption = False, force: ForceOption = False, output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Build the container image of a spec and push it; does nothing when the registry has it."""
    from nanochat_npu.image import build as images
    from nanochat_npu.image.context import build_input

    if sum((oci is not None, handoff is not None, plan_only)) > 1:
        raise UsageError(_("--oci, --handoff and --plan exclude each other"))
    source = build_input(make_plan(load_spec(spec, set_ or []).spec, datetime.date.today()))
    for warning in source.image.warnings:
        console.say(_("warning: {text}").format(text=warning), style="yellow")
    if plan_only:
        _show_outlook(images.outlook(source, builder), output)
    elif handoff is not None:
        files = images.hand_off(source, handoff)
        _show({"reference": str(source.reference), "files": [str(path) for path in files]}, "\n".join(map(str, files)), output)
    else:
        built = images.build(source, console.say, builder=builder, oci=oci, force=force, plain_http_base=source.plain_http)
        facts = {"reference": built.reference, "digest": built.digest, "outcome": built.outcome, "builder": built.builder, "sbom": str(built.sbom) if built.sbom else None}
        words = {"present": _("the registry has it already"), "built": _("built and pushed"), "written": _("written")}
        _show(facts, f"{built.reference}\n{built.digest}".strip(), output)
        console.say(words[built.outcome])
        console.say_next("submit", spec, *set_flags(set_))


def _show(facts: dict[str, Any], text: str, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        console.json_data(facts)
    else:
        console.data(text)


def _show_outlook(found: object, output: OutputFormat) -> None:
    import dataclasses

    facts = dataclasses.asdict(found)  # type: ignore[call-overload]
    changed = ", ".join(facts["changed"]) or _("nothing")
    size = _("unknown until built") if facts["push_bytes"] is None else _("about {size} bytes").format(size=facts["push_bytes"])
    lines = [
        _("image      {reference}").format(reference=facts["reference"]), _("to build   {changed} ({reason})").format(changed=changed, reason=facts["reason"]),
        _("context    {size} bytes").format(size=facts["context_bytes"]), _("to push    {size}").format(size=size),
    ]
    _show(facts, "\n".join(lines), output)
