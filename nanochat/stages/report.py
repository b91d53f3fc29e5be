"""Stage report: what the job did and found, as one file for programs, and as a page and Markdown for people."""

import json
from typing import Any

from nanochat.artifacts import read_results, write_results
from nanochat.context import Context
from nanochat.contract import layout
from nanochat.report.collect import collect as collect_report
from nanochat.report.command import write as write_report

__all__ = ["check", "run"]


def check(context: Context) -> None:
    """Whatever the stages before have left is reported."""


def run(context: Context) -> dict[str, Any]:
    """Gather the results of all stages into ``results/report.json``, and write report.html and report.md."""
    if context.is_first:
        write_results(context, "report", _collect(context))
        write_report(collect_report(context.job_dir), context.job_dir)
    return {"report": "report.html"}


def _collect(context: Context) -> dict[str, Any]:
    try:
        stages = json.loads(layout.stages_file(context.job_dir).read_text(encoding="utf-8"))["stages"]
    except (OSError, ValueError, KeyError):
        stages = {}
    return {
        "job": context.run_file.job, "attempt": context.events.attempt, "world_size": context.peers.size,
        "device": context.device.name, "runtime": context.device.runtime, "notes": context.run_file.notes,
        "before": read_results(context, "before"), "stages": list(stages.values()),
        "after": {stage: found for stage in ("pretrain", "sft", "rl") if (found := read_results(context, f"eval-{stage}"))},
    }
