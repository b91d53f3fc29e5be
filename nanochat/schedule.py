"""Rates as pure functions of (step, horizon). The horizon is fixed once; a session may stop early without moving it.

The published d32 run on Ascend was damaged by a horizon that moved with every session (``leideng/nanochat-ascend``:
each nightly session ran a complete warm-down). Formulas are upstream nanochat's at karpathy/nanochat 92d63d4
(``scripts/base_train.py``, ``scripts/chat_sft.py``).
"""

import math
from dataclasses import dataclass
from typing import Protocol

__all__ = ["FineTuneSchedule", "LinearSchedule", "PretrainSchedule", "Rates", "Schedule"]

MOMENTUM_WARMUP_STEPS = 400
MOMENTUM_START, MOMENTUM_PEAK, MOMENTUM_END = 0.85, 0.97, 0.90
SFT_MOMENTUM_WARMUP_STEPS, SFT_MOMENTUM_PEAK = 300, 0.95
RL_MOMENTUM = 0.95
"""Upstream sets no momentum schedule in reinforcement learning; this is its optimizer's constant."""


@dataclass(frozen=True)
class Rates:
    """What one optimiser update takes from the schedule."""

    lr_scale: float
    """Factor on every learning rate."""
    momentum: float
    """Muon's momentum."""
    weight_decay: float
    """Muon's weight decay, before it is multiplied by the learning rate."""


class Schedule(Protocol):
    """Anything that gives the rates of a step."""

    def at(self, step: int) -> Rates:
        """Rates of update number `step`, counted from 0."""


def _between(start: float, end: float, frac: float) -> float:
    """The point a fraction of the way from start to end."""
    return (1 - frac) * start + frac * end


@dataclass(frozen=True)
class PretrainSchedule:
    """Linear warm-up, constant, linear warm-down of the rates; momentum up and down; weight decay along a cosine.

    Args:
        steps: Horizon in updates.
        warmup_steps: Updates of linear warm-up; the first has 1/warmup_steps, never 0.
        warmdown_frac: Part of the horizon that the warm-down takes.
        final_lr_frac: Factor that the warm-down approaches.
        weight_decay: Muon's weight decay at step 0.
    """

    steps: int
    warmup_steps: int = 40
    warmdown_frac: float = 0.65
    final_lr_frac: float = 0.05
    weight_decay: float = 0.0

    @property
    def warmdown_steps(self) -> int:
        """Updates of the warm-down."""
        return round(self.warmdown_frac * self.steps)

    def at(self, step: int) -> Rates:
        """Rates of update number `step`, counted from 0."""
        return Rates(self._lr_scale(step), self._momentum(step), self._weight_decay(step))

    def _lr_scale(self, step: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if step <= self.steps - self.warmdown_steps:
            return 1.0
        return _between(self.final_lr_frac, 1.0, max(0, self.steps - step) / self.warmdown_steps)

    def _momentum(self, step: int) -> float:
        start = self.steps - self.warmdown_steps
        if step < MOMENTUM_WARMUP_STEPS:  # wins over the warm-down in short runs, as upstream has it
            return _between(MOMENTUM_START, MOMENTUM_PEAK, step / MOMENTUM_WARMUP_STEPS)
        if step >= start and self.warmdown_steps:
            return _between(MOMENTUM_PEAK, MOMENTUM_END, min(1.0, (step - start) / self.warmdown_steps))
        return MOMENTUM_PEAK

    def _weight_decay(self, step: int) -> float:
        return self.weight_decay * 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.steps)))


@dataclass(frozen=True)
class FineTuneSchedule:
    """Supervised fine-tuning: no weight decay, a warm-up and warm-down given as parts of the horizon.

    Args:
        steps: Horizon in updates.
        init_lr_frac: Factor on pretraining's rates.
        warmup_frac: Part of the horizon that the warm-up takes.
        warmdown_frac: Part of the horizon that the warm-down takes.
        final_lr_frac: Factor (of init_lr_frac) that the warm-down approaches.
    """

    steps: int
    init_lr_frac: float = 0.8
    warmup_frac: float = 0.0
    warmdown_frac: float = 0.5
    final_lr_frac: float = 0.0

    def at(self, step: int) -> Rates:
        """Rates of update number `step`, counted from 0."""
        done = min(1.0, step / self.steps)
        if done < self.warmup_frac:
            shape = (done + 1e-8) / self.warmup_frac
        elif done <= 1 - self.warmdown_frac or not self.warmdown_frac:
            shape = 1.0
        else:
            shape = _between(1.0, self.final_lr_frac, (done - (1 - self.warmdown_frac)) / self.warmdown_frac)
        momentum = _between(MOMENTUM_START, SFT_MOMENTUM_PEAK, min(1.0, step / SFT_MOMENTUM_WARMUP_STEPS))
        return Rates(self.init_lr_frac * shape, momentum, 0.0)


@dataclass(frozen=True)
class LinearSchedule:
    """Reinforcement learning: the rates fall linearly from init_lr_frac to 0 over the horizon; no weight decay."""

    steps: int
    init_lr_frac: float = 0.05

    def at(self, step: int) -> Rates:
        """Rates of update number `step`, counted from 0."""
        return Rates(self.init_lr_frac * max(0.0, 1 - step / self.steps), RL_MOMENTUM, 0.0)
