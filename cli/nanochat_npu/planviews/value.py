"""The estimate as plain values for ``-o json``: every term, with units in the names."""

from datetime import date
from typing import Any

from nanochat_npu.estimate import Estimate, Quantiles, accelerator
from nanochat_npu.estimate.levers import CHANGES, levers, warn
from nanochat_npu.planviews import words

__all__ = ["as_json", "memory_json", "quantiles_json", "suggested_set"]


def quantiles_json(found: Quantiles, digits: int = 3) -> dict[str, float | None]:
    """P10, P50, P90; P50 is null where no point is given."""
    return {"p10": round(found.p10, digits), "p50": round(found.p50, digits) if found.p50 is not None else None, "p90": round(found.p90, digits)}


def suggested_set(result: Estimate) -> str | None:
    """The ``--set`` value that makes the job fit, or None where it does or nothing can."""
    batch = result.memory.suggested_batch
    return f"run.pretrain.device_batch={batch}" if batch else None


def suggested_accum(result: Estimate) -> int | None:
    """Gradient accumulation with the suggested device batch at the same global batch."""
    batch = result.memory.suggested_batch
    if not batch:
        return None
    inputs = result.inputs
    return max(1, inputs.horizon.tokens_per_step // (batch * inputs.shape.sequence_len * inputs.world_size))


def memory_json(result: Estimate) -> dict[str, Any]:
    """Verdict, peak and parts."""
    memory = result.memory
    return {
        "verdict": memory.verdict, "peak_gb": round(memory.peak_bytes / 1e9, 2), "usable_gb": round(memory.usable_bytes / 1e9, 2) if memory.usable_bytes else None,
        "parts": {key: round(size / 1e9, 3) for key, size in memory.parts.items()}, "suggested_device_batch": memory.suggested_batch,
        "headroom": {key: round(size / 1e9, 3) for key, size in memory.headroom.items()},
        "suggested_grad_accum": suggested_accum(result), "suggested_set": suggested_set(result), "measured": memory.measured,
        "counted_gb": round(memory.counted_bytes / 1e9, 2) if memory.counted_bytes is not None else None,
    }


def _cost_json(result: Estimate) -> dict[str, Any] | None:
    cost = result.cost
    if cost.total is None:
        return None
    price = cost.price
    return {
        **quantiles_json(cost.total, 2), "currency": cost.currency,
        "price": {"per_npu_hour": price.likely, "low": price.low, "high": price.high, "source": price.source, "date": str(price.dated or "")} if price else None,
        "lines": [
            {"key": line.key, "quantity": line.quantity, "unit": line.unit, "unit_price": line.unit_price, "amount": line.amount} for line in cost.lines
        ],
    }


def _speed_json(result: Estimate) -> dict[str, Any]:
    """Speed; where the stack is not known, a range and no point."""
    rates, inputs, other = result.rates, result.inputs, result.other
    known = other is None
    between = sorted(each.tokens_per_s for each in (rates, other) if each is not None)
    return {
        "chip": inputs.chip, "stack": str(inputs.stack), "step_s": rates.step_s if known else None, "tokens_per_s": rates.tokens_per_s if known else None,
        "tokens_per_s_range": None if known else between, "mfu_frac": result.mfu_frac if known else None,
        "mfu_peak_flops": accelerator(inputs.chip).vendor_peak_flops, "communication_frac": rates.communication_s / rates.step_s if known else None,
    }


def as_json(result: Estimate, today: date) -> dict[str, Any]:
    """Everything that the estimate says."""
    return {
        "memory": memory_json(result), "time_h": quantiles_json(result.hours), "cost": _cost_json(result), "tier": result.tier, "basis": words.basis(result),
        "levers": [
            {"key": lever.key, "text": words.lever_text(lever), "set": lever.change or None, "hours": round(lever.hours, 3), "hours_frac": round(lever.hours_frac, 4), "money": lever.money}
            for lever in levers(result, limit=len(CHANGES) + 2)
        ],
        "warnings": [{"key": warning.key, "text": words.warn_text(warning), **warning.values} for warning in warn(result, today)],
        "terms": [{"key": term.key, "seconds": round(term.seconds, 3), "group": term.group, "values": term.values} for term in result.terms],
        "allowance_s": result.allowance_s,
        "speed": _speed_json(result),
        "sources": [str(source) for source in result.sources],
    }


