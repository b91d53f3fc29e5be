"""``render``: the exact files that a submission would use."""

import datetime
from typing import Annotated

import typer

from nanochat_npu import console
from nanochat_npu.bundle import write
from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _
from nanochat_npu.load import load_spec
from nanochat_npu.options import OutputFormat, OutputOption, SetOption, SpecArgument, ToOption, set_flags
from nanochat_npu.plan import make_plan
from nanochat_npu.render import render

__all__ = ["command"]

OnlyOption = Annotated[str | None, typer.Option("--only", metavar="FILE", help=_("Show only this file, for example volcano-job.yaml."), show_default=False)]


def command(
    spec: SpecArgument, set_: SetOption = None, to: ToOption = None, only: OnlyOption = None, output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Write the exact files that a submission would use, or show them."""
    loaded = load_spec(spec, set_ or [])
    bundle = render(make_plan(loaded.spec, datetime.date.today()))
    files = dict(bundle.files)
    if only is not None:
        if only not in files:
            raise UsageError(_("there is no file {name}").format(name=only), hint=_("choose one of: {names}").format(names=", ".join(files)))
        files = {only: files[only]}
    if to is not None:
        written = write(bundle if only is None else type(bundle)(files, bundle.submission_id), to)
        if output is OutputFormat.JSON:
            console.json_data({"job": loaded.spec.name, "submission_id": bundle.submission_id, "written": [str(path) for path in written]})
        else:
            console.data("\n".join(map(str, written)))
            console.say_next("submit", spec, *set_flags(set_))
    elif output is OutputFormat.JSON:
        console.json_data({"job": loaded.spec.name, "submission_id": bundle.submission_id, "files": files})
    elif output is OutputFormat.MARKDOWN:
        console.data("\n".join(f"## {name}\n\n````\n{content}````\n" for name, content in files.items()))
    elif only is not None:
        console.data(files[only])
    else:
        console.data(bundle.text())
    if to is None and output is not OutputFormat.JSON:
        console.say_next("submit", spec, *set_flags(set_))
