"""What a job really took, term by term, from its events. Pure, and total over odd or missing events."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median, stdev
from typing import Any

__all__ = ["Actual", "StepTimes", "actual", "step_times"]


@dataclass(frozen=True)
class Actual:
    """Seconds of a job by what happened in them; they sum to `total_s`.

    Attributes:
        pending_s: From submission until the nodes were given.
        pulling_s: From then until the first process ran: image and volumes; the nodes are held.
        start_up_s: From then until the first stage began, over all attempts.
        training_s: Optimiser updates that counted.
        evaluating_s: Validation, samples, evaluation and other stages.
        saving_s: Writing checkpoints.
        idle_s: Between attempts.
        lost_s: Updates that were done again, since no checkpoint held them.
        ended: The events say that the job is over, for good.
    """

    pending_s: float = 0.0
    pulling_s: float = 0.0
    start_up_s: float = 0.0
    training_s: float = 0.0
    evaluating_s: float = 0.0
    saving_s: float = 0.0
    idle_s: float = 0.0
    lost_s: float = 0.0
    attempts: int = 0
    ended: bool = False

    @property
    def total_s(self) -> float:
        """All of it, waiting included."""
        return self.pending_s + self.held_s

    @property
    def held_s(self) -> float:
        """While NPUs were held: what is paid for."""
        return self.pulling_s + self.start_up_s + self.training_s + self.evaluating_s + self.saving_s + self.idle_s + self.lost_s

    def as_dict(self) -> dict[str, float]:
        """Seconds by term."""
        return {key: round(value, 3) for key, value in asdict(self).items() if key.endswith("_s")}


def _number(event: dict[str, Any], key: str) -> float:
    value = event.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else 0.0


class _Attempt:
    """One start of a job, walked through event by event."""

    def __init__(self, begun_s: float) -> None:
        self.begun_s = self.now_s = begun_s
        self.start_up_s = self.training_s = self.evaluating_s = self.saving_s = 0.0
        self.since_save_s = 0.0
        self.in_stage = self.done = False

    def feed(self, event: dict[str, Any]) -> None:
        passed = max(0.0, _number(event, "t") - self.now_s)
        self.now_s += passed
        if not self.in_stage:
            self.start_up_s += passed
            self.in_stage = event.get("event") == "stage"
            return
        kind = event.get("event")
        if kind == "step":
            took = min(passed, _number(event, "dt_s"))
            self.training_s += took
            self.since_save_s += took
            self.evaluating_s += passed - took
        elif kind == "checkpoint":
            took = min(passed, _number(event, "save_s"))
            self.saving_s += took
            self.evaluating_s += passed - took
            self.since_save_s = 0.0
        else:
            self.evaluating_s += passed
        if kind == "stage" and event.get("status") in ("end", "skip"):
            self.since_save_s = 0.0
        self.done = self.done or (kind == "done" and event.get("reason") != "session_limit")


def actual(
    attempts: Sequence[Iterable[dict[str, Any]]], *, submitted_s: float | None = None, started_s: Sequence[float] = (), ended_s: float | None = None,
    pulling_s: float = 0.0,
) -> Actual:
    """What the attempts of a job took.

    Args:
        attempts: Events of each attempt, in order.
        submitted_s: Unix time of the submission; None leaves waiting at zero.
        started_s: Unix times at which the attempts' processes began, where known; else their first event counts.
        ended_s: Unix time at which the last process was gone, where known.
        pulling_s: How long the first attempt's nodes pulled the image before its process began.
    """
    sums = {"pending_s": 0.0, "pulling_s": 0.0, "start_up_s": 0.0, "training_s": 0.0, "evaluating_s": 0.0, "saving_s": 0.0, "idle_s": 0.0, "lost_s": 0.0}
    previous: _Attempt | None = None
    walked: _Attempt | None = None
    count = 0
    for number, events in enumerate(attempts):
        listed = [event for event in events if _number(event, "t") > 0]
        if not listed:
            continue
        begun = started_s[number] if number < len(started_s) else _number(listed[0], "t")
        walked = _Attempt(min(begun, _number(listed[0], "t")))
        for event in listed:
            walked.feed(event)
        if previous is None:
            waited = max(0.0, walked.begun_s - submitted_s) if submitted_s else 0.0
            sums["pulling_s"] = min(pulling_s, waited) if submitted_s else pulling_s
            sums["pending_s"] = waited - min(pulling_s, waited)
        else:
            # The attempt before this one did not get to its end: what it did since its last checkpoint is done again.
            sums["lost_s"] += previous.since_save_s
            sums["training_s"] -= previous.since_save_s
            sums["idle_s"] += max(0.0, walked.begun_s - previous.now_s)
        for name in ("start_up_s", "training_s", "evaluating_s", "saving_s"):
            sums[name] += getattr(walked, name)
        previous, count = walked, count + 1
    if walked is not None and ended_s is not None:
        sums["evaluating_s"] += max(0.0, ended_s - walked.now_s)
    return Actual(**sums, attempts=count, ended=walked is not None and walked.done)


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a run's steps after the first ones; what a calibration keeps.

    `drift_ln_sd` is how the speed wanders: the spread (ln) of the means of blocks of five steps. On an NPU of one's own it is
    under 1 %; on a computer that is shared with others it is what makes a forecast unsure. `quick_s` is a step that nothing disturbed:
    one in twenty is faster.
    """

    median_s: float
    mean_s: float
    count: int
    tokens_per_step: int
    peak_bytes: float | None
    drift_ln_sd: float = 0.0
    quick_s: float | None = None


def step_times(events: Iterable[dict[str, Any]], *, drop: int, stage: str = "pretrain") -> StepTimes | None:
    """Times of a stage's steps, the first `drop` of this run left out; None if no step is left.

    The first steps are slower: caches, kernels that are chosen or compiled, lazy allocation.
    """
    steps = [event for event in events if event.get("event") == "step" and event.get("stage") == stage and _number(event, "dt_s") > 0]
    kept = steps[drop:]
    if not kept:
        return None
    took = [_number(event, "dt_s") for event in kept]
    tokens = max(round(_number(event, "tokens_per_s") * _number(event, "dt_s")) for event in kept)
    peak = max((_number(event, "memory_bytes") for event in steps), default=0.0)
    return StepTimes(median(took), mean(took), len(took), tokens, peak or None, _drift(took), sorted(took)[len(took) // 20])


def _drift(took: Sequence[float], block: int = 5) -> float:
    means = [math.log(mean(took[i : i + block])) for i in range(0, len(took) - block + 1, block)]
    return stdev(means) if len(means) >= 3 else 0.0
