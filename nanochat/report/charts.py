"""Line charts as SVG, drawn by ourselves: a report must open anywhere, without scripts, and follow the page's colours."""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Chart", "nice_ticks", "render_chart", "standalone", "thin"]

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 30, 34
MAX_POINTS = 800
Scale = Callable[[float], float]
COLOURS = ("var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)")


@dataclass(frozen=True)
class Chart:
    """What is drawn: lines of (step, value) by name.

    Attributes:
        title: Heading.
        unit: Unit of the values, "" for none.
        lines: Curves by name; those with dots are marked at each point.
        dots: Names of curves with few points.
    """

    title: str
    unit: str
    lines: dict[str, list[tuple[int, float]]]
    dots: frozenset[str] = frozenset()


def thin(points: Sequence[tuple[int, float]], most: int = MAX_POINTS) -> list[tuple[int, float]]:
    """At most `most` points that keep every bucket's lowest and highest value, so that spikes stay visible."""
    if len(points) <= most:
        return list(points)
    bucket = math.ceil(len(points) / (most // 2))
    kept: list[tuple[int, float]] = []
    for start in range(0, len(points), bucket):
        part = points[start : start + bucket]
        low, high = min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])
        kept += sorted({low, high})
    return kept


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover low to high."""
    if not math.isfinite(low) or not math.isfinite(high) or high <= low:
        return [low]
    raw = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next((factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw), 10 * magnitude)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _label(value: float) -> str:
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / ({'G': 1e9, 'M': 1e6, 'k': 1e3}[unit]):.4g}{unit}"
    return f"{value:.4g}"


def render_chart(chart: Chart) -> str:
    """The chart as an SVG element; "" if there is nothing to draw."""
    lines = {name: [(s, v) for s, v in points if math.isfinite(v)] for name, points in chart.lines.items()}
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return ""
    steps = [s for points in lines.values() for s, _ in points]
    values = [v for points in lines.values() for _, v in points]
    x0, x1 = min(steps), max(max(steps), min(steps) + 1)
    y0, y1 = min(values), max(values)
    pad = (y1 - y0) * 0.06 or abs(y1) * 0.1 or 1.0
    y0, y1 = (0.0 if 0 <= y0 < 0.25 * y1 else y0 - pad), y1 + pad

    def x(step: float) -> float:
        return LEFT + (step - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)

    title = html.escape(chart.title)
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">', f'<text class="t" x="{LEFT}" y="18">{title}</text>']
    for tick in nice_ticks(y0, y1):
        parts.append(f'<path class="g" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/><text class="l" x="{LEFT - 7}" y="{y(tick) + 4:.1f}" text-anchor="end">{_label(tick)}</text>')
    for tick in nice_ticks(x0, x1, 6):
        parts.append(f'<text class="l" x="{x(tick):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{_label(tick)}</text>')
    if chart.unit:
        parts.append(f'<text class="l" x="{WIDTH - RIGHT}" y="18" text-anchor="end">{html.escape(chart.unit)}</text>')
    for index, (name, points) in enumerate(lines.items()):
        parts.append(_line(name, thin(points), COLOURS[index % len(COLOURS)], x, y, dots=name in chart.dots or len(points) == 1))
    if len(lines) > 1:
        parts.append(_legend(list(lines)))
    return "".join([*parts, "</svg>"])


def _line(name: str, points: list[tuple[int, float]], colour: str, x: Scale, y: Scale, *, dots: bool) -> str:
    path = "M" + "L".join(f"{x(s):.1f} {y(v):.1f}" for s, v in points)
    drawn = f'<path class="c" style="stroke:{colour}" d="{path}"><title>{html.escape(name)}</title></path>'
    if dots:
        drawn += "".join(f'<circle style="fill:{colour}" cx="{x(s):.1f}" cy="{y(v):.1f}" r="3"><title>{s}: {v:.4g}</title></circle>' for s, v in points)
    return drawn


def _legend(names: list[str]) -> str:
    out, at = "", WIDTH - RIGHT - sum(26 + 7 * len(name) for name in names)
    for index, name in enumerate(names):
        colour = COLOURS[index % len(COLOURS)]
        out += f'<rect x="{at}" y="{TOP + 2}" width="10" height="3" style="fill:{colour}"/><text class="l" x="{at + 14}" y="{TOP + 8}">{html.escape(name)}</text>'
        at += 26 + 7 * len(name)
    return out


STANDALONE_STYLE = (
    "<style>:root{--c1:#c8402f;--c2:#3b6fd4;--c3:#2e8b57;--c4:#b8860b}text{font-family:system-ui,sans-serif}.t{font-size:14px;font-weight:600}"
    ".l{font-size:11px;fill:#6d675f}.g{stroke:#e2ded7}.c{fill:none;stroke-width:1.7}</style>"
)


def standalone(chart: Chart) -> str:
    """The chart as an SVG file of its own; "" if there is nothing to draw."""
    svg = render_chart(chart)
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", f">{STANDALONE_STYLE}", 1) + "\n" if svg else ""
