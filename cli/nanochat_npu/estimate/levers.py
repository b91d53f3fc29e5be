"""What would change the estimate most, computed by estimating the changed job; and what a person should be warned of."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date

from nanochat.contract import Horizon, Stage
from nanochat_npu.estimate.hardware import Stack
from nanochat_npu.estimate.inputs import Inputs
from nanochat_npu.estimate.memory import FITS_FRAC, part_bytes, usable_memory
from nanochat_npu.estimate.model import Estimate, likely_hours
from nanochat_npu.estimate.terms import checkpoint_bytes, save_interval_s

__all__ = ["CHANGES", "PRICE_AGE_DAYS", "Lever", "Warn", "levers", "warn", "young_daly_s"]

PRICE_AGE_DAYS = 90
"""Older prices are pointed out."""
_SMALLEST = 0.005
"""Levers below half a percent of time and money are not shown."""
_SPREAD_OUT_NPUS = 8
"""NPUs of one server of the 910B family; more nodes are proposed only for whole ones."""


@dataclass(frozen=True)
class Lever:
    """One change and what it does.

    Attributes:
        key: Which change; texts are the caller's.
        change: A ``--set`` value that makes it, or "" where another image or command does.
        hours: Change of the likely time (negative is shorter).
        hours_frac: The same relative to the whole job.
        money: Change of the likely cost in the price's currency, or None without a price.
        values: Numbers for the text.
    """

    key: str
    change: str
    hours: float
    hours_frac: float
    money: float | None
    values: dict[str, float]


@dataclass(frozen=True)
class Warn:
    """Something that will cost money or fail later. Texts are the caller's."""

    key: str
    values: dict[str, float | str]


def young_daly_s(save_s: float, mtbf_s: float) -> float:
    """The interval between saves that loses least: sqrt(2 x time of one save x mean time between failures)."""
    return math.sqrt(2 * save_s * mtbf_s)


def _fused(inputs: Inputs) -> tuple[Inputs, str, dict[str, float]] | None:
    if inputs.chip == "cpu" or inputs.stack is not Stack.EAGER:
        return None
    return replace(inputs, stack=Stack.FUSED), "estimate.stack=fused", {}


def _pretrain(inputs: Inputs, **changes: object) -> Inputs:
    run = inputs.run.model_copy(update={"pretrain": inputs.run.pretrain.model_copy(update=changes)})
    return replace(inputs, run=run)


def _eval_interval(inputs: Inputs) -> tuple[Inputs, str, dict[str, float]] | None:
    every = inputs.run.pretrain.eval_every
    if Stage.PRETRAIN not in inputs.run.stages or not every or every * 4 > inputs.horizon.steps:
        return None
    return _pretrain(inputs, eval_every=every * 4), f"run.pretrain.eval_every={every * 4}", {"from": every, "to": every * 4}


