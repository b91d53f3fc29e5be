"""The exit codes of the trainer, and what each asks of whoever started it.

One table for everybody: the ranks leave with these codes, the launcher passes them on, the Volcano policies are
generated from `RESTART`, and the local backend obeys the same table. Numbers 64-78 are BSD's ``sysexits.h`` where one
fits; the 80s are ours. 128+n means "killed by signal n" as in every shell.
"""

from enum import IntEnum

__all__ = ["FINAL", "RESTART", "ExitCode", "describe", "from_returncode", "is_failure", "may_restart"]


class ExitCode(IntEnum):
    """How a rank, a launcher or a job ended."""

    DONE = 0
    USAGE = 2
    """Command line not understood, or an optional part of the installation is missing (argparse's own code)."""
    BAD_DATA = 65
    """Data is missing, unreadable or too little; another attempt would meet the same data."""
    DEVICE_LOST = 69
    """An NPU, a link or a peer is gone; another attempt may land on healthy ones."""
    BUG = 70
    """An exception nobody expected: ours to fix."""
    NOT_READY = 75
    """Peers, names, ports or the rank table did not appear in time."""
    BAD_CONFIG = 78
    """The configuration cannot work as it stands."""
    DIVERGED = 80
    """The loss became NaN or infinite."""
    BUDGET = 81
    """The budget is spent; a checkpoint was written first."""
    INTERRUPTED = 82
    """SIGTERM or Ctrl-C: a checkpoint was written; not counted as a failure."""
    RETRIES_SPENT = 83
    """The failures that the spec allows have been used up."""


RESTART: frozenset[ExitCode] = frozenset({ExitCode.DEVICE_LOST, ExitCode.NOT_READY, ExitCode.INTERRUPTED})
"""Codes after which another attempt makes sense."""

FINAL: frozenset[ExitCode] = frozenset(ExitCode) - RESTART
"""Codes that end the job: success, or a failure that would only repeat itself."""

_TEXT: dict[ExitCode, str] = {
    ExitCode.DONE: "finished",
    ExitCode.USAGE: "command line not understood, or part of the installation is missing",
    ExitCode.BAD_DATA: "the data is missing, unreadable or too little",
    ExitCode.DEVICE_LOST: "a device, a link or a peer was lost",
    ExitCode.BUG: "unexpected error in the trainer",
    ExitCode.NOT_READY: "other workers or the rank table did not become ready in time",
    ExitCode.BAD_CONFIG: "the configuration cannot work",
    ExitCode.DIVERGED: "the loss became NaN or infinite",
    ExitCode.BUDGET: "the budget is spent",
    ExitCode.INTERRUPTED: "interrupted; a checkpoint was written",
    ExitCode.RETRIES_SPENT: "the allowed failures are used up",
}


def may_restart(code: int) -> bool:
    """True if another attempt makes sense after this exit code.

    Codes that are not in the table (1 from the interpreter, 137 from the OOM killer, …) restart: nothing is known
    that would make the next attempt fail too, and the failures are counted.
    """
    try:
        return ExitCode(code) in RESTART
    except ValueError:
        return True


def is_failure(code: int) -> bool:
    """True if an attempt that ended with this code counts against ``retries.failures``."""
    return code not in (ExitCode.DONE, ExitCode.INTERRUPTED)


def from_returncode(returncode: int) -> int:
    """The exit code a shell would show for a `subprocess` return code (-n means signal n, shown as 128+n)."""
    return 128 - returncode if returncode < 0 else returncode


def describe(code: int) -> str:
    """One clause in English that says what the code means; total over all integers."""
    try:
        return _TEXT[ExitCode(code)]
    except ValueError:
        return f"killed by signal {code - 128}" if 128 < code < 128 + 65 else f"exit code {code}"
