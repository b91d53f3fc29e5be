"""Cost and time against a swept field, with bands, as SVG or PNG. The only module that imports matplotlib (extra ``plot``)."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanochat_npu.errors import MissingExtra, UsageError
from nanochat_npu.estimate import Estimate, Quantiles
from nanochat_npu.i18n import _

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_sweep"]

FORMS = (".svg", ".png")
_BLUE, _ORANGE = "#1f5fa8", "#c2571a"


def plot_sweep(path: Path, key: str, points: Sequence[tuple[str, Estimate]]) -> None:
    """Draw time (and cost, where there is a price) over the swept values, P10 to P90 as a band; what does not fit is marked, and the price carries its source.

    Raises:
        MissingExtra: matplotlib is not installed.
        UsageError: Another form than .svg or .png, or the file cannot be written.
    """
    if path.suffix.lower() not in FORMS:
        raise UsageError(_("a plot is an .svg or a .png file"), where=str(path))
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra(_("plots need matplotlib"), where="--plot", hint="pip install 'nanochat-npu[plot]'") from error
    # The same estimate gives the same file: no date, no random ids.
    with matplotlib.rc_context({"svg.hashsalt": "nanochat-npu", "svg.fonttype": "none", "font.size": 10}):
        figure = _figure(Figure, key, points)
        try:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else {"Software": None})
        except OSError as error:
            raise UsageError(_("cannot write {path}: {reason}").format(path=path, reason=error.strerror), where="--plot") from error


def _figure(figure_class: Any, key: str, points: Sequence[tuple[str, Estimate]]) -> Any:
    currency = points[0][1].cost.currency
    priced = currency is not None and all(e.cost.total is not None and e.cost.currency == currency for _v, e in points)
    figure = figure_class(figsize=(7.2, 4.2 if not priced else 7.0), layout="constrained")
    axes = figure.subplots(2 if priced else 1, 1, sharex=True, squeeze=False)[:, 0]
    labels = [value for value, _estimate in points]
    places = _places(labels)
    fits = [estimate.memory.verdict != "oom" for _v, estimate in points]
    _band(axes[0], places, _Series([e.hours for _v, e in points], fits, _BLUE, "hours"))
    if priced:
        _band(axes[1], places, _Series([e.cost.total for _v, e in points if e.cost.total is not None], fits, _ORANGE, f"{currency}"))
    for axis in axes:
        if _doubling(places):
            axis.set_xscale("log", base=2)
            axis.minorticks_off()
        axis.set_xticks(places or range(len(labels)), labels)
        axis.grid(alpha=0.25)
        axis.set_ylim(0, 1.15 * axis.get_ylim()[1])
        axis.margins(x=0.08)
        axis.yaxis.set_major_formatter("{x:,.10g}")
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    _headings(axes, key, points)
    return figure


def _headings(axes: Sequence["Axes"], key: str, points: Sequence[tuple[str, Estimate]]) -> None:
    """What was swept, on which chip, how sure it is; what stays the same; and whose price it is."""
    first = points[0][1]
    tiers = sorted({estimate.tier for _value, estimate in points})
    sure = f"tier {', '.join(tiers)}" + (": uncalibrated" if any(e.match.calibration is None for _v, e in points) else "")
    axes[0].set_title(f"{key.rpartition('.')[2]} on {first.inputs.chip}, {sure}", loc="left", fontsize=11)
    axes[0].legend(loc="upper center", ncols=3, frameon=False, fontsize=9)
    axes[-1].set_xlabel(key)
    price = first.cost.price
    if len(axes) > 1 and price is not None:
        low, high = price.bounds
        amount = f"{price.likely:g}" if low == high else f"{low:g} to {high:g}, likely {price.likely:g}"
        text = f"price: {amount} {price.currency} per NPU-hour; {price.source}, {price.dated}"
        axes[-1].set_xlabel(key + "\n\n" + "\n".join(textwrap.wrap(text, 100)), fontsize=9)


def _places(labels: Sequence[str]) -> list[float]:
    """Places of numbers on the axis; none for words, which have no order and no distance."""
    try:
        return [float(label) for label in labels]
    except ValueError:
        return []


def _doubling(places: Sequence[float]) -> bool:
    """True for 1, 2, 4, 8: they are set at equal distances."""
    return len(places) > 2 and all(b == 2 * a > 0 for a, b in pairwise(places))


@dataclass(frozen=True)
class _Series:
    """Quantiles in the order of the places, whether each point's memory fits, a colour and a unit."""

    found: Sequence[Quantiles]
    fits: Sequence[bool]
    color: str
    unit: str


def _band(axis: "Axes", places: Sequence[float], series: _Series) -> None:
    """A line with its band over numbers; a bar from P10 to P90 for each of several words."""
    low, high = [q.p10 for q in series.found], [q.p90 for q in series.found]
    at = places or list(range(len(series.found)))
    if places:
        axis.fill_between(at, low, high, color=series.color, alpha=0.18, linewidth=0, label="P10 to P90")
        axis.plot(at, [q.p50 if q.p50 is not None else float("nan") for q in series.found], "-", color=series.color, linewidth=1.5)
    else:
        axis.vlines(at, low, high, color=series.color, alpha=0.35, linewidth=12, label="P10 to P90")
    for fits, marker, label in ((True, "o", "median"), (False, "X", "median; does not fit in memory")):
        shown = [(x, q.p50) for x, q, ok in zip(at, series.found, series.fits, strict=True) if q.p50 is not None and ok == fits]
        if shown:
            axis.plot([x for x, _y in shown], [y for _x, y in shown], marker, color=series.color if fits else "black", markersize=5 if fits else 7, label=label)
    for x, q in zip(at, series.found, strict=True):
        if q.p50 is not None:
            axis.annotate(_short(q.p50), (x, q.p50), xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8, color="#333333")
    axis.set_ylabel(series.unit)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
