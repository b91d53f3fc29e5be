"""Curves drawn with characters: sparklines of one line, and charts in Braille dots with labelled axes."""

import itertools
import math
from collections.abc import Sequence

__all__ = ["chart", "resample", "sparkline"]

BLOCKS = "▁▂▃▄▅▆▇█"
BRAILLE = 0x2800
LABEL_WIDTH = 7
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot of a Braille cell, by column and row from the top (Unicode block 2800)."""


def resample(values: Sequence[float], count: int) -> list[float]:
    """At most `count` values: the mean of each of `count` equal parts, or the values themselves where they are fewer."""
    if count <= 0:
        return []
    if len(values) <= count:
        return list(values)
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def sparkline(values: Sequence[float], width: int, *, scale: tuple[float, float] | None = None) -> str:
    """A curve one line high; "" for no values.

    Args:
        values: Those that are not finite are left out.
        width: Characters, at most.
        scale: Lowest and highest value of the line; default: the curve's own.
    """
    shown = resample([value for value in values if math.isfinite(value)], width)
    if not shown:
        return ""
    low, high = scale or (min(shown), max(shown))
    span = (high - low) or 1.0
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int((value - low) / span * len(BLOCKS)))] for value in shown)


def chart(xs: Sequence[float], ys: Sequence[float], *, width: int, height: int, x_end: float | None = None) -> list[str]:
    """Lines of a chart with the highest and lowest value at its left and the first and last x below it.

    Args:
        xs: Ascending.
        ys: As many; values that are not finite are left out.
        width: Columns of the whole chart, labels included.
        height: Lines of the plot, without the line of x labels.
        x_end: Where the x axis ends (the horizon); default: the last x.
    """
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
    if not points or height < 1:
        return []
    last_x = max(x_end or 0.0, points[-1][0])
    columns = max(4, width - LABEL_WIDTH - 2)
    means = _means(points, (points[0][0], last_x), columns * 2)
    low, high = min(means.values()), max(means.values())
    grid = _dots(means, (low, high), columns, height)
    lines = []
    for row, cells in enumerate(grid):
        label = _label(high) if row == 0 else _label(low) if row == height - 1 else ""
        lines.append(f"{label:>{LABEL_WIDTH}} ┤" + "".join(chr(BRAILLE + cell) for cell in cells).rstrip(chr(BRAILLE)))
    first, last = f"{points[0][0]:,.0f}", f"{last_x:,.0f}"
    return [*lines, " " * (LABEL_WIDTH + 2) + first + last.rjust(columns - len(first))]


def _means(points: Sequence[tuple[float, float]], x_range: tuple[float, float], wide: int) -> dict[int, float]:
    """Mean of the points in each column of dots that has any, from left to right."""
    span = (x_range[1] - x_range[0]) or 1.0
    found: dict[int, list[float]] = {}
    for x, y in points:
        found.setdefault(min(wide - 1, int((x - x_range[0]) / span * (wide - 1))), []).append(y)
    return {column: sum(ys) / len(ys) for column, ys in sorted(found.items())}


def _dots(means: dict[int, float], y_range: tuple[float, float], columns: int, rows: int) -> list[list[int]]:
    """Braille cells of a curve, each of its dots joined to the one before."""
    tall = rows * 4
    grid = [[0] * columns for _row in range(rows)]
    before: int | None = None
    for column, mean in means.items():
        y = round((y_range[1] - mean) / ((y_range[1] - y_range[0]) or 1.0) * (tall - 1))
        for dot in range(min(y, y if before is None else before), max(y, y if before is None else before) + 1):
            grid[dot // 4][column // 2] |= DOTS[column % 2][dot % 4]
        before = y
    return grid


def _label(value: float) -> str:
    magnitude = abs(value)
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if magnitude >= limit:
            return f"{value / (limit / 10 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:.4g}"
