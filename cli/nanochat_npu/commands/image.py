"""``image``: which versions go together, wheels for sites without a network, the bill of materials."""

import dataclasses
import datetime
from pathlib import Path
from typing import Annotated

import typer

from nanochat_npu import console
from nanochat_npu.i18n import _
from nanochat_npu.load import load_spec
from nanochat_npu.options import OutputFormat, OutputOption, SetOption, SpecArgument, set_flags
from nanochat_npu.plan import make_plan

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True, help=_("Versions, wheels and bill of materials of the container image."))

ToFolder = Annotated[Path, typer.Option("--to", metavar="PATH", help=_("Folder that the wheels go to."))]
AllOption = Annotated[bool, typer.Option("--all", help=_("Also builds that are too old for nanochat, or whose pairing is not published."))]


@app.command("matrix")
def matrix(all_: AllOption = False, output: OutputOption = OutputFormat.TEXT) -> None:
    """Show which torch_npu goes with which torch, CANN and Python, with sources."""
    from nanochat_npu.image.matrix import OUR_TORCH, Kind, published

    rows = [row for row in published() if all_ or (row.kind is Kind.OFFICIAL and tuple(map(int, row.torch.split(".")[:2])) >= OUR_TORCH)]
    if output is OutputFormat.JSON:
        console.json_data({"builds": [dataclasses.asdict(row) for row in rows]})
        return
    head = ("torch_npu", "torch", "CANN", _("also CANN"), "Python", _("basis"), _("source"))
    table = [head, *((row.torch_npu, row.torch, row.cann or "?", " ".join(row.also_cann), " ".join(row.python), row.kind.value, f"{row.source} ({row.read_on})") for row in rows)]
    if output is OutputFormat.MARKDOWN:
        lines = ["| " + " | ".join(row) + " |" for row in table]
        console.data("\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]))
        return
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    console.data("\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table))
    console.say(_("both architectures (arm64, amd64); chips 910b and a3; torch is always the CPU build of exactly that version"))


@app.command("wheelhouse")
def wheelhouse(spec: SpecArgument, to: ToFolder, set_: SetOption = None, output: OutputOption = OutputFormat.TEXT) -> None:
    """Fill a folder with the wheels of a spec's image, for its architecture and Python; then set image.wheelhouse."""
    from nanochat_npu.image.describe import describe_image
    from nanochat_npu.image.wheelhouse import fill_wheelhouse

    image = describe_image(make_plan(load_spec(spec, set_ or []).spec, datetime.date.today()))
    wheels = fill_wheelhouse(image, to, console.say)
    if output is OutputFormat.JSON:
        console.json_data({"wheels": [path.name for path in wheels], "bytes": sum(path.stat().st_size for path in wheels)})
    else:
        console.data("\n".join(path.name for path in wheels))
        console.say_next("build", spec, *set_flags([*(set_ or []), f"image.wheelhouse={to}"]))


@app.command("packages")
def packages(spec: SpecArgument, to: ToFolder, set_: SetOption = None, output: OutputOption = OutputFormat.TEXT) -> None:
    """Fill a folder with the trainer's Python packages, unpacked, for a volume and image.packages; needs no builder."""
    from nanochat_npu.image.describe import describe_image
    from nanochat_npu.image.packages import unpack_packages

    image = describe_image(make_plan(load_spec(spec, set_ or []).spec, datetime.date.today()))
    count = unpack_packages(image, to, console.say)
    if output is OutputFormat.JSON:
        console.json_data({"folder": str(to), "files": count})
    else:
        console.data(str(to))
        console.say(_("next: copy it to a volume, and set image.code: configmap and image.packages to its path there"))


@app.command("sbom")
def sbom(spec: SpecArgument, set_: SetOption = None) -> None:
    """Print the bill of materials (CycloneDX) of a spec's image."""
    from nanochat_npu.image.context import build_input
    from nanochat_npu.image.sbom import bill_of_materials

    console.data(bill_of_materials(build_input(make_plan(load_spec(spec, set_ or []).spec, datetime.date.today()))))
