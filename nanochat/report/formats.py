"""A report as one HTML page without scripts or outside resources, as Markdown, and its curves as CSV."""

import csv
import html
import io

from nanochat.report.charts import render_chart
from nanochat.report.collect import Report
from nanochat.report.content import Section, headline, sections

__all__ = ["to_csv", "to_html", "to_markdown"]

STYLE = """
:root{--paper:#fbfaf8;--ink:#24211d;--soft:#6d675f;--line:#e2ded7;--panel:#fff;--code:#f1eee9;--c1:#c8402f;--c2:#3b6fd4;--c3:#2e8b57;--c4:#b8860b}
@media(prefers-color-scheme:dark){:root{--paper:#191816;--ink:#ece8e1;--soft:#a39c91;--line:#34312d;--panel:#211f1d;--code:#262320;--c1:#e0604f;--c2:#8db1ff;--c3:#6fcf97;--c4:#e0b24f}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"PingFang SC","Microsoft YaHei","Noto Sans CJK SC",sans-serif}
main{max-width:1180px;margin:0 auto;padding:34px 22px 70px}h1{font-size:30px;margin:0}h1 small{display:block;font-size:15px;font-weight:400;color:var(--soft);margin-top:4px}
h2{font-size:19px;margin:38px 0 12px;padding-bottom:6px;border-bottom:1px solid var(--line)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:5px 22px;margin:0}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:10px 0;font-variant-numeric:tabular-nums}th,td{text-align:left;padding:5px 20px 5px 0;border-bottom:1px solid var(--line)}th{color:var(--soft);font-weight:500}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}.chart{width:100%;height:auto;background:var(--panel);border:1px solid var(--line);border-radius:14px}
.chart .t{font-size:13px;font-weight:600;fill:var(--ink)}.chart .l{font-size:11px;fill:var(--soft)}.chart .g{stroke:var(--line)}.chart .c{fill:none;stroke-width:1.7;stroke-linejoin:round}
figure{margin:0 0 14px}figcaption{color:var(--soft);font-size:14px;margin-bottom:4px}pre{margin:0;background:var(--code);border-radius:12px;padding:12px 15px;overflow-x:auto;font:13.5px/1.5 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:26px 0 0}.tile{background:var(--panel);border:1px solid var(--line);border-radius:14px;padding:13px 16px}
.tile b{display:block;font-size:21px;font-weight:650;line-height:1.25;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}.tile span{color:var(--soft);font-size:13px}.tile.bad b{color:var(--c1)}
footer{margin-top:44px;color:var(--soft);font-size:13px}
@media(max-width:560px){main{padding:26px 16px 50px}th,td{padding-right:12px;font-size:14.5px}dl{column-gap:14px}}
@media print{body{background:#fff}.chart{break-inside:avoid}}
"""


def to_html(report: Report, version: str) -> str:
    """The page."""
    name = html.escape(report.name)
    body = "".join(_section(section) for section in sections(report))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><meta name="color-scheme" content="light dark"><title>{name}</title><style>{STYLE}</style></head>\n'
        f"<body><main><h1>{name}<small>report of a nanochat training job</small></h1>{_tiles(report)}{body}<footer>nanochat-npu {html.escape(version)}</footer></main></body></html>\n"
    )


def _tiles(report: Report) -> str:
    """The few numbers that people look for first."""
    cells = "".join(
        f'<div class="tile{" bad" if bad else ""}"><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>' for name, value, bad in headline(report)
    )
    return f'<div class="tiles">{cells}</div>' if cells else ""


def _section(section: Section) -> str:
    out = [f"<section><h2>{html.escape(section.title)}</h2>"]
    if section.rows:
        out.append("<dl>" + "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in section.rows) + "</dl>")
    if section.table:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in section.header)
        lines = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in section.table)
        out.append(f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>')
    if section.charts:
        out.append('<div class="charts">' + "".join(render_chart(chart) for chart in section.charts) + "</div>")
    for caption, text in section.texts:
        out.append(f"<figure><figcaption>{html.escape(caption)}</figcaption><pre>{html.escape(text)}</pre></figure>")
    return "".join([*out, "</section>\n"])


def to_markdown(report: Report, version: str) -> str:
    """The report without charts."""
    out = [f"# {_cell(report.name)}\n"]
    for section in sections(report):
        if not (section.rows or section.table or section.texts):
            continue
        out.append(f"## {section.title}\n")
        if section.rows:
            out.append("".join(f"- **{_cell(k)}**: {_cell(v)}\n" for k, v in section.rows))
        if section.table:
            lines = [section.header, ["---"] * len(section.header), *section.table]
            out.append("".join("| " + " | ".join(map(_cell, row)) + " |\n" for row in lines))
        for caption, text in section.texts:
            fence = "`" * max(3, 1 + max((len(run) for run in _runs(text)), default=0))
            out.append(f"{_cell(caption)}:\n\n{fence}\n{text.rstrip()}\n{fence}\n")
    return "\n".join([*out, f"nanochat-npu {version}\n"])


def _cell(text: str) -> str:
    """Text that cannot break a table or become markup."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|").replace("`", "\\`").replace("*", "\\*")


def _runs(text: str) -> list[str]:
    """Runs of backticks in a text."""
    return [run for run in "".join(c if c == "`" else " " for c in text).split() if run]


def to_csv(report: Report, stage: str) -> str:
    """All curves of one stage, a line for each step."""
    metrics = [metric for (of, metric), series in report.series.items() if of == stage and series.points]
    steps = sorted({step for metric in metrics for step in report.series[(stage, metric)].points})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["step", *metrics])
    for step in steps:
        writer.writerow([step, *(report.series[(stage, metric)].points.get(step, "") for metric in metrics)])
    return out.getvalue()
