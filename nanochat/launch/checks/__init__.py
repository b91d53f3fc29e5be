"""Checks before any rank starts, in this order. One file each: a function ``check(settings, run)`` that raises.

A check looks at this node only, takes well under a second, and says what to do. Add a file and a line here.
"""

from collections.abc import Callable

from nanochat.contract import RunFile
from nanochat.launch.checks import batch, budget, output_folder, platform_variables, retries
from nanochat.launch.settings import LaunchSettings

__all__ = ["CHECKS", "run_checks"]

CHECKS: tuple[Callable[[LaunchSettings, RunFile], None], ...] = (
    platform_variables.check,
    output_folder.check,
    retries.check,
    budget.check,
    batch.check,
)


def run_checks(settings: LaunchSettings, run: RunFile) -> None:
    """Run all checks; the first that fails raises its `TrainerError`."""
    for check in CHECKS:
        check(settings, run)
