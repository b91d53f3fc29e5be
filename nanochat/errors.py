"""Errors of the trainer that a person can do something about. Each knows the exit code that the rank leaves with.

Everything else that escapes is a bug of ours (`ExitCode.BUG`) and keeps its traceback in the rank's log.
"""

from typing import ClassVar

from nanochat.contract import ExitCode

__all__ = ["BadConfig", "BadData", "Diverged", "TrainerError"]


class TrainerError(Exception):
    """Base of everything that is reported in one line, without a traceback.

    Args:
        message: What happened, one sentence, with the values that matter.
        where: File, field or object that it concerns.
        hint: What to do about it; a command when there is one.
        code: Exit code; default: the class's own.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.BUG

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None, code: ExitCode | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        self.code = self.exit_code if code is None else code

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} ({self.hint})" if self.hint else text


class BadData(TrainerError):
    """Data is missing, unreadable or too little."""

    exit_code = ExitCode.BAD_DATA


class BadConfig(TrainerError):
    """The configuration cannot work as it stands."""

    exit_code = ExitCode.BAD_CONFIG


class Diverged(TrainerError):
    """The loss became NaN or infinite."""

    exit_code = ExitCode.DIVERGED