def _eval_tokens(inputs: Inputs) -> tuple[Inputs, str, dict[str, float]] | None:
    tokens = inputs.run.pretrain.eval_tokens
    if Stage.PRETRAIN not in inputs.run.stages or tokens < 8 * 524_288:
        return None
    return _pretrain(inputs, eval_tokens=tokens // 4), f"run.pretrain.eval_tokens={tokens // 4}", {"from": tokens, "to": tokens // 4}


def _world(inputs: Inputs, nodes: int, ranks: int) -> Inputs | None:
    """The job on other NPUs at the same global batch, or None where that does not divide."""
    micro = inputs.run.pretrain.device_batch * inputs.shape.sequence_len * nodes * ranks
    if inputs.horizon.tokens_per_step % micro:
        return None
    horizon = replace(inputs.horizon, grad_accum=inputs.horizon.tokens_per_step // micro)
    billed = max(inputs.billed_per_node, ranks) if inputs.billed_per_node else 0
    return replace(inputs, nodes=nodes, ranks_per_node=ranks, billed_per_node=billed, horizon=horizon)


def _whole_node(inputs: Inputs) -> tuple[Inputs, str, dict[str, float]] | None:
    if inputs.chip == "cpu" or inputs.ranks_per_node >= _SPREAD_OUT_NPUS or inputs.nodes > 1:
        return None
    other = _world(inputs, 1, _SPREAD_OUT_NPUS)
    return (other, f"resources.npus_per_node={_SPREAD_OUT_NPUS}", {"from": inputs.ranks_per_node, "to": _SPREAD_OUT_NPUS}) if other else None


def _more_nodes(inputs: Inputs) -> tuple[Inputs, str, dict[str, float]] | None:
    if inputs.chip == "cpu" or inputs.ranks_per_node < _SPREAD_OUT_NPUS:
        return None
    other = _world(inputs, inputs.nodes * 2, inputs.ranks_per_node)
    return (other, f"resources.nodes={inputs.nodes * 2}", {"from": inputs.nodes, "to": inputs.nodes * 2}) if other else None


def _batch(inputs: Inputs) -> tuple[Inputs, str, dict[str, float]] | None:
    """Twice the global batch halves updates and communication; the loss curve changes with it."""
    if Stage.PRETRAIN not in inputs.run.stages or inputs.world_size == 1:
        return None
    batch = inputs.horizon.tokens_per_step * 2
    horizon: Horizon = replace(inputs.horizon, tokens_per_step=batch, grad_accum=inputs.horizon.grad_accum * 2, steps=max(1, inputs.horizon.steps // 2))
    return replace(inputs, horizon=horizon), f"run.pretrain.tokens_per_step={batch}", {"from": batch // 2, "to": batch}


CHANGES: dict[str, Callable[[Inputs], tuple[Inputs, str, dict[str, float]] | None]] = {
    "fused": _fused, "eval_interval": _eval_interval, "eval_tokens": _eval_tokens, "whole_node": _whole_node, "more_nodes": _more_nodes,
    "batch": _batch,
}
"""Changes by name, each giving the changed job, the ``--set`` value that makes it and numbers for its text, or None where it does not apply."""


def levers(result: Estimate, limit: int = 5) -> tuple[Lever, ...]:
    """The changes that matter most, the biggest effect on money (else on time) first."""
    base_h = likely_hours(result.inputs, result.match)
    found = list(_changed(result, base_h))
    found += [lever for lever in (_save_interval(result), _window(result, base_h)) if lever is not None]
    found = [lever for lever in found if abs(lever.hours_frac) >= _SMALLEST]
    return tuple(sorted(found, key=lambda lever: -max(abs(lever.hours_frac), abs(lever.money or 0.0) / max(1e-9, _money(result, base_h) or 1e300)))[:limit])


def _money(result: Estimate, hours: float) -> float | None:
    price = result.inputs.price
    return None if price is None else hours * result.inputs.billed_npus * price.likely


def _changed(result: Estimate, base_h: float) -> Iterator[Lever]:
    for key, change in CHANGES.items():
        changed = change(result.inputs)
        if changed is None:
            continue
        other, setting, values = changed
        hours = likely_hours(other, result.match if key != "fused" else None)
        base = base_h if key != "fused" or result.match.calibration is None else likely_hours(result.inputs)
        price = result.inputs.price
        money = None if price is None else (hours * other.billed_npus - base * result.inputs.billed_npus) * price.likely
        yield Lever(key, setting, hours - base, (hours - base) / base, money, values)


def _save_interval(result: Estimate) -> Lever | None:
    """Young and Daly's interval against the planned one: time spent saving plus work expected to be lost."""
    inputs = result.inputs
    if Stage.PRETRAIN not in inputs.run.stages:
        return None
    step_s = result.rates.step_s
    train_s = inputs.horizon.steps * step_s
    save_s = checkpoint_bytes(inputs) / 1e9 / inputs.site.storage_gb_per_s
    best = min(train_s, max(save_s, young_daly_s(save_s, result.failures.mtbf_s)))
    now = save_interval_s(inputs, train_s, step_s)

    def loss_s(interval: float) -> float:
        return train_s * (save_s / interval + 0.5 * interval / result.failures.mtbf_s)

    change_h = (loss_s(best) - loss_s(now)) / 3600
    minutes = max(1, round(best / 60))
    return Lever(
        "save_interval", f"run.checkpoint.every_minutes={minutes}", change_h, change_h / result.middle_h, _money(result, change_h),
        {"from_minutes": now / 60, "to_minutes": float(minutes)},
    )


def _window(result: Estimate, base_h: float) -> Lever | None:
    """What short windows would save if a kernel skipped what they mask; nobody has measured that on NPUs."""
    inputs = result.inputs
    shape = inputs.shape
    short = sum(min(window, shape.sequence_len) for window in shape.windows)
    full = shape.depth * shape.sequence_len
    if Stage.PRETRAIN not in inputs.run.stages or short == full or inputs.chip == "cpu":
        return None
    # A query sees half its window on average where the window is the whole row, and nearly all of a short one.
    executed = sum(w / 2 if w >= shape.sequence_len else w - w * w / (2 * shape.sequence_len) for w in shape.windows)
    attention_frac = 6.0 * shape.width * full / (6.0 * shape.parameters.scaling + 6.0 * shape.width * full)
    saved_frac = 1 - executed / (full / 2)
    change_h = -inputs.horizon.steps * result.rates.matmul_s * attention_frac * saved_frac / 3600
    return Lever("window", f"run.model.window_pattern={inputs.run.model.window_pattern}", change_h, change_h / base_h, _money(result, change_h), {"executed_frac": executed * 2 / full})


def warn(result: Estimate, today: date) -> tuple[Warn, ...]:
    """What the plan should say aloud."""
    return tuple(_warnings(result, today))


def _warnings(result: Estimate, today: date) -> Iterator[Warn]:
    inputs, checkpoint = result.inputs, result.inputs.run.checkpoint
    pretrains = Stage.PRETRAIN in inputs.run.stages
    train_h = inputs.horizon.steps * result.rates.step_s / 3600
    if pretrains and not checkpoint.every_steps and not checkpoint.every_minutes and train_h > 1:
        yield Warn("saves_only_at_end", {"hours": train_h})
    if Stage.DATA in inputs.run.stages and inputs.chip != "cpu":
        data_h = sum(term.seconds for term in result.terms if term.key.startswith("data")) / 3600
        yield Warn("data_on_npus", {"hours": data_h, "npu_hours": data_h * inputs.billed_npus})
    sft = inputs.run.sft
    if Stage.SFT in inputs.run.stages and sft.steps is None and any("." in name or "/" in name for name in sft.data):
        yield Warn("own_conversations", {"tokens": inputs.conversations_tokens})
    if inputs.world_size & (inputs.world_size - 1):
        yield Warn("world_not_power_of_two", {"world_size": inputs.world_size, "tokens_per_step": inputs.horizon.tokens_per_step})
    if inputs.shape.padded_vocab % inputs.world_size:
        yield Warn("vocab_does_not_divide", {"vocab": inputs.shape.padded_vocab, "world_size": inputs.world_size})
    if pretrains and inputs.nodes > 1 and inputs.chip != "cpu":
        yield Warn("roce_share", {"share": result.rates.communication_s / result.rates.step_s})
    if result.match.calibration is not None and result.match.calibration.stalls:
        record = result.match.calibration
        yield Warn("host_stalls", {"factor": record.mean_step_s / record.step_s})
    for reason in result.match.passed_over if result.match.calibration is None else ():
        yield Warn("calibration_passed_over", {"reason": reason})
    if inputs.billed_per_node > inputs.ranks_per_node and inputs.chip != "cpu":
        yield Warn("whole_nodes_billed", {"billed": inputs.billed_npus, "used": inputs.world_size})
    if inputs.price and inputs.price.dated and (today - inputs.price.dated).days > PRICE_AGE_DAYS:
        yield Warn("old_price", {"days": (today - inputs.price.dated).days})
    yield from _memory_warnings(inputs)


def _memory_warnings(inputs: Inputs) -> Iterator[Warn]:
    """RL and SFT may ask for a bigger batch than pretraining; their memory is the same formula."""
    from nanochat_npu.estimate.hardware import stack_class

    stack, usable = stack_class(inputs.stack, inputs.chip), usable_memory(inputs)
    if stack is None or usable is None:
        return
    for stage, batch in ((Stage.SFT, inputs.run.sft.device_batch), (Stage.RL, inputs.run.rl.device_batch)):
        if stage in inputs.run.stages and batch and batch > inputs.run.pretrain.device_batch:
            peak = sum(part_bytes(inputs, batch, stack).values())
            if peak > FITS_FRAC * usable:
                yield Warn("stage_memory", {"stage": stage.value, "batch": batch, "gb": peak / 1e9})
