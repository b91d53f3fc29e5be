"""Runs an entry point of the trainer with this terminal: chat, serve, export."""

import signal
import subprocess

from nanochat.contract import ExitCode, describe, from_returncode
from nanochat_npu.backends.local import LocalBackend
from nanochat_npu.errors import ClusterError, JobFailed, UsageError
from nanochat_npu.i18n import _
from nanochat_npu.jobs import JobFolder

__all__ = ["require_model", "run_trainer"]


def require_model(folder: JobFolder) -> None:
    """Raises ClusterError if the job has no checkpoint on this computer."""
    if any((folder.path / "checkpoints").glob("*/step_*")):
        return
    if folder.receipt().backend == "volcano":
        raise ClusterError(
            _("its checkpoints are on the cluster"), where=folder.name, hint=_("fetch them: nanochat-npu files {job} --help").format(job=folder.name)
        )
    raise ClusterError(
        _("there is no trained model yet"), where=folder.name, hint=_("see how far it is: nanochat-npu status {job}").format(job=folder.name)
    )


def run_trainer(backend: LocalBackend, command: str, arguments: list[str], job: str) -> int:
    """Exit code of ``python -m nanochat COMMAND``: 0, or 130 after Ctrl-C.

    Raises:
        UsageError: It did not start.
        JobFailed: It ended with any other code.
    """
    # Ctrl-C is for the child: the terminal sends it to both processes, and only the child's own handler should act.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = subprocess.run(
            [backend.python, "-P", "-m", "nanochat", command, *arguments], env=backend.environ, check=False, restore_signals=True,
            preexec_fn=_default_interrupt,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    code = from_returncode(done.returncode)
    if code in (ExitCode.DONE, 128 + signal.SIGINT):
        return code
    if code == ExitCode.USAGE:
        raise UsageError(_("{command} did not start; its message is above").format(command=command), where=job)
    raise JobFailed(
        _("{command} ended with exit code {code}: {meaning}").format(command=command, code=code, meaning=describe(code)), where=job, details={"code": code}
    )


def _default_interrupt() -> None:
    # An ignored signal stays ignored through exec.
    signal.signal(signal.SIGINT, signal.default_int_handler)
