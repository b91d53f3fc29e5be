"""Several plans side by side: ``plan --compare`` and ``plan --sweep``, and what ``--explain-estimate`` shows."""

from collections.abc import Sequence
from typing import Any

from nanochat_npu.estimate import Estimate
from nanochat_npu.estimate.explain import Explanation
from nanochat_npu.i18n import _
from nanochat_npu.planviews import words
from nanochat_npu.planviews.sections import wrapped
from nanochat_npu.planviews.value import memory_json, quantiles_json
from nanochat_npu.tables import Section, cells

__all__ = ["comparison", "explanation", "sweep"]


def _cells(result: Estimate) -> tuple[str, ...]:
    total, hours, memory = result.cost.total, result.hours, result.memory
    verdicts = {"fits": _("fits"), "tight": _("tight"), "oom": _("does not fit")}
    middle = words.hours(hours.p50) if hours.p50 is not None else "–"
    money = "-" if total is None else words.money(total.p50, result.cost.currency) if total.p50 is not None else f"{words.money(total.p10, None)}–{words.money(total.p90, result.cost.currency)}"
    return (
        f"{memory.peak_bytes / 1e9:.0f} GB {verdicts[memory.verdict]}", middle, f"{words.hours(hours.p10)}–{words.hours(hours.p90)}",
        f"{result.rates.tokens_per_s:,.0f}" if result.tier != "D" else "–", money,
    )


def _speed(result: Estimate) -> float | None:
    """Tokens per second, or None where no point may be given."""
    return result.rates.tokens_per_s if result.tier != "D" else None


def _tier(result: Estimate) -> str:
    """The tier, and that it rests on no measurement of one's own where that is so."""
    return result.tier if result.match.calibration is not None else _("{tier} uncalibrated").format(tier=result.tier)


def _json(result: Estimate) -> dict[str, Any]:
    total = result.cost.total
    return {
        "memory": memory_json(result), "time_h": quantiles_json(result.hours), "tokens_per_s": _speed(result), "tier": result.tier,
        "cost": {**quantiles_json(total, 2), "currency": result.cost.currency} if total is not None else None,
    }


def sweep(key: str, points: Sequence[tuple[str, Estimate]]) -> Section:
    """One line for each value of a field."""
    header = (key.rpartition(".")[2], _("memory"), _("time"), _("P10–P90"), _("tokens/s"), _("cost"), _("tier"))
    return Section(
        "sweep", _("Sweep over {key}").format(key=key), header=header, table=tuple((value, *_cells(result), _tier(result)) for value, result in points),
        value=[{"key": key, "value": value, **_json(result)} for value, result in points],
    )


def comparison(first: tuple[str, Estimate], second: tuple[str, Estimate]) -> Section:
    """Two plans line by line, old → new, with the difference."""
    (one_name, one), (two_name, two) = first, second
    rows: list[tuple[str, str, str, str]] = [
        _pair(_("memory, GB"), one.memory.peak_bytes / 1e9, two.memory.peak_bytes / 1e9, 1),
        (_("verdict"), one.memory.verdict, two.memory.verdict, "" if one.memory.verdict == two.memory.verdict else "~"),
        (_("tier"), _tier(one), _tier(two), "" if one.tier == two.tier else "~"),
        _pair(_("tokens, M"), one.inputs.horizon.tokens / 1e6, two.inputs.horizon.tokens / 1e6, 0),
        _pair(_("NPUs"), one.inputs.world_size, two.inputs.world_size, 0),
        _pair(_("tokens/s"), _speed(one), _speed(two), 0),
        _pair(_("hours P10"), one.hours.p10, two.hours.p10, 2), _pair(_("hours P50"), one.hours.p50, two.hours.p50, 2),
        _pair(_("hours P90"), one.hours.p90, two.hours.p90, 2),
    ]
    for quantile in ("p10", "p50", "p90"):
        costs = [getattr(e.cost.total, quantile) if e.cost.total is not None else None for e in (one, two)]
        same_currency = one.cost.currency == two.cost.currency
        label = _("cost {quantile}, {currency}").format(quantile=quantile.upper(), currency=one.cost.currency if same_currency else f"{one.cost.currency}/{two.cost.currency}")
        rows.append(_pair(label, costs[0], costs[1], 0, differ=same_currency))
    value = {"from": {"name": one_name, **_json(one)}, "to": {"name": two_name, **_json(two)}}
    return Section("compare", _("{one} → {two}").format(one=one_name, two=two_name), header=("", one_name, two_name, _("change")), table=tuple(rows), value=value)


def _pair(label: str, one: float | None, two: float | None, digits: int, *, differ: bool = True) -> tuple[str, str, str, str]:
    """A line of the comparison. Amounts in two currencies are shown, never subtracted."""
    texts = [f"{value:,.{digits}f}" if value is not None else "–" for value in (one, two)]
    if one is None or two is None or not differ:
        return label, *texts, ""  # type: ignore[return-value]
    change = f"{two - one:+,.{digits}f}" + (f" ({100 * (two - one) / one:+.0f} %)" if one else "")
    return label, texts[0], texts[1], change


def explanation(found: Explanation) -> Section:
    """Formula, inputs and sources of one figure."""
    width = 76 - max(map(cells, (_("formula"), _("source"), *found.values)))
    rows = wrapped(_("formula"), found.formula, width)
    rows += [(name, value if isinstance(value, str) else f"{value:,.6g}") for name, value in found.values.items()]
    for source in found.sources:
        rows += wrapped(_("source"), str(source), width)
    value = {"key": found.key, "formula": found.formula, "values": found.values, "sources": [str(source) for source in found.sources]}
    return Section("explanation", words.term_text(found.key) if "." in found.key or found.key == "allowance" else found.key, rows=tuple(rows), value=value)
