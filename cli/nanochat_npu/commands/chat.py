"""``chat``: talk to a model that was trained on this computer."""

from typing import Annotated

import typer

from nanochat_npu.backends.local import connect
from nanochat_npu.foreground import require_model, run_trainer
from nanochat_npu.i18n import _
from nanochat_npu.jobs import Store
from nanochat_npu.options import JobArgument

__all__ = ["command"]

StageOption = Annotated[str | None, typer.Option("--stage", help=_("Stage whose model answers; default: the last trained."), show_default=False)]
PromptOption = Annotated[str | None, typer.Option("--prompt", "-p", help=_("Answer this and leave."), show_default=False)]


def command(job: JobArgument, stage: StageOption = None, prompt: PromptOption = None) -> None:
    """Talk to a trained model in the terminal."""
    folder = Store.default().existing(job)
    require_model(folder)
    backend = connect()
    backend.require_trainer()
    arguments = ["--job-dir", str(folder.path), *(["--stage", stage] if stage else []), *(["--prompt", prompt] if prompt else [])]
    raise typer.Exit(run_trainer(backend, "chat", arguments, job))
