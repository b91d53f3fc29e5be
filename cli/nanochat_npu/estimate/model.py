"""The estimate: memory, time, money, tier, levers and warnings of one job, from plain values to plain values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nanochat.contract import Stage
from nanochat_npu.estimate.contention import Contention, contention
from nanochat_npu.estimate.draws import Failures, Quantiles, Spread, Work, draw_hours, quantiles
from nanochat_npu.estimate.hardware import STACKS, Source, Stack, StackClass, accelerator, link_sources, stack_class
from nanochat_npu.estimate.inputs import Inputs
from nanochat_npu.estimate.measured import Calibration, History, Match, Tier, match
from nanochat_npu.estimate.memory import Memory, memory
from nanochat_npu.estimate.money import Cost, cost_lines, draw_cost, with_price_range
from nanochat_npu.estimate.stages import terms
from nanochat_npu.estimate.terms import Rates, Term, rates, save_interval_s

__all__ = ["TIER_LN_SD", "Estimate", "Knowledge", "estimate", "likely_hours"]

TIER_LN_SD: dict[Tier, float] = {"A": 0.03, "B": 0.12}
"""Spread of calibrated tiers on NPUs (20-step medians against whole runs: within 1.7 %); C and D take the stack's own."""
CPU_TIER_LN_SD: dict[Tier, float] = {"A": 0.10, "B": 0.20}
"""On CPUs, which others use too and which boost and throttle (``dev/LOG.md``: calibrated runs on two shared cores)."""
_NEAR_LN_SD = 0.10
"""HCCS inside a node is measured, so its error is small."""


