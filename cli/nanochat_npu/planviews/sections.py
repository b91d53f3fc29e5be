"""The estimate as sections of ``plan``: memory, time, cost, levers, warnings; at most 80 columns."""

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta

from nanochat_npu.estimate import Estimate, Quantiles, accelerator
from nanochat_npu.estimate.explain import is_assumed
from nanochat_npu.estimate.levers import levers, warn
from nanochat_npu.i18n import _
from nanochat_npu.planviews import words
from nanochat_npu.planviews.value import suggested_accum, suggested_set
from nanochat_npu.tables import Section, cells

__all__ = ["all_sections", "cost_section", "lever_section", "memory_section", "short_lines", "time_section", "warning_section", "wrapped"]

_WIDTH = 58
_PIECES = re.compile(r"[⺀-鿿＀-￯]\s*|[^\s⺀-鿿＀-￯]+\s*")
_SMALL_FRAC = 0.005
"""Terms below half a percent of the whole are summed in one line."""


def wrapped(label: str, text: str, width: int = _WIDTH) -> list[tuple[str, str]]:
    """A long value as several rows, the label beside the first."""
    lines = [""]
    # Words, or single characters of a script that has no spaces.
    for piece in _PIECES.findall(text):
        if cells(lines[-1]) + cells(piece.rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += piece
    return [(label if number == 0 else "", line.strip()) for number, line in enumerate(lines)]


def _three(found: Quantiles, show: Callable[[float], str]) -> str:
    point = show(found.p50) if found.p50 is not None else "–"
    return f"{show(found.p10)} / {point} / {show(found.p90)}"


def memory_section(result: Estimate) -> Section:
    """Does it fit, in how much, and what to do if not."""
    memory = result.memory
    peak = memory.peak_bytes / 1e9
    verdicts = {"fits": _("fits"), "tight": _("tight"), "oom": _("does not fit")}
    where = _("NPU") if result.inputs.chip != "cpu" else _("rank")
    if memory.usable_bytes:
        text = _("{verdict}: {peak:.1f} of {usable:.1f} GB per {where} ({share:.1%})").format(
            verdict=verdicts[memory.verdict], peak=peak, usable=memory.usable_bytes / 1e9, where=where, share=memory.peak_bytes / memory.usable_bytes
        )
    else:
        text = _("{peak:.1f} GB per {where}; nobody said how much there is (resources.memory)").format(peak=peak, where=where)
    rows = [(_("verdict"), text + (_(", measured") if memory.measured else ""))]
    parts = ", ".join(f"{words.memory_part(key)} {size / 1e9:.1f}" for key, size in memory.parts.items() if size >= 5e7)
    rows += wrapped(_("of it"), parts)
    if memory.headroom:
        kept = ", ".join(f"{words.memory_part(key)} {size / 1e9:.1f}" for key, size in memory.headroom.items() if size)
        rows += wrapped(_("keep free"), _("{gb:.1f} GB: {parts}").format(gb=sum(memory.headroom.values()) / 1e9, parts=kept))
    if memory.counted_bytes is not None:
        text = _("the verdict rests on peaks of upstream's code on NPUs; counting what this trainer keeps gives {gb:.0f} GB, unproven there")
        rows += wrapped(_("basis"), text.format(gb=memory.counted_bytes / 1e9))
    if memory.suggested_batch:
        rows.append((_("way out"), f"--set {suggested_set(result)}"))
        rows.append(("", _("accumulation {accum}, same batch of {tokens:,} tokens").format(accum=suggested_accum(result), tokens=result.inputs.horizon.tokens_per_step)))
    elif memory.verdict == "oom":
        rows.append((_("way out"), _("not one sequence fits: a smaller depth, or more NPUs")))
    elif memory.verdict == "tight":
        rows += wrapped("", _("HCCL buffers and the allocator's reserve need about 15 %: it may fail"))
    return Section("memory", _("Memory"), rows=tuple(rows))


def _clock(now: datetime, hours: float) -> str:
    """When so many hours have passed; a dash beyond the calendar."""
    try:
        return f"{now + timedelta(hours=hours):%Y-%m-%d %H:%M}"
    except OverflowError:
        return "–"


def _speed_row(result: Estimate) -> str:
    chip, rates = accelerator(result.inputs.chip), result.rates
    speed = _("{speed:,.0f} tokens/s, {step:.2f} s per step").format(speed=rates.tokens_per_s, step=rates.step_s)
    if result.inputs.chip == "cpu":
        return speed
    return speed + _(", MFU {mfu:.0%} of {peak:.0f} T").format(mfu=result.mfu_frac, peak=chip.vendor_peak_flops / 1e12)


def time_section(result: Estimate, now: datetime | None = None) -> Section:
    """How long, how sure, and where the time goes; with a clock, also when it would be done."""
    rows = [(_("P10 / P50 / P90"), _three(result.hours, words.hours))]
    if now is not None:
        rows.append((_("started now"), _three(result.hours, lambda hours: _clock(now, hours))))
    if result.tier == "D":
        rows.append((_("lines below"), _("as if the stack were eager")))
    rows.append((_("speed"), _speed_row(result)))
    rows += wrapped(_("basis"), words.basis(result))
    total = result.middle_h * 3600 if result.tier != "D" else result.likely_s
    shown = [(words.term_text(t.key) + (" *" if is_assumed(t.key) else ""), t.seconds) for t in result.terms]
    if result.allowance_s is not None:
        shown.append((words.term_text("allowance"), result.allowance_s))
    big = [(text, s) for text, s in shown if abs(s) >= _SMALL_FRAC * total]
    rest = sum(s for _text, s in shown) - sum(s for _text, s in big)
    if len(big) < len(shown):
        big.append((_("the rest"), rest))
    table = [(text, words.hours(s / 3600), f"{100 * s / total:.1f} %") for text, s in big]
    table.append((_("all"), words.hours(sum(s for _text, s in shown) / 3600), "100.0 %"))
    if any(text.endswith(" *") for text, _s in big):
        rows.append(("*", _("assumed; your own figures: estimate: in the spec or site file")))
    title = _("Time ({tier})").format(tier=words.tier_text(result))
    return Section("time", title, rows=tuple(rows), header=(_("part"), _("time"), _("share")), table=tuple(table))


def cost_section(result: Estimate) -> Section | None:
    """Quantity x unit x price, and the total, or that there is no price."""
    cost = result.cost
    if result.inputs.chip == "cpu" and cost.price is None:
        return None
    if cost.total is None or cost.price is None:
        npu_hours = cost.lines[0].quantity
        amount = _("{n:,.0f} NPU-hours; ").format(n=npu_hours) if npu_hours is not None else ""
        text = amount + _("price not set: no total. Give one with price: in the spec or site file, or --price 3.0CNY")
        return Section("cost", _("Cost"), rows=tuple(wrapped(_("NPUs"), text)))
    rows = []
    for line in cost.lines:
        if line.quantity is None or line.unit_price is None:
            text = _("the price may be higher or lower: {amount}").format(amount=words.money(line.amount or 0, cost.currency)) if line.amount is not None else "–"
        else:
            text = f"{line.quantity:,.1f} {line.unit} x {line.unit_price:g} {cost.currency}/{line.unit} = {words.money(line.amount or 0, cost.currency)}"
        rows.append((words.cost_line(line.key), text))
    price = cost.price
    rows += wrapped(_("price from"), f"{price.source}, {price.dated}" + (_(", {low:g} to {high:g}").format(low=price.bounds[0], high=price.bounds[1]) if price.low is not None or price.high is not None else ""))
    rows.append((_("P10 / P50 / P90"), _three(cost.total, lambda value: words.money(value, cost.currency))))
    return Section("cost", _("Cost"), rows=tuple(rows))


def lever_section(result: Estimate) -> Section | None:
    """The biggest levers with their effects."""
    found = levers(result)
    if not found:
        return None
    table = []
    for lever in found:
        money = f"{lever.money:+,.0f} {result.cost.currency}" if lever.money is not None else "-"
        sign = "+" if lever.hours >= 0 else "-"
        table.append((words.lever_text(lever), sign + words.hours(abs(lever.hours)), f"{100 * lever.hours_frac:+.1f} %", money))
    return Section("levers", _("Biggest levers"), header=(_("change"), _("time"), "", _("money")), table=tuple(table))


def warning_section(result: Estimate, today: date) -> Section | None:
    """What will cost money or fail later."""
    found = [row for warning in warn(result, today) for row in wrapped("!", words.warn_text(warning))]
    return Section("estimate_warnings", _("Mind"), rows=tuple(found)) if found else None


def all_sections(result: Estimate, today: date, now: datetime | None = None) -> list[Section]:
    """All of it, in order."""
    made = [memory_section(result), time_section(result, now), cost_section(result), lever_section(result), warning_section(result, today)]
    return [section for section in made if section is not None]


def short_lines(result: Estimate) -> list[str]:
    """Memory, time and money in one line each, as ``submit`` shows them before it asks."""
    verdicts = {"fits": _("fits"), "tight": _("tight"), "oom": _("does NOT fit")}
    lines = [_("memory  {verdict}, {peak:.1f} GB").format(verdict=verdicts[result.memory.verdict], peak=result.memory.peak_bytes / 1e9)]
    lines.append(_("time    {hours}  ({tier})").format(hours=_three(result.hours, words.hours), tier=words.tier_text(result)))
    if result.cost.total is not None:
        lines.append(_("cost    {cost}").format(cost=_three(result.cost.total, lambda value: words.money(value, result.cost.currency))))
    elif result.inputs.chip != "cpu":
        lines.append(_("cost    price not set"))
    return lines
