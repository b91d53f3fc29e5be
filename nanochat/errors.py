"""Errors of the trainer. The exit code belongs to the class, so whoever raises decides what the job ends with.

Raised low with the values that matter; caught once, in `nanochat.rank` and `nanochat.launch`, where they become a
verdict and an exit code.
"""

from typing import ClassVar

from nanochat.contract import ExitCode

__all__ = [
    "BadConfig", "BadData", "BudgetSpent", "DeviceLost", "Diverged", "Interrupted", "NotReady", "PeerLost", "RetriesSpent",
    "TrainerError", "UsageError",
]


class TrainerError(Exception):
    """Base of everything that ends a rank on purpose.

    Args:
        message: What happened, one sentence, with the values that matter.
        where: File, setting or rank that it concerns ("run.data.dir", "checkpoints/pretrain/step_000100").
        hint: What to do about it; a command when there is one.
        code: Exit code; default: the class's own.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.BUG

    def __init__(
        self, message: str, *, where: str | None = None, hint: str | None = None, code: ExitCode | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        self.code = self.exit_code if code is None else code

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} (hint: {self.hint})" if self.hint else text


class UsageError(TrainerError):
    """The command line is not understood, or a part of the installation is missing."""

    exit_code = ExitCode.USAGE


class BadData(TrainerError):
    """Data is missing, unreadable or too little."""

    exit_code = ExitCode.BAD_DATA


class BadConfig(TrainerError):
    """The configuration cannot work as it stands."""

    exit_code = ExitCode.BAD_CONFIG


class DeviceLost(TrainerError):
    """A device, a link or a peer is gone; another attempt may land on healthy ones."""

    exit_code = ExitCode.DEVICE_LOST


class PeerLost(DeviceLost):
    """A collective broke because another rank left. The verdict of that rank decides the code, if it left one."""


class NotReady(TrainerError):
    """Peers, names, ports or the rank table did not appear in time."""

    exit_code = ExitCode.NOT_READY


class Diverged(TrainerError):
    """The loss or the weights became NaN or infinite."""

    exit_code = ExitCode.DIVERGED


class BudgetSpent(TrainerError):
    """Time or money is used up; a checkpoint was written first."""

    exit_code = ExitCode.BUDGET


class Interrupted(TrainerError):
    """SIGTERM or Ctrl-C."""

    exit_code = ExitCode.INTERRUPTED


class RetriesSpent(TrainerError):
    """The failures that the spec allows have been used up."""

    exit_code = ExitCode.RETRIES_SPENT