@dataclass(frozen=True)
class Knowledge:
    """What is known beyond the published figures: one's own calibrations, versions and past jobs (by tier)."""

    calibrations: tuple[Calibration, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    past: dict[Tier, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Estimate:
    """What a job will take.

    Attributes:
        terms: Likely seconds, term by term; with `allowance_s` they sum to the median (to the middle of the range in tier D).
        allowance_s: What stalls, failures and lost work add at the median.
        other: Rates under the other stack, where the stack is not known.
        failures: What may interrupt it.
        contention: What other work on the computer does to a job on its cores.
    """

    inputs: Inputs
    match: Match
    tier: Tier
    rates: Rates
    other: Rates | None
    terms: tuple[Term, ...]
    hours: Quantiles
    cost: Cost
    memory: Memory
    failures: Failures
    history: History
    contention: Contention | None
    draws_h: Sequence[float] = field(repr=False)

    @property
    def likely_s(self) -> float:
        """Sum of the terms, in seconds."""
        return sum(term.seconds for term in self.terms)

    @property
    def allowance_s(self) -> float | None:
        """Median minus the terms: stalls, failures and lost work; None where no point is given."""
        return None if self.hours.p50 is None else self.hours.p50 * 3600 - self.likely_s

    @property
    def middle_h(self) -> float:
        """The median, or the middle of the range where no point is given: for comparisons, not for showing."""
        return self.hours.p50 if self.hours.p50 is not None else (self.hours.p10 * self.hours.p90) ** 0.5

    @property
    def mfu_frac(self) -> float:
        """Model FLOPs utilisation against the vendor's peak, as upstream counts FLOPs."""
        chip, inputs = accelerator(self.inputs.chip), self.inputs
        peak = chip.vendor_peak_flops * inputs.world_size
        return inputs.shape.flops_per_token * self.rates.tokens_per_s / peak

    @property
    def sources(self) -> tuple[Source, ...]:
        """What the figures rest on."""
        found = list(accelerator(self.inputs.chip).sources)
        known = stack_class(self.inputs.stack, self.inputs.chip)
        found += list(known.sources if known else [s for c in STACKS.values() for s in c.sources])
        if self.inputs.world_size > 1:
            found += list(link_sources(self.inputs.chip, self.inputs.nodes))
        return tuple(found)


def _classes(inputs: Inputs) -> tuple[StackClass, StackClass | None]:
    """The stack's figures, or the two known stacks where it is not known."""
    known = stack_class(inputs.stack, inputs.chip)
    return (known, None) if known else (STACKS[Stack.EAGER], STACKS[Stack.FUSED])


def _calibrated(inputs: Inputs, base: Rates, stack: StackClass, found: Match) -> Rates:
    """Rates scaled so that the calibrated shape comes out as measured."""
    record = found.calibration
    if record is None:
        return base
    if record.eval_tokens_per_s is not None:
        base = replace(base, eval_speedup=min(10.0, max(1.0, record.eval_tokens_per_s / record.tokens_per_s)))
    if found.tier == "A":
        return base.scaled(record.fair_step_s / base.step_s)
    shape = replace(inputs.shape, depth=record.depth, width=record.width, padded_vocab=record.vocab, sequence_len=record.sequence_len)
    horizon = replace(inputs.horizon, tokens_per_step=record.tokens_per_step)
    ranks = max(1, record.world_size // record.nodes)
    at_record = replace(inputs, shape=shape, horizon=horizon, nodes=record.nodes, ranks_per_node=ranks)
    return base.scaled(record.fair_step_s / rates(at_record, stack).step_s)


def _as_measured(inputs: Inputs, found: Match) -> Inputs:
    """The job with what a calibration of this very shape says about start-up and storage."""
    record = found.calibration
    if record is None or found.tier != "A":
        return inputs
    site = inputs.site
    if record.start_s is not None:
        site = replace(site, start_s=record.start_s)
    if record.end_s is not None:
        site = replace(site, end_s=record.end_s)
    if record.save_bytes_per_s is not None:
        site = replace(site, storage_gb_per_s=record.save_bytes_per_s / 1e9)
    return replace(inputs, site=site)


def _failures(inputs: Inputs, step: Rates, planned: Sequence[Term]) -> Failures:
    total_s = sum(term.seconds for term in planned)
    train_s = inputs.horizon.steps * step.step_s
    interval = save_interval_s(inputs, train_s, step.step_s) if Stage.PRETRAIN in inputs.run.stages else total_s
    restart = sum(term.seconds for term in planned if term.key.startswith("start."))
    units = inputs.world_size if inputs.chip != "cpu" else inputs.nodes
    return Failures(inputs.site.npu_mtbf_h * 3600 / units, inputs.site.detect_s + restart, min(1.0, 0.5 * interval / max(1e-9, total_s)))


def _work(planned: Sequence[Term], other: Sequence[Term] | None) -> Work:
    sums = {"speed": 0.0, "network": 0.0, "overhead": 0.0}
    for term in planned:
        sums[term.group] += term.seconds
    other_speed = sum(term.seconds for term in other if term.group == "speed") if other is not None else None
    return Work(sums["speed"], sums["network"], sums["overhead"], other_speed)


def _tier(inputs: Inputs, found: Match) -> Tier:
    if found.calibration is not None:
        return found.tier
    return "C" if stack_class(inputs.stack, inputs.chip) else "D"


def _tier_ln_sd(inputs: Inputs, tier: Tier, stack: StackClass) -> float:
    return (CPU_TIER_LN_SD if inputs.chip == "cpu" else TIER_LN_SD).get(tier, stack.ln_sd)


def _spread(inputs: Inputs, tier: Tier, stack: StackClass, past: History, found: Match, others: Contention | None) -> Spread:
    base = _tier_ln_sd(inputs, tier, stack)
    record = found.calibration
    cheap = 2.0 if record is not None and record.cheap else 1.0
    shared = others.ln_sd if others is not None else 0.0
    drift = shared if others is not None else record.drift_ln_sd if record is not None else 0.0
    unsure = accelerator(inputs.chip).uncertain_peak_sd if tier in ("C", "D") else 0.0
    own = past.ln_sd if past.jobs else base
    network = 0.5 if inputs.nodes > 1 and tier != "A" else _NEAR_LN_SD
    overhead = ((0.15 if tier == "A" else 0.35) ** 2 + shared**2) ** 0.5
    return Spread(((own * cheap) ** 2 + drift**2 + unsure**2) ** 0.5, network, overhead)


def _planned(inputs: Inputs, step: Rates, found: Match) -> tuple[tuple[Term, ...], Contention | None]:
    """The terms, with one for other work on the computer where that makes a difference, and what is known of it."""
    listed = terms(inputs, step)
    others = contention(inputs, found.calibration, sum(term.seconds for term in listed))
    if others is None or abs(others.factor - 1) < 0.005:
        return listed, others
    exposed = sum(term.seconds for term in listed if term.group == "speed")
    return (*listed, Term("load.others", exposed * (others.factor - 1), "speed", {**others.values, "exposed_s": exposed})), others


def likely_hours(inputs: Inputs, found: Match | None = None) -> float:
    """Sum of the likely terms in hours: what levers compare, without draws."""
    stack, _other = _classes(inputs)
    step = _calibrated(inputs, rates(inputs, stack), stack, found or Match("C", None))
    return sum(term.seconds for term in _planned(inputs, step, found or Match("C", None))[0]) / 3600


def estimate(inputs: Inputs, knowledge: Knowledge | None = None) -> Estimate:
    """The estimate of a job. The same inputs give the same result, to the last digit."""
    from nanochat_npu.estimate.measured import history

    known = knowledge or Knowledge()
    found = match(inputs, known.calibrations, known.versions)
    inputs = _as_measured(inputs, found)
    stack, other_stack = _classes(inputs)
    if found.calibration is not None:
        other_stack = None
    tier = _tier(inputs, found)
    past = history(known.past.get(tier, ()), _tier_ln_sd(inputs, tier, stack))
    # One's own history shifts the speed itself, so that the terms show it.
    step = _calibrated(inputs, rates(inputs, stack), stack, found).scaled(math.exp(past.bias))
    other = rates(inputs, other_stack).scaled(math.exp(past.bias)) if other_stack else None
    planned, others = _planned(inputs, step, found)
    failures = _failures(inputs, step, planned)
    work = _work(planned, terms(inputs, other) if other else None)
    drawn = draw_hours(work, _spread(inputs, tier, stack, past, found, others), failures)
    hours = quantiles(drawn, point=tier != "D")
    total = draw_cost(inputs, drawn, point=tier != "D")
    price = inputs.price
    peak = found.calibration.peak_bytes if found.tier == "A" and found.calibration else None
    return Estimate(
        inputs=inputs, match=found, tier=tier, rates=step, other=other, terms=planned, hours=hours,
        cost=Cost(with_price_range(cost_lines(inputs, hours.p50), total), total, price.currency if price else None, price),
        memory=memory(inputs, peak), failures=failures, history=past, contention=others, draws_h=drawn,
    )
