"""Jobs side by side as one page or one picture: curves laid over each other as SVG, and the tables below. Pure; no scripts, no fonts, no network."""

import html
import math
from collections.abc import Sequence

from nanochat_npu.i18n import _
from nanochat_npu.tables import Section
from nanochat_npu.views import Snapshot

__all__ = ["curves_of", "page", "picture"]

Points = list[tuple[float, float]]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 260, 56, 150, 30, 30
COLOURS = ("#1f5fa8", "#c2571a", "#2e7d32", "#8e24aa", "#00838f", "#6d4c41")
MAX_POINTS = 600
STAGES = ("pretrain", "sft", "rl")
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}"
    "table{border-collapse:collapse;margin:.5rem 0 1.5rem}td,th{border-bottom:1px solid #ddd;padding:.25rem .8rem .25rem 0;text-align:left}"
)


def curves_of(snapshots: Sequence[Snapshot]) -> dict[str, dict[str, Points]]:
    """Loss by stage and job, for the stages that any of the jobs ran."""
    found: dict[str, dict[str, Points]] = {}
    for shot in snapshots:
        for run in shot.progress.runs:
            points = [(float(step), loss) for step, loss, _speed in run.curve if math.isfinite(loss)]
            if run.name in STAGES and points:
                found.setdefault(run.name, {})[shot.job.name] = _thin(points)
    return {stage: found[stage] for stage in STAGES if stage in found}


def _thin(points: Points) -> Points:
    """At most `MAX_POINTS`, the first and the last among them."""
    every = -(-len(points) // MAX_POINTS)
    return [*points[:-1:every], points[-1]]


def picture(curves: dict[str, dict[str, Points]], names: Sequence[str]) -> str:
    """All charts below each other as one SVG; a job has the same colour in each.

    Args:
        curves: From `curves_of`.
        names: Jobs in the order of their colours.
    """
    charts = [_chart(stage, lines, names, i * HEIGHT) for i, (stage, lines) in enumerate(curves.items())]
    tall = HEIGHT * len(charts) or HEIGHT
    empty = "" if charts else f'<text x="{LEFT}" y="{TOP}">{html.escape(_("no curves yet"))}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}" width="{WIDTH}" height="{tall}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(charts)}{empty}</svg>\n'
    )


def _chart(stage: str, lines: dict[str, Points], names: Sequence[str], top: int) -> str:
    every = [point for points in lines.values() for point in points]
    x_low, x_high = min(x for x, _y in every), max(x for x, _y in every)
    y_low, y_high = min(y for _x, y in every), max(y for _x, y in every)

    def place(x: float, y: float) -> str:
        across = LEFT + (x - x_low) / ((x_high - x_low) or 1.0) * (WIDTH - LEFT - RIGHT)
        down = top + TOP + (y_high - y) / ((y_high - y_low) or 1.0) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{down:.1f}"

    parts = [f'<text x="{LEFT}" y="{top + 18}" font-weight="bold">{html.escape(stage)}: {html.escape(_("loss"))}</text>']
    for value in (y_low, (y_low + y_high) / 2, y_high):
        at = place(x_low, value).split(",")[1]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}" stroke="#ddd"/><text x="{LEFT - 6}" y="{at}" text-anchor="end" dy="4">{value:.3g}</text>')
    parts += [
        f'<text x="{LEFT}" y="{top + HEIGHT - 10}">{x_low:,.0f}</text>',
        f'<text x="{WIDTH - RIGHT}" y="{top + HEIGHT - 10}" text-anchor="end">{x_high:,.0f}</text>',
    ]
    for row, (name, points) in enumerate(lines.items()):
        colour = COLOURS[list(names).index(name) % len(COLOURS)]
        way = " ".join(place(x, y) for x, y in points)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{top + TOP + 12 + 18 * row}" fill="{colour}">{html.escape(name)}</text>')
    return "".join(parts)


def page(sections: Sequence[Section], curves: dict[str, dict[str, Points]], names: Sequence[str]) -> str:
    """One HTML file with the charts and all tables."""
    title = html.escape(" / ".join(names))
    body = [f"<h1>{title}</h1>", picture(curves, names)]
    for section in sections:
        if not section.table:
            continue
        if section.title:
            body.append(f"<h2>{html.escape(section.title)}</h2>")
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in section.header)
        rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in section.table)
        body.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
    return f'<!doctype html>\n<html><head><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style></head><body>{"".join(body)}</body></html>\n'
