"""10,000 seeded draws: what the errors of the terms do to the whole job's time and cost.

Drawn by Latin hypercube: every quantity takes each of its 10,000 quantiles once, in an order shuffled by the seed, so the
quantiles of the result hardly depend on it. All estimates share the draws: a longer job is longer in every draw, and
differences between plans are not noise. Time and price are drawn separately; a P90 of cost is never P90 x P90.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

__all__ = ["DRAWS", "SEED", "Failures", "Quantiles", "Spread", "Work", "draw_hours", "price_factors", "quantiles"]

DRAWS = 10_000
SEED = 20_261_130
NETWORK_LN_SD = 0.5
"""Between nodes: no HCCL figure over RoCE is published."""
OVERHEAD_LN_SD = 0.35
STALL_MEAN = 0.02
"""One-sided: four boxes ran a published step time 1-10 % slower; a job never runs faster than its device."""
MTBF_LN_SD = 1.27
"""9,200 and 240,000 h per NPU, taken as P10 and P90."""


@dataclass(frozen=True)
class Quantiles:
    """P10, P50 and P90; `p50` is None where no point may be given."""

    p10: float
    p50: float | None
    p90: float


@dataclass(frozen=True)
class Spread:
    """Errors (ln) of the groups, and the mean of the one-sided stalls."""

    speed_ln_sd: float
    network_ln_sd: float = NETWORK_LN_SD
    overhead_ln_sd: float = OVERHEAD_LN_SD
    stall_mean: float = STALL_MEAN


@dataclass(frozen=True)
class Failures:
    """What interrupts a job: mean time between failures of all NPUs together, and what one costs beyond lost work."""

    mtbf_s: float
    cost_s: float
    lost_frac: float
    """Part of the job that one failure loses on average (half the interval between saves)."""


@dataclass(frozen=True)
class Work:
    """Likely seconds by group. `speed_other` is the same work under the other stack, where the stack is not known."""

    speed_s: float
    network_s: float
    overhead_s: float
    speed_other_s: float | None = None

    @property
    def total_s(self) -> float:
        """Sum of the groups."""
        return self.speed_s + self.network_s + self.overhead_s


@lru_cache(maxsize=16)
def _uniform(stream: int, seed: int) -> tuple[float, ...]:
    """The mid-points of 10,000 equal slices of (0, 1), shuffled."""
    order = [(i + 0.5) / DRAWS for i in range(DRAWS)]
    random.Random(seed * 1000 + stream).shuffle(order)
    return tuple(order)


@lru_cache(maxsize=16)
def _normal(stream: int, seed: int) -> tuple[float, ...]:
    inverse = NormalDist().inv_cdf
    return tuple(map(inverse, _uniform(stream, seed)))


@lru_cache(maxsize=64)
def _lognormal(stream: int, ln_sd: float, seed: int) -> tuple[float, ...]:
    exp = math.exp
    return tuple([exp(ln_sd * z) for z in _normal(stream, seed)])


@lru_cache(maxsize=16)
def _stalls(mean: float, seed: int) -> tuple[float, ...]:
    log = math.log
    return tuple([1.0 - mean * log(u) for u in _uniform(3, seed)])


@lru_cache(maxsize=64)
def _speed(spread: Spread, seed: int) -> tuple[float, ...]:
    pairs = zip(_lognormal(0, spread.speed_ln_sd, seed), _stalls(spread.stall_mean, seed), strict=True)
    return tuple([factor * stall for factor, stall in pairs])


def _speed_seconds(work: Work, spread: Spread, seed: int) -> list[float]:
    factors = _speed(spread, seed)
    if work.speed_other_s is None:
        likely = work.speed_s
        return [likely * factor for factor in factors]
    either = (work.speed_s, work.speed_other_s)
    return [either[u < 0.5] * factor for u, factor in zip(_uniform(6, seed), factors, strict=True)]


def _with_failures(seconds: list[float], failures: Failures, seed: int) -> list[float]:
    """Adds lost time. The number of failures is Poisson; its draw is inverted, so longer jobs never have fewer."""
    result = []
    rate = 1.0 / failures.mtbf_s
    for took, u, mtbf_factor in zip(seconds, _uniform(4, seed), _lognormal(5, MTBF_LN_SD, seed), strict=True):
        expected = took * rate / mtbf_factor
        if expected < 700 and u > math.exp(-expected):
            took += _poisson(u, expected) * (failures.cost_s + failures.lost_frac * took)
        elif expected >= 700:
            took += expected * (failures.cost_s + failures.lost_frac * took)
        result.append(took)
    return result


def _poisson(u: float, expected: float) -> int:
    count, probability = 0, math.exp(-expected)
    cumulative = probability
    while u > cumulative and probability > 0:
        count += 1
        probability *= expected / count
        cumulative += probability
    return count


def draw_hours(work: Work, spread: Spread, failures: Failures | None, seed: int = SEED) -> list[float]:
    """Hours of the whole job in each draw, in the order of the draws."""
    network = _lognormal(1, spread.network_ln_sd, seed)
    overhead = _lognormal(2, spread.overhead_ln_sd, seed)
    network_s, overhead_s = work.network_s, work.overhead_s
    seconds = [
        speed + network_s * n + overhead_s * o for speed, n, o in zip(_speed_seconds(work, spread, seed), network, overhead, strict=True)
    ]
    if failures is not None:
        seconds = _with_failures(seconds, failures, seed)
    return [s / 3600 for s in seconds]


@lru_cache(maxsize=32)
def price_factors(low: float, high: float, seed: int = SEED) -> tuple[float, ...]:
    """Price of each draw relative to the likely one: triangular between low and high (both relative, low <= 1 <= high)."""
    if high - low <= 0:
        return (1.0,) * DRAWS
    cut = (1.0 - low) / (high - low)
    result = []
    for u in _uniform(7, seed):
        below = low + math.sqrt(u * (high - low) * (1.0 - low))
        result.append(below if u < cut else high - math.sqrt((1 - u) * (high - low) * (high - 1.0)))
    return tuple(result)


def quantiles(values: Sequence[float], *, point: bool = True) -> Quantiles:
    """P10, P50 and P90 of the draws; no P50 where `point` is false."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return Quantiles(ordered[round(0.1 * last)], ordered[round(0.5 * last)] if point else None, ordered[round(0.9 * last)])
