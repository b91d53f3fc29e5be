"""Reads a job's folder into a `Report`. Any part may be missing or cut short: what is there is reported."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanochat.contract import events as event_lines
from nanochat.contract import layout

__all__ = ["Attempt", "Report", "Series", "collect"]

STEP_METRICS = ("loss", "loss_ema", "lr_frac", "tokens_per_s", "mfu_frac", "memory_bytes", "data_wait_s", "comm_s", "dt_s", "reward", "answer_tokens")
"""Fields of step events that become curves."""


@dataclass
class Series:
    """One curve: steps and values, in order of step; what a later attempt did again replaces the earlier."""

    name: str
    stage: str
    points: dict[int, float] = field(default_factory=dict)

    def sorted(self) -> list[tuple[int, float]]:
        """Points in order of step."""
        return sorted(self.points.items())


@dataclass
class Attempt:
    """One start of the job."""

    number: int
    started_s: float | None = None
    ended_s: float | None = None
    code: int | None = None
    message: str = ""


@dataclass
class Report:
    """Everything that is known about a job.

    Attributes:
        name: The job.
        run: Content of run.json, {} if it is missing.
        receipt: What the submitter wrote down, {} if it is missing.
        series: Curves by (stage, metric).
        evals: (stage, step, name, value, correct, total), in order.
        stages: (stage, seconds) of stages that ended, in order.
        samples: (stage, step, prompt, text).
        warnings: (code, message, times).
        attempts: Starts.
        results: Content of results/*.json by name.
        checkpoints: (stage, step, bytes, seconds to save).
        accounts: The submitter's line about the job: hours_p10, hours_p50, hours_p90, billed_npus, price, currency, cost, estimated and actual
            seconds by term; {} where nobody kept accounts.
        end: The last done or error event.
    """

    name: str
    folder: Path
    run: dict[str, Any] = field(default_factory=dict)
    receipt: dict[str, Any] = field(default_factory=dict)
    spec: str = ""
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    evals: list[tuple[str, int, str, float, int | None, int | None]] = field(default_factory=list)
    stages: list[tuple[str, float]] = field(default_factory=list)
    samples: list[tuple[str, int, str, str]] = field(default_factory=list)
    warnings: list[tuple[str, str, int]] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    checkpoints: list[tuple[str, int, int, float]] = field(default_factory=list)
    accounts: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens trained in all stages."""
        best: dict[str, float] = {}
        for (stage, metric), series in self.series.items():
            if metric == "tokens" and series.points:
                best[stage] = max(series.points.values())
        return int(sum(best.values()))

    @property
    def wall_s(self) -> float:
        """Seconds that all attempts took."""
        return sum(a.ended_s - a.started_s for a in self.attempts if a.started_s is not None and a.ended_s is not None)

    def curve(self, stage: str, metric: str) -> list[tuple[int, float]]:
        """Points of one curve, [] if there is none."""
        series = self.series.get((stage, metric))
        return series.sorted() if series else []

    def training_stages(self) -> list[str]:
        """Stages that have steps, in the order in which they ran."""
        return list(dict.fromkeys(stage for stage, metric in self.series if metric == "loss"))


def collect(folder: Path) -> Report:
    """The report of a job's folder."""
    report = Report(folder.name, folder, _json(layout.run_file(folder)), _json(folder / "receipt.json"))
    try:
        report.spec = (folder / "spec.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        report.spec = ""
    report.name = str(report.run.get("job") or folder.name)
    for path in sorted((folder / "results").glob("*.json")):
        report.results[path.stem] = _json(path)
    report.attempts = [_attempt(entry) for entry in _list(_json(layout.ledger_file(folder)).get("attempts")) if isinstance(entry, dict)]
    warned: dict[tuple[str, str], int] = defaultdict(int)
    for event in _events(folder):
        _take(report, event, warned)
    report.warnings = [(code, message, times) for (code, message), times in warned.items()]
    return report


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _attempt(entry: dict[str, Any]) -> Attempt:
    number, code = _number(entry.get("attempt")), _number(entry.get("code"))
    return Attempt(
        int(number or 0), _number(entry.get("started")), _number(entry.get("ended")), None if code is None else int(code), str(entry.get("message", ""))
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    numbers = sorted(int(path.name) for path in (folder / "attempts").glob("*") if path.name.isdigit())
    for number in numbers:
        try:
            with layout.events_file(folder, number).open(encoding="utf-8", errors="replace") as lines:
                yield from event_lines.parse_lines(lines)
        except OSError:
            continue


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _take(report: Report, event: dict[str, Any], warned: dict[tuple[str, str], int]) -> None:
    kind, stage = event["event"], str(event.get("stage", ""))
    step = int(_number(event.get("step")) or 0)
    if kind == "step":
        for metric in (*STEP_METRICS, "tokens"):
            value = _number(event.get(metric))
            if value is not None:
                report.series.setdefault((stage, metric), Series(metric, stage)).points[step] = value
    elif kind == "eval":
        value, name, stage = _number(event.get("value")), str(event.get("name", "?")), event_lines.measured_in(stage, event)
        if value is not None:
            correct, total = _number(event.get("correct")), _number(event.get("total"))
            report.evals.append((stage, step, name, value, None if correct is None else int(correct), None if total is None else int(total)))
            if name == "bpb" or name.startswith("pass@"):
                report.series.setdefault((stage, name), Series(name, stage)).points[step] = value
    elif kind == "stage" and event.get("status") == "end":
        report.stages.append((stage, _number(event.get("took_s")) or 0.0))
    elif kind == "sample":
        report.samples.append((stage, step, str(event.get("prompt", "")), str(event.get("text", ""))))
    elif kind == "warning":
        warned[(str(event.get("code", "")), str(event.get("message", "")))] += 1
    elif kind == "checkpoint":
        report.checkpoints.append((stage, step, int(_number(event.get("size_bytes")) or 0), _number(event.get("save_s")) or 0.0))
    elif kind in ("done", "error"):
        report.end = event
