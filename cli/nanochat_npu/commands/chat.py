"""``chat``: talk to a model that was trained on this computer."""

import signal
import subprocess
from typing import Annotated

import typer

from nanochat.contract import ExitCode, describe, from_returncode
from nanochat_npu.backends.local import LocalBackend, connect
from nanochat_npu.errors import ClusterError, JobFailed, UsageError
from nanochat_npu.i18n import _
from nanochat_npu.jobs import JobFolder, Store
from nanochat_npu.options import JobArgument

__all__ = ["command"]

StageOption = Annotated[str | None, typer.Option("--stage", help=_("Stage whose model answers; default: the last trained."), show_default=False)]
PromptOption = Annotated[str | None, typer.Option("--prompt", "-p", help=_("Answer this and leave."), show_default=False)]


def command(job: JobArgument, stage: StageOption = None, prompt: PromptOption = None) -> None:
    """Talk to a trained model in the terminal."""
    folder = Store.default().existing(job)
    _require_model(folder)
    backend = connect()
    backend.require_trainer()
    arguments = ["--job-dir", str(folder.path), *(["--stage", stage] if stage else []), *(["--prompt", prompt] if prompt else [])]
    raise typer.Exit(_run(backend, arguments, job))


def _require_model(folder: JobFolder) -> None:
    if any((folder.path / "checkpoints").glob("*/step_*")):
        return
    if folder.receipt().backend == "volcano":
        raise ClusterError(
            _("its checkpoints are on the cluster"), where=folder.name, hint=_("fetch them: nanochat-npu files {job} --help").format(job=folder.name)
        )
    raise ClusterError(
        _("there is no trained model yet"), where=folder.name, hint=_("see how far it is: nanochat-npu status {job}").format(job=folder.name)
    )


def _run(backend: LocalBackend, arguments: list[str], job: str) -> int:
    """Run the trainer's own chat with this terminal; its exit code."""
    # Ctrl-C stops an answer: the terminal sends it to both processes, and only the child's own handler should act.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = from_returncode(
            subprocess.run([backend.python, "-m", "nanochat", "chat", *arguments], env=backend.environ, check=False, restore_signals=True,
                           preexec_fn=_default_interrupt).returncode
        )
    finally:
        signal.signal(signal.SIGINT, before)
    if code in (ExitCode.DONE, 128 + signal.SIGINT):
        return code
    if code == ExitCode.USAGE:
        raise UsageError(_("the chat did not start; its message is above"), where=job)
    raise JobFailed(_("the chat ended with exit code {code}: {meaning}").format(code=code, meaning=describe(code)), where=job, details={"code": code})


def _default_interrupt() -> None:
    # An ignored signal stays ignored through exec.
    signal.signal(signal.SIGINT, signal.default_int_handler)
