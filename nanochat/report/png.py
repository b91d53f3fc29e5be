"""The charts of a report as PNG, for slides and papers. Drawn by matplotlib (extra ``plot``), which nothing else here needs."""

import math
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from nanochat.report.charts import Chart, thin

__all__ = ["INSTALL", "drawer"]

INSTALL = "pip install 'nanochat-npu[plot]'"
COLOURS = ("#c8402f", "#3b6fd4", "#2e8b57", "#b8860b")
"""As in the SVG."""
INCHES, DPI = (7.0, 3.125), 200
"""1400 × 625 pixels, the SVG's proportions."""


def drawer() -> Callable[[Chart, Path], None] | None:
    """Draws a chart into a file; None where matplotlib is not installed."""
    try:
        import_module("matplotlib").use("agg")
        figures = import_module("matplotlib.figure")
        ticker = import_module("matplotlib.ticker")
    except ImportError:
        return None

    def draw(chart: Chart, path: Path) -> None:
        figure = figures.Figure(figsize=INCHES, layout="constrained", facecolor="white")
        _draw(figure.subplots(), chart, ticker)
        part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            figure.savefig(part, format="png", dpi=DPI, metadata={"Software": None})
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    return draw


def _draw(axes: Any, chart: Chart, ticker: Any) -> None:
    for index, (name, points) in enumerate(chart.lines.items()):
        kept = thin([(step, value) for step, value in points if math.isfinite(value)])
        marker = {"marker": "o", "markersize": 4} if name in chart.dots or len(kept) == 1 else {}
        axes.plot([s for s, _ in kept], [v for _, v in kept], color=COLOURS[index % len(COLOURS)], linewidth=1.6, label=name, **marker)
    axes.set_title(chart.title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel(chart.unit, fontsize=9)
    axes.grid(axis="y", color="#e2ded7", linewidth=0.8)
    axes.tick_params(labelsize=8, length=0, colors="#6d675f")
    axes.yaxis.set_major_formatter(ticker.EngFormatter(sep="")) if max((abs(v) for p in chart.lines.values() for _, v in p), default=0) >= 1e4 else None
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#cfc9c0")
    if len(chart.lines) > 1:
        axes.legend(fontsize=8, frameon=False)
