"""Guards of a training loop: small objects that look at the run after every step and may end it.

One hook for all of them: budget and deadline here, others by appending to `Context.guards`. A guard runs on every rank;
if any rank's guard objects, all ranks stop after the same step, write a checkpoint, and leave with the objection's code.
"""

import time
from dataclasses import dataclass, field
from typing import Protocol

from nanochat.contract import BudgetState, ExitCode

__all__ = ["MARGIN_S", "BudgetGuard", "Guard", "Objection", "Progress"]


@dataclass(frozen=True)
class Progress:
    """What a guard gets to see after a step."""

    stage: str
    step: int
    steps: int
    loss: float
    step_s: float
    save_s: float
    """What the last checkpoint took; 0 before the first."""


@dataclass(frozen=True)
class Objection:
    """Why the run must end now, after a checkpoint."""

    code: ExitCode
    message: str
    hint: str | None = None


class Guard(Protocol):
    """Looks at the run after a step."""

    def after_step(self, progress: Progress) -> Objection | None:
        """An objection to going on, or None."""


MARGIN_S = 5.0
"""Kept back beside one step and two checkpoints."""


@dataclass
class BudgetGuard:
    """Ends the run while there is still time to write a checkpoint.

    Args:
        budget: Deadline and seconds that all attempts together may take.
        started: Unix time at which this attempt began.
    """

    budget: BudgetState
    started: float = field(default_factory=time.time)

    def after_step(self, progress: Progress) -> Objection | None:
        """An objection once another step and a checkpoint might not fit any more."""
        now = time.time()
        need_s = progress.step_s + 2 * progress.save_s + MARGIN_S
        if self.budget.deadline_s is not None and now + need_s > self.budget.deadline_s:
            return Objection(ExitCode.BUDGET, f"the deadline is {self.budget.deadline_s - now:.0f} s away", "set budget anew and resubmit")
        spent = self.budget.spent_s + now - self.started
        if self.budget.max_run_s is not None and spent + need_s > self.budget.max_run_s:
            return Objection(
                ExitCode.BUDGET, f"{spent:.0f} of {self.budget.max_run_s:.0f} s are spent", "raise budget.max_total or lifecycle.max_hours"
            )
        return None
