"""The budget is not spent yet."""

import time

from nanochat import ledger
from nanochat.contract import ExitCode, RunFile
from nanochat.errors import TrainerError
from nanochat.guards import MARGIN_S
from nanochat.launch.settings import LaunchSettings

__all__ = ["check"]


def check(settings: LaunchSettings, run: RunFile) -> None:
    """Refuse a start for which no time is left.

    Raises:
        TrainerError: With BUDGET, which no policy restarts.
    """
    budget = run.budget
    if budget.deadline_s is not None and time.time() >= budget.deadline_s:
        raise TrainerError("the deadline of this job has passed", code=ExitCode.BUDGET, where="budget", hint="set the budget anew and submit again")
    if budget.max_run_s is None:
        return
    spent = budget.spent_s + ledger.spent_s(settings.job_dir)
    # What the guard of an earlier attempt kept back for its checkpoint is not enough to begin another.
    rest = max(2 * MARGIN_S, 0.05 * budget.max_run_s) if spent else 0.0
    if spent + rest >= budget.max_run_s:
        raise TrainerError(
            f"earlier attempts took {spent:.0f} s of the {budget.max_run_s:.0f} s that all may take", code=ExitCode.BUDGET, where="budget",
            hint="raise budget.max_total or budget.max_hours and submit again",
        )
