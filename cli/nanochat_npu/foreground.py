"""Runs an entry point of the trainer with this terminal: chat, serve, export."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from nanochat.contract import ExitCode, from_returncode
from nanochat_npu import processes
from nanochat_npu.backends.local import LocalBackend
from nanochat_npu.errors import ClusterError, JobFailed, UsageError
from nanochat_npu.i18n import _
from nanochat_npu.jobs import JobFolder
from nanochat_npu.meanings import meaning
from nanochat_npu.resume import checkpoint_steps

__all__ = ["require_model", "run_trainer"]


def require_model(folder: JobFolder, stage: str | None = None) -> None:
    """Make sure that there is a model to load.

    Args:
        folder: The job's.
        stage: The stage whose model is wanted; None: of any.

    Raises:
        ClusterError: The job has no checkpoint (of this stage) on this computer.
    """
    if any((folder.path / "checkpoints").glob(f"{stage or '*'}/step_*")):
        return
    if steps := checkpoint_steps(folder):
        raise ClusterError(_("there is no model of stage {stage}").format(stage=stage), where=folder.name, hint=_("it has: {steps}").format(steps=", ".join(steps)))
    if folder.receipt().backend == "volcano":
        raise ClusterError(
            _("its checkpoints are on the cluster"), where=folder.name, hint=_("fetch them: nanochat-npu files {job} --help").format(job=folder.name)
        )
    raise ClusterError(
        _("there is no trained model yet"), where=folder.name, hint=_("see how far it is: nanochat-npu status {job}").format(job=folder.name)
    )


def run_trainer(backend: LocalBackend, command: str, arguments: list[str], job: str) -> int:
    """Exit code of ``python -m nanochat COMMAND``: 0, 130 after Ctrl-C, 128 + n after another signal n that asked to stop.

    Raises:
        UsageError: It did not start.
        JobFailed: It ended with any other code.
    """
    with _stops_with_us() as stopping:
        child = subprocess.Popen(
            [backend.python, "-P", "-m", "nanochat", command, *arguments], env=backend.environ, restore_signals=True, preexec_fn=_in_child(),
        )
        stopping.child = child
        code = from_returncode(child.wait())
    if code == ExitCode.DONE or code - 128 in (signal.SIGINT, *stopping.got):
        return code
    if code == ExitCode.USAGE:
        raise UsageError(_("{command} refuses; its message is above").format(command=command), where=job)
    raise JobFailed(
        _("{command} ended with exit code {code}: {meaning}").format(command=command, code=code, meaning=meaning(code)), where=job, details={"code": code}
    )


class _Stopping:
    """Hands signals that ask to stop on to the child: it would go on without anybody knowing, a server with its port."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def child(self) -> "subprocess.Popen[bytes] | None":
        """The process; setting it hands on what came while it was starting."""
        return self._child

    @child.setter
    def child(self, child: "subprocess.Popen[bytes]") -> None:
        self._child = child
        for number in self.got:
            child.send_signal(number)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler for `signal.signal`."""
        self.got.append(number)
        if self._child is not None:
            self._child.send_signal(number)


@contextmanager
def _stops_with_us() -> Iterator[_Stopping]:
    stopping = _Stopping()
    # Ctrl-C is for the child: the terminal sends it to both processes, and only the child's own handler should act.
    handlers: dict[int, Any] = {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: stopping.handle, signal.SIGHUP: stopping.handle}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup: both of us live on when the terminal is closed
        del handlers[signal.SIGHUP]
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_child() -> Callable[[], None]:
    tie = processes.tied_to_us()  # whoever kills this command must not leave a server behind, with its port

    def prepare() -> None:
        tie()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # an ignored signal stays ignored through exec

    return prepare
