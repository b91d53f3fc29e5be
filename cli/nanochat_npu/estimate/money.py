"""Cost of a job: quantity x unit x price, line by line, and its quantiles over the draws."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanochat_npu.estimate.draws import Quantiles, price_factors, quantiles
from nanochat_npu.estimate.hardware import accelerator
from nanochat_npu.estimate.inputs import Inputs, Price
from nanochat_npu.estimate.terms import checkpoint_bytes

__all__ = ["Cost", "CostLine", "cost_lines", "draw_cost", "kept_checkpoints", "npu_hour_watts", "with_price_range"]

@dataclass(frozen=True)
class CostLine:
    """One line: `quantity` of `unit` at `unit_price`. The price is None where it is not set, the quantity where only a range is known."""

    key: str
    quantity: float | None
    unit: str
    unit_price: float | None
    amount: float | None


@dataclass(frozen=True)
class Cost:
    """Cost of the whole job. There is a total only if a price is set; a currency is never converted."""

    lines: tuple[CostLine, ...]
    total: Quantiles | None
    currency: str | None
    price: Price | None


def kept_checkpoints(inputs: Inputs) -> int:
    """Checkpoints that lie on the volume at the end."""
    checkpoint = inputs.run.checkpoint
    return checkpoint.keep_last + (1 if checkpoint.keep_best else 0)


def npu_hour_watts(inputs: Inputs) -> float:
    """Watts at the meter for one NPU at work, with its share of the host and of the cooling."""
    power = inputs.electricity
    if power is None:
        return 0.0
    return accelerator(inputs.chip).watts * (1 + power.host_frac) * power.pue


def _line(key: str, quantity: float | None, unit: str, unit_price: float | None) -> CostLine:
    return CostLine(key, quantity, unit, unit_price, quantity * unit_price if quantity is not None and unit_price is not None else None)


def cost_lines(inputs: Inputs, hours: float | None) -> tuple[CostLine, ...]:
    """The lines for a job that holds its nodes for so many hours (None: nobody can say)."""
    npu_hours = hours * inputs.billed_npus if hours is not None else None
    lines = [_line("npus", npu_hours, "NPU-hour", inputs.price.likely if inputs.price else None)]
    if inputs.storage is not None:
        gb_months = checkpoint_bytes(inputs) / 1e9 * kept_checkpoints(inputs) * inputs.storage.months
        lines.append(_line("storage", gb_months, "GB-month", inputs.storage.per_gb_month))
    if inputs.electricity is not None:
        kwh = npu_hours * npu_hour_watts(inputs) / 1000 if npu_hours is not None else None
        lines.append(_line("electricity", kwh, "kWh", inputs.electricity.per_kwh))
    return tuple(lines)


def with_price_range(lines: tuple[CostLine, ...], total: Quantiles | None) -> tuple[CostLine, ...]:
    """The lines with what a skewed price range adds to the median, so that they sum to it."""
    if total is None or total.p50 is None:
        return lines
    rest = total.p50 - sum(line.amount or 0.0 for line in lines)
    return lines if abs(rest) < 1e-9 * abs(total.p50) else (*lines, CostLine("price_range", None, "", None, rest))


def draw_cost(inputs: Inputs, hours: Sequence[float], *, point: bool) -> Quantiles | None:
    """Quantiles of the cost, or None where no price is set: an unknown price is never 0."""
    price = inputs.price
    if price is None:
        return None
    per_hour = inputs.billed_npus * price.likely
    fixed = sum(line.amount or 0.0 for line in cost_lines(inputs, 0.0))
    if inputs.electricity is not None:
        fixed_per_hour = inputs.billed_npus * npu_hour_watts(inputs) / 1000 * inputs.electricity.per_kwh
    else:
        fixed_per_hour = 0.0
    low, high = price.bounds
    if price.likely <= 0 or low == high:
        rate = per_hour + fixed_per_hour
        return quantiles([h * rate + fixed for h in hours], point=point)
    factors = price_factors(min(1.0, low / price.likely), max(1.0, high / price.likely))
    return quantiles([h * (per_hour * f + fixed_per_hour) + fixed for h, f in zip(hours, factors, strict=True)], point=point)
