"""What other work on a computer does to a job that runs on its cores: how much slower, and how unsure that makes a forecast. Pure.

A calibration on a busy computer measures the others too. How much they took is told by its mean over its fastest steps, where steps
are short enough that some ran undisturbed, and by the load average; that of now says whether there is more or less of it. NPUs are
not shared, so none of this is asked for a job on them.
"""

import math
from dataclasses import dataclass

from nanochat_npu.estimate.inputs import Inputs
from nanochat_npu.estimate.measured import Calibration

__all__ = ["LOAD_SLOWDOWN", "Contention", "contention", "own_load"]

LOAD_SLOWDOWN = 0.15
"""Slowdown per runnable thread of others and core: jobs of one rank on two cores took 1.3 to 2.3 x their fastest steps' time at loads
of 3 to 14 (``dev/bench_calibration.py``). Less than an equal share would take, since the scheduler shares between sessions."""
JITTER = 1.05
"""Mean over fastest steps of a job that is alone; what is beyond it are others."""
FORESEEN_S = 3600.0
"""The load of this minute says something about the next hour, and less about a whole night."""
_OWN_PER_CORE = 0.75
_LOAD_WINDOW_S = 60.0
"""The kernel's one-minute load average is an exponential one."""


@dataclass(frozen=True)
class Contention:
    """What others do to the speed.

    Attributes:
        factor: Time over that of the rates, which are those of the calibration where there is one; below 1 where it was busier then.
        ln_sd: How unsure that is; the load of the next minutes is not known.
        values: Load averages and slowdowns, by name.
    """

    factor: float
    ln_sd: float
    values: dict[str, float]


def own_load(cores: int, lasted_s: float, since_end_s: float) -> float:
    """What a job of ours that ended so long ago still adds to the one-minute load average.

    Args:
        cores: Cores of the computer, of which it kept three in four busy.
        lasted_s: How long it ran.
        since_end_s: Seconds since its end.
    """
    return _OWN_PER_CORE * cores * (1 - math.exp(-max(0.0, lasted_s) / _LOAD_WINDOW_S)) * math.exp(-max(0.0, since_end_s) / _LOAD_WINDOW_S)


def contention(inputs: Inputs, record: Calibration | None, likely_s: float) -> Contention | None:
    """What others do to a job, or None where nothing is known of them: on NPUs, on another computer's cores.

    Args:
        inputs: The job.
        record: The calibration that it rests on, if any.
        likely_s: How long it takes: the load of this minute counts less in a longer job.
    """
    now = inputs.load_others
    if inputs.chip != "cpu" or (record is not None and record.quick_step_s is None):
        return None
    cores = max(1.0, inputs.cores_per_rank * inputs.world_size)
    if record is None or record.quick_step_s is None:
        return None if now is None else _uncalibrated(now, cores, likely_s)
    then = max(_usual(record.load_others or 0.0, cores), record.fair_step_s / (JITTER * record.quick_step_s))
    soon = then if now is None else _usual(now, cores)
    middle = then * (soon / then) ** (0.5 * _foreseen(likely_s))
    values = {"slowdown_calibrated": then, "slowdown_at_this_load": soon, "fastest_step_s": record.quick_step_s}
    values |= {name: load for name, load in (("load_calibrated", record.load_others), ("load_now", now)) if load is not None}
    return Contention(middle / then, math.hypot(_unsure(middle), 0.5 * math.log(soon / then), 0.5 * record.drift_ln_sd), values)


def _uncalibrated(load: float, cores: float, likely_s: float) -> Contention:
    slowdown = _usual(load, cores)
    return Contention(slowdown ** _foreseen(likely_s), _unsure(slowdown), {"load_now": load, "slowdown_at_this_load": slowdown})


def _usual(load: float, cores: float) -> float:
    """The slowdown that a load average of others usually makes."""
    return 1 + LOAD_SLOWDOWN * load / cores


def _unsure(slowdown: float) -> float:
    """Spread (ln) of a slowdown: the others may stop, or be twice as many."""
    return math.hypot(0.35 * math.log(slowdown), 0.8 * math.log(2 - 1 / slowdown))


def _foreseen(likely_s: float) -> float:
    return min(1.0, FORESEEN_S / max(1.0, likely_s))
