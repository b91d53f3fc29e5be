"""``python -m nanochat report``: write a job's report, or export its charts and numbers."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nanochat import __version__
from nanochat.contract import ExitCode
from nanochat.errors import BadConfig, BadData, TrainerError
from nanochat.files import write_atomic
from nanochat.report import png
from nanochat.report.charts import standalone
from nanochat.report.collect import Report, collect
from nanochat.report.content import charts_of, other_charts
from nanochat.report.formats import to_csv, to_html, to_markdown
from nanochat.trackers.read import from_cloud, from_files
from nanochat.trackers.runs import Tracker as Kind

__all__ = ["export", "main", "write", "write_quietly"]


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m nanochat report", description="Write the report of a job.")
    parser.add_argument("--job-dir", type=Path, help="folder of the job")
    parser.add_argument("--to", type=Path, help="folder for the files; default: the job's folder")
    parser.add_argument("--export", action="store_true", help="charts as SVG and PNG and curves as CSV, instead of the report")
    parser.add_argument("--accounts", metavar="JSON", help="what the job was estimated to take and cost, and what it did")
    parser.add_argument(
        "--from", dest="source", metavar="SOURCE",
        help="what to export: events (the job's own, the default), swanlab or wandb (what they wrote in the job's folder), a folder of theirs, "
        "swanlab:WORKSPACE/PROJECT/RUN, wandb:ENTITY/PROJECT/RUN",
    )
    return parser.parse_args(argv)


def write(report: Report, folder: Path) -> list[Path]:
    """Paths of report.html and report.md."""
    texts = {"report.html": to_html(report, __version__), "report.md": to_markdown(report, __version__)}
    for name, text in texts.items():
        write_atomic(folder / name, text)
    return [folder / name for name in texts]


def write_quietly(job_dir: Path) -> str:
    """Write a job's report at its end; gives back why not, if it cannot be: whatever is wrong with it must not stop the job."""
    try:
        write(collect(job_dir), job_dir)
    except Exception as error:  # above all a full volume
        return f"{type(error).__name__}: {error}"
    return ""


def export(report: Report, folder: Path, say: Callable[[str], None] = print) -> list[Path]:
    """Paths of one CSV for each stage with curves, and one SVG and (where matplotlib is installed) one PNG for each chart."""
    written = []
    for stage in dict.fromkeys(stage for stage, _metric in report.series):
        written.append(folder / f"{_file_name(stage)}.csv")
        write_atomic(written[-1], to_csv(report, stage))
    draw = png.drawer()
    for chart in [*charts_of(report), *other_charts(report)]:
        svg = standalone(chart)
        if svg:
            name = _file_name(chart.title)
            written.append(folder / f"{name}.svg")
            write_atomic(written[-1], svg)
            if draw is not None:
                written.append(folder / f"{name}.png")
                draw(chart, written[-1])
    if draw is None:
        say(f"no PNG without matplotlib: {png.INSTALL}")
    return written


def _file_name(title: str) -> str:
    return re.sub(r"[^\w]+", "-", title.lower()).strip("-") or "curve"


def main(argv: Sequence[str] = ()) -> int:
    """Write the files and name them; gives back the exit code."""
    arguments = _arguments(argv)
    try:
        report, folder = _report(arguments)
        done = export(report, folder, lambda line: print(f"report: {line}", file=sys.stderr)) if arguments.export else write(report, folder)
        for path in done:
            print(path)
    except TrainerError as error:
        print(f"report: {error}", file=sys.stderr)
        return int(error.code)
    except OSError as error:
        print(f"report: {error.filename}: {error.strerror}", file=sys.stderr)
        return int(ExitCode.BAD_CONFIG)
    return int(ExitCode.DONE)


def _report(arguments: argparse.Namespace) -> tuple[Report, Path]:
    """What is to be written, and the folder for it."""
    source, job = arguments.source or "events", arguments.job_dir
    if source != "events" and not arguments.export:
        raise BadConfig("a tracker has curves only: it can be exported, a report needs the job's own events", where=f"--from {source}", hint="add --export")
    if job is None and source in ("events", *Kind):
        raise BadConfig("no job is named", where="--job-dir", hint="or name a folder of a tracker: --from FOLDER")
    if job is not None and not job.is_dir():
        raise BadData("there is no such job folder", where=str(job))
    if source == "events":
        report = collect(job)
        report.accounts = _accounts(arguments.accounts)
        if not report.series and not report.evals and not report.attempts:
            raise BadData("the job has not left any events yet", where=str(job), hint="wait until it has begun")
    elif source in list(Kind):
        report = from_files(job / "tracking", Kind(source))
    elif source.partition(":")[0] in list(Kind):
        report = from_cloud(source)
    else:
        report = from_files(Path(source))
    return report, arguments.to or job or Path.cwd()


def _accounts(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise BadConfig(f"not JSON: {error}", where="--accounts") from error
    return found if isinstance(found, dict) else {}
