"""``python -m nanochat report``: write a job's report, or export its charts and numbers."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nanochat import __version__
from nanochat.contract import ExitCode
from nanochat.errors import BadData, TrainerError
from nanochat.files import write_atomic
from nanochat.report.charts import standalone
from nanochat.report.collect import Report, collect
from nanochat.report.content import charts_of
from nanochat.report.formats import to_csv, to_html, to_markdown

__all__ = ["export", "main", "write"]


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m nanochat report", description="Write the report of a job.")
    parser.add_argument("--job-dir", type=Path, required=True, help="folder of the job")
    parser.add_argument("--to", type=Path, help="folder for the files; default: the job's folder")
    parser.add_argument("--export", action="store_true", help="charts as SVG and curves as CSV, instead of the report")
    return parser.parse_args(argv)


def write(report: Report, folder: Path) -> list[Path]:
    """Paths of report.html and report.md."""
    texts = {"report.html": to_html(report, __version__), "report.md": to_markdown(report, __version__)}
    for name, text in texts.items():
        write_atomic(folder / name, text)
    return [folder / name for name in texts]


def export(report: Report, folder: Path) -> list[Path]:
    """Paths of one CSV for each training stage and one SVG for each chart."""
    written = []
    for stage in report.training_stages():
        written.append(folder / f"{stage}.csv")
        write_atomic(written[-1], to_csv(report, stage))
    for chart in charts_of(report):
        svg = standalone(chart)
        if svg:
            name = "".join(c if c.isalnum() else "-" for c in chart.title.lower()).replace("--", "-").strip("-")
            written.append(folder / f"{name}.svg")
            write_atomic(written[-1], svg)
    return written


def main(argv: Sequence[str] = ()) -> int:
    """Write the files and name them; gives back the exit code."""
    arguments = _arguments(argv)
    try:
        if not arguments.job_dir.is_dir():
            raise BadData("there is no such job folder", where=str(arguments.job_dir))
        report = collect(arguments.job_dir)
        if not report.series and not report.evals and not report.attempts:
            raise BadData("the job has not left any events yet", where=str(arguments.job_dir), hint="wait until it has begun")
        folder = arguments.to or arguments.job_dir
        for path in (export if arguments.export else write)(report, folder):
            print(path)
    except TrainerError as error:
        print(f"report: {error}", file=sys.stderr)
        return int(error.code)
    except OSError as error:
        print(f"report: {error.filename}: {error.strerror}", file=sys.stderr)
        return int(ExitCode.BAD_CONFIG)
    return int(ExitCode.DONE)
