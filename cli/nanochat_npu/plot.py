"""Cost and time against a swept field, with bands, as SVG or PNG. The only module that imports matplotlib (extra ``plot``)."""

from collections.abc import Sequence
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
    """Draw time (and cost, where there is a price) over the swept values, P10 to P90 as a band.

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
    figure = figure_class(figsize=(7.2, 4.0 if not priced else 6.4), layout="constrained")
    axes = figure.subplots(2 if priced else 1, 1, sharex=True, squeeze=False)[:, 0]
    labels = [value for value, _estimate in points]
    places = _places(labels)
    _band(axes[0], places, [e.hours for _v, e in points], _BLUE, "hours, P10 to P90")
    if priced:
        _band(axes[1], places, [e.cost.total for _v, e in points if e.cost.total is not None], _ORANGE, f"{currency}, P10 to P90")
    for axis in axes:
        axis.set_xticks(places, labels)
        axis.grid(alpha=0.25)
        axis.set_ylim(bottom=0)
    oom = [place for place, (_v, e) in zip(places, points, strict=True) if e.memory.verdict == "oom"]
    if oom:
        axes[0].plot(oom, [0] * len(oom), "x", color="black", clip_on=False, label="does not fit")
        axes[0].legend(loc="upper left", frameon=False)
    tiers = ", ".join(sorted({e.tier for _v, e in points}))
    axes[0].set_title(f"{key}   (tier {tiers}{', uncalibrated' if {'C', 'D'} & {e.tier for _v, e in points} else ''})", loc="left", fontsize=10)
    axes[-1].set_xlabel(key)
    return figure


def _places(labels: Sequence[str]) -> list[float]:
    """Places on the axis: the numbers themselves, or one after the other."""
    try:
        return [float(label) for label in labels]
    except ValueError:
        return [float(i) for i in range(len(labels))]


def _band(axis: "Axes", places: Sequence[float], found: Sequence[Quantiles], color: str, label: str) -> None:
    low, high = [q.p10 for q in found], [q.p90 for q in found]
    axis.fill_between(places, low, high, color=color, alpha=0.2, linewidth=0)
    middle = [(place, q.p50) for place, q in zip(places, found, strict=True) if q.p50 is not None]
    axis.plot([place for place, _v in middle], [v for _p, v in middle], "o-", color=color, markersize=4)
    axis.set_ylabel(label)
