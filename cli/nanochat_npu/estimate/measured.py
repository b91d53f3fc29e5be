"""What one's own measurements add: calibration runs choose the tier, past jobs choose bias and width. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from nanochat_npu.estimate.hardware import accelerator
from nanochat_npu.estimate.inputs import Inputs

__all__ = ["Calibration", "History", "Match", "Tier", "history", "match"]

Tier = Literal["A", "B", "C", "D"]

FULL_WEIGHT = 10
"""Jobs after which one's own history counts as much as the tier's published spread."""
_CLIP = 2.5
"""In robust standard deviations: what lies further out counts as lying there."""


@dataclass(frozen=True)
class Calibration:
    """One measured run.

    Attributes:
        step_s: Median seconds of a step, after those dropped.
        mean_step_s: Mean of the same steps; above the median where the host stalls.
        peak_bytes: Peak of one rank, or None.
        versions: Versions that change speed (torch, torch_npu, cann).
        quick_step_s: Seconds of the fastest steps (one in twenty is faster): what it takes when nothing else runs. None: not kept.
        load_others: Load average of other work while it was measured, or None where nobody looked.
        end_s: From its last event until its processes were gone.
        ended_s: Unix time of its end, and `ran_s` how long it ran: until a few minutes after, it still shows in the load average.
        drift_ln_sd: How its speed wandered (ln); a computer shared with others makes a forecast unsure.
        cheap: Few steps were timed; the result is less sure.
    """

    chip: str
    stack: str
    depth: int
    width: int
    device_batch: int
    tokens_per_step: int
    sequence_len: int
    vocab: int
    world_size: int
    nodes: int
    window_pattern: str
    step_s: float
    mean_step_s: float
    steps: int
    measured_on: str
    peak_bytes: float | None = None
    start_s: float | None = None
    eval_tokens_per_s: float | None = None
    save_bytes_per_s: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    host: str = ""
    quick_step_s: float | None = None
    load_others: float | None = None
    end_s: float | None = None
    ended_s: float | None = None
    ran_s: float | None = None
    drift_ln_sd: float = 0.0
    cheap: bool = False

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second over all ranks, by the mean where the host stalls."""
        return self.tokens_per_step / self.fair_step_s

    @property
    def stalls(self) -> bool:
        """True if the mean leaves the median: GC, data loader or logging hold the ranks up."""
        return self.mean_step_s > 1.03 * self.step_s

    @property
    def fair_step_s(self) -> float:
        """Seconds to reckon with: the median, or the mean where the host stalls."""
        return self.mean_step_s if self.stalls else self.step_s


@dataclass(frozen=True)
class Match:
    """The calibration that serves a plan, the tier that it gives, and why others were passed over."""

    tier: Tier
    calibration: Calibration | None
    passed_over: tuple[str, ...] = ()


def match(inputs: Inputs, records: Sequence[Calibration], versions: dict[str, str] | None = None) -> Match:
    """The best calibration: the same shape (tier A), else another shape on the same chip, stack and world kind (tier B).

    Args:
        inputs: The job.
        records: What is stored, in any order.
        versions: Versions that the job will run with; a record with other ones is passed over, and said so.
    """
    usable, passed = [], []
    for record in records:
        reason = _mismatch(inputs, record, versions or {})
        if reason is None:
            usable.append(record)
        else:
            passed.append(reason)
    exact = [r for r in usable if _same_shape(inputs, r)]
    reasons = tuple(dict.fromkeys(passed))
    if exact:
        return Match("A", max(exact, key=lambda r: r.measured_on), reasons)
    if usable:
        return Match("B", min(usable, key=lambda r: (_distance(inputs, r), r.measured_on)), reasons)
    return Match("C", None, reasons)


def _mismatch(inputs: Inputs, record: Calibration, versions: dict[str, str]) -> str | None:
    if record.chip != inputs.chip:
        return f"chip:{record.chip}"
    if inputs.chip != "cpu" and record.stack != inputs.stack:
        return f"stack:{record.stack}"
    if inputs.chip != "cpu" and _flops_per_s(record) > accelerator(record.chip).vendor_peak_flops:
        return f"impossible:{_flops_per_s(record) / 1e12:,.0f} T"
    for name, version in versions.items():
        if name in record.versions and record.versions[name] != version:
            return f"{name}:{record.versions[name]}"
    return None


def _flops_per_s(record: Calibration) -> float:
    """What one rank computed in a second, attention left out: more than its chip can is no measurement."""
    params = 12.0 * record.width**2 * record.depth + record.vocab * record.width
    return 6.0 * params * record.tokens_per_s / record.world_size


def _same_shape(inputs: Inputs, record: Calibration) -> bool:
    shape = inputs.shape
    return (
        record.depth == shape.depth and record.width == shape.width and record.vocab == shape.padded_vocab
        and record.sequence_len == shape.sequence_len and record.device_batch == inputs.run.pretrain.device_batch
        and record.tokens_per_step == inputs.horizon.tokens_per_step and record.world_size == inputs.world_size
        and record.nodes == inputs.nodes and record.window_pattern == inputs.run.model.window_pattern
    )


def _distance(inputs: Inputs, record: Calibration) -> float:
    """How unlike the calibrated shape is: depth first, then world and nodes."""
    return (
        abs(math.log(record.depth / inputs.shape.depth)) + 0.5 * abs(math.log(record.world_size / inputs.world_size))
        + 0.5 * abs(math.log(record.nodes / inputs.nodes)) + 0.1 * abs(math.log(record.device_batch / inputs.run.pretrain.device_batch))
    )


@dataclass(frozen=True)
class History:
    """What past jobs of a tier say: how many, by how much (ln) they took longer than estimated, and how they scatter."""

    jobs: int
    bias: float
    ln_sd: float


def history(ratios: Sequence[float], ln_sd: float) -> History:
    """Bias and spread after seeing one's own jobs: the tier's spread counts like ten jobs, outliers like ones nearby.

    Args:
        ratios: Actual over estimated time of past jobs of the same tier, chip and stack.
        ln_sd: The tier's own spread.
    """
    logs = [math.log(ratio) for ratio in ratios if ratio > 0]
    if not logs:
        return History(0, 0.0, ln_sd)
    middle = median(logs)
    scale = max(1.4826 * median(abs(x - middle) for x in logs), 0.25 * ln_sd)
    clipped = [min(max(x, middle - _CLIP * scale), middle + _CLIP * scale) for x in logs]
    n = len(clipped)
    weight = n / (n + FULL_WEIGHT)
    variance = sum((x - middle) ** 2 for x in clipped) / n
    return History(n, weight * middle, math.sqrt((1 - weight) * ln_sd**2 + weight * max(variance, (0.25 * ln_sd) ** 2)))
