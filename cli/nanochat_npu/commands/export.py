"""``export``: a trained model in a format that other programs read."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nanochat_npu import console
from nanochat_npu.backends.local import connect
from nanochat_npu.foreground import require_model, run_trainer
from nanochat_npu.i18n import _
from nanochat_npu.jobs import Store
from nanochat_npu.options import JobArgument, TrainedStage

__all__ = ["command"]


class Format(StrEnum):
    """What `nanochat.export` can write."""

    HF = "hf"
    SAFETENSORS = "safetensors"


FormatOption = Annotated[Format, typer.Option("--format", help=_("hf: for transformers, with a modelling file; safetensors: weights and tokenizer alone."))]
ToOption = Annotated[Path, typer.Option("--to", metavar="DIR", help=_("Folder to write; it must not exist, or be empty."), show_default=False)]
StageOption = Annotated[TrainedStage | None, typer.Option("--stage", help=_("Stage whose model is written; default: the last trained."), show_default=False)]
StepOption = Annotated[int | None, typer.Option("--step", min=0, help=_("Step of the checkpoint; default: the newest."), show_default=False)]


def command(job: JobArgument, to: ToOption, format_: FormatOption = Format.HF, stage: StageOption = None, step: StepOption = None) -> None:
    """Write a trained model in a format that other programs read."""
    folder = Store.default().existing(job)
    require_model(folder, stage and stage.value)
    backend = connect()
    backend.require_trainer()
    arguments = ["--job-dir", str(folder.path), "--format", format_.value, "--to", str(to.absolute())]
    code = run_trainer(backend, "export", [*arguments, *(["--stage", stage.value] if stage else []), *(["--step", str(step)] if step is not None else [])], job)
    if code == 0 and format_ is Format.HF:
        program = f"from transformers import pipeline; print(pipeline('text-generation', {str(to)!r}, trust_remote_code=True))"
        console.say(_("next: {command}").format(command=shlex.join(["python", "-c", program])))
    raise typer.Exit(code)
