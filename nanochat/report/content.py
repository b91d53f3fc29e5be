"""What a report says, section by section, before it becomes HTML or Markdown: headings, tables, texts and charts."""

import time
from dataclasses import dataclass, field
from typing import Any

from nanochat.contract import describe
from nanochat.report.charts import Chart
from nanochat.report.collect import Report

__all__ = ["Section", "charts_of", "other_charts", "sections"]

GPT2_CORE = {"GPT-2 124M": 0.1139, "GPT-2 355M": 0.1849, "GPT-2 774M": 0.2146, "GPT-2 1.6B": 0.2565}
"""CORE scores for comparison, as listed by karpathy/nanochat."""


@dataclass
class Section:
    """One part of a report."""

    title: str
    rows: list[tuple[str, str]] = field(default_factory=list)
    header: list[str] = field(default_factory=list)
    table: list[list[str]] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)
    """(caption, verbatim text)."""

    @property
    def empty(self) -> bool:
        """True if there is nothing to show."""
        return not (self.rows or self.table or self.charts or self.texts)


def duration(seconds: float) -> str:
    """Seconds as people say them: "2 min 3 s"."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"


def count(value: float) -> str:
    """A number with thousands separated, short where it is large."""
    return f"{value / 1e9:.2f} B" if abs(value) >= 1e9 else f"{value / 1e6:.2f} M" if abs(value) >= 1e6 else f"{value:,.0f}"


def sections(report: Report) -> list[Section]:
    """The parts of a report in order; empty ones are left out."""
    made = [_summary(report), _results(report), _curves(report), _stages(report), _attempts(report), _cost(report), _setup(report), _samples(report), _warnings(report), _again(report)]
    return [section for section in made if not section.empty]


def _summary(report: Report) -> Section:
    section = Section("Summary")
    end = report.end
    if end.get("event") == "error":
        section.rows.append(("ended", f"exit code {end.get('code')}: {describe(int(end.get('code') or 0))}. {end.get('message', '')}".strip()))
    elif end:
        section.rows.append(("ended", f"{end.get('reason', 'finished')}{', can be resumed' if end.get('resumable') else ''}"))
    started = min((a.started_s for a in report.attempts if a.started_s), default=None)
    if started:
        section.rows.append(("started", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started))))
    if report.wall_s:
        section.rows.append(("took", duration(report.wall_s)))
    if report.tokens:
        section.rows.append(("tokens", count(report.tokens)))
    for stage in report.training_stages():
        speed = [value for _step, value in report.curve(stage, "tokens_per_s")]
        losses = report.curve(stage, "loss")
        if speed and losses:
            section.rows.append((stage, f"{len(losses)} steps, last loss {losses[-1][1]:.4f}, median {sorted(speed)[len(speed) // 2]:,.0f} tokens/s"))
    return section


def _results(report: Report) -> Section:
    """First and last value of everything that was measured."""
    section = Section("Evaluations", header=["measured", "first", "last", "at"])
    found: dict[str, list[tuple[str, int, float, int | None, int | None]]] = {}
    for stage, step, name, value, correct, total in report.evals:
        found.setdefault(name, []).append((stage, step, value, correct, total))
    before = report.results.get("before", {})
    for name, measured in found.items():
        stage, step, value, correct, total = measured[-1]
        first = _shown(*measured[0][2:]) if len(measured) > 1 else _before(before, name)
        section.table.append([name, first, _shown(value, correct, total), f"{stage} {step}"])
        if name == "core":
            section.table += [[f"  {other}", "", f"{score:.4f}", "reference"] for other, score in GPT2_CORE.items()]
    return section


def _before(before: Any, name: str) -> str:
    value = before.get(name) if isinstance(before, dict) else None
    if isinstance(value, dict):
        return _shown(float(value.get("value", 0.0)), value.get("correct"), value.get("total"))
    return f"{value:.4f}" if isinstance(value, float) else "-"


def _shown(value: float, correct: int | None, total: int | None) -> str:
    return f"{correct} of {total}" if correct is not None and total else f"{value:.4f}"


DRAWN = frozenset({"loss", "loss_ema", "bpb", "tokens_per_s", "lr_frac", "mfu_frac", "memory_bytes", "reward", "pass@1", "answer_tokens", "data_wait_s", "comm_s"})
"""Metrics that `charts_of` draws."""
UNDRAWN = frozenset({"tokens", "dt_s"})
"""A straight line, and throughput upside down."""


def other_charts(report: Report) -> list[Chart]:
    """A chart for each curve that `charts_of` leaves out: those of runs that are not ours, and of stages without a loss."""
    training = report.training_stages()
    return [
        Chart(f"{stage}: {metric}", "", {metric: series.sorted()}, frozenset({metric}) if len(series.points) < 20 else frozenset())
        for (stage, metric), series in report.series.items()
        if metric not in UNDRAWN and not (stage in training and metric in DRAWN)
    ]


def charts_of(report: Report) -> list[Chart]:
    """All curves worth drawing."""
    charts = []
    for stage in report.training_stages():
        charts.append(Chart(f"{stage}: loss", "nats", {"loss": report.curve(stage, "loss"), "average": report.curve(stage, "loss_ema")}))
        for metric, title, unit, scale in (
            ("bpb", "validation bits per byte", "bpb", 1.0), ("tokens_per_s", "throughput", "tokens/s", 1.0), ("lr_frac", "learning rate", "of its peak", 1.0),
            ("mfu_frac", "model FLOPs utilisation", "%", 100.0), ("memory_bytes", "peak memory", "GiB", 2.0**-30),
            ("reward", "mean reward", "", 1.0), ("pass@1", "pass@1", "", 1.0), ("answer_tokens", "length of answers", "tokens", 1.0),
        ):
            points = [(step, value * scale) for step, value in report.curve(stage, metric)]
            if points:
                charts.append(Chart(f"{stage}: {title}", unit, {title: points}, frozenset({title}) if metric in ("bpb", "pass@1") else frozenset()))
        waits = {name: [(s, v * 1000) for s, v in report.curve(stage, metric)] for name, metric in (("data", "data_wait_s"), ("collectives", "comm_s"))}
        if any(waits.values()):
            charts.append(Chart(f"{stage}: waiting per step", "ms", waits))
    return charts


def _curves(report: Report) -> Section:
    return Section("Curves", charts=charts_of(report))


def _stages(report: Report) -> Section:
    section = Section("Stages", header=["stage", "took"], table=[[stage, duration(took)] for stage, took in report.stages])
    if report.checkpoints:
        size, saved = sum(c[2] for c in report.checkpoints), sum(c[3] for c in report.checkpoints)
        section.rows.append(("checkpoints", f"{len(report.checkpoints)} written, {size / 1e9:.2f} GB, {duration(saved)} in all"))
    return section


def _attempts(report: Report) -> Section:
    section = Section("Attempts", header=["attempt", "took", "ended with"])
    for attempt in report.attempts:
        took = duration(attempt.ended_s - attempt.started_s) if attempt.started_s and attempt.ended_s else "-"
        code = "-" if attempt.code is None else f"{attempt.code}: {describe(attempt.code)}"
        section.table.append([str(attempt.number), took, f"{code} {attempt.message}".strip()])
    return section if len(report.attempts) > 1 or any(a.code for a in report.attempts) else Section("Attempts")


def _cost(report: Report) -> Section:
    """Estimate against actual, where the submitter left an estimate in the notes or the receipt."""
    section = Section("Time and cost")
    notes = {**(report.run.get("notes") or {}), **(report.receipt.get("details") or {})}
    estimate = notes.get("estimate")
    if isinstance(estimate, dict):
        low, mid, high = (estimate.get(key) for key in ("p10_h", "p50_h", "p90_h"))
        if isinstance(mid, (int, float)):
            section.rows.append(("estimated", f"{mid:.3g} h" + (f" ({low:.3g} to {high:.3g})" if isinstance(low, (int, float)) and isinstance(high, (int, float)) else "")))
            section.rows.append(("actual", f"{report.wall_s / 3600:.3g} h"))
    price, npus = notes.get("price_per_npu_hour"), notes.get("npus")
    if isinstance(price, (int, float)) and isinstance(npus, int) and npus and report.wall_s:
        section.rows.append(("cost", f"{report.wall_s / 3600 * npus * price:.2f} {notes.get('currency', '')} ({npus} NPUs x {report.wall_s / 3600:.3g} h x {price} per NPU-hour)".strip()))
    return section


def _setup(report: Report) -> Section:
    section = Section("What ran where")
    world = report.run.get("world") or {}
    if world:
        section.rows.append(("world", f"{world.get('nodes', 1)} nodes x {world.get('ranks_per_node', 1)} ranks, device {world.get('device', 'auto')}"))
    versions = report.receipt.get("versions")
    if isinstance(versions, dict):
        section.rows.append(("submitted with", ", ".join(f"{name} {value}" for name, value in versions.items())))
    runtime = (report.results.get("report") or {}).get("runtime")
    if isinstance(runtime, dict):
        section.rows.append(("ran with", ", ".join(f"{name} {value}" for name, value in runtime.items())))
    for key, title in (("submission_id", "submission"), ("spec_sha256", "spec sha256"), ("owner", "owner"), ("backend", "backend")):
        value = report.receipt.get(key) or report.run.get(key)
        if value:
            section.rows.append((title, str(value)))
    run = report.run.get("run") or {}
    model = run.get("model") or {}
    if model:
        section.rows.append(("model", f"depth {model.get('depth')}, sequence {model.get('sequence_len')}, vocabulary {(run.get('tokenizer') or {}).get('vocab_size')}"))
    return section


def _samples(report: Report) -> Section:
    section = Section("Samples")
    for stage, step, prompt, text in report.samples[-8:]:
        section.texts.append((f"{stage}, step {step}" + (f", after “{prompt}”" if prompt else ""), text))
    return section


def _warnings(report: Report) -> Section:
    return Section("Warnings", header=["code", "message", "times"], table=[[code, message, str(times)] for code, message, times in report.warnings])


def _again(report: Report) -> Section:
    section = Section("How to repeat it")
    origin = report.receipt.get("origin")
    if isinstance(origin, list) and origin:
        section.texts.append(("command", "nanochat-npu " + " ".join(map(str, origin))))
    if report.spec:
        section.texts.append(("spec.yaml", report.spec))
    return section

