"""What a report says, section by section, before it becomes HTML or Markdown: headings, tables, texts and charts."""

import time
from dataclasses import dataclass, field
from typing import Any

from nanochat.contract import describe
from nanochat.report.charts import Chart
from nanochat.report.collect import Report

__all__ = ["Section", "charts_of", "headline", "other_charts", "sections"]

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


def headline(report: Report) -> list[tuple[str, str, bool]]:
    """(name, value, true if it is bad) of what people look for first."""
    end, found = report.end, []
    if end:
        failed = end.get("event") == "error"
        found.append(("state", f"failed ({end.get('code')})" if failed else "can be resumed" if end.get("resumable") else "finished", failed))
    if report.wall_s:
        found.append(("took", duration(report.wall_s), False))
    if report.tokens:
        found.append(("tokens", count(report.tokens), False))
    stages = report.training_stages()
    if stages:
        losses, bpb = report.curve(stages[-1], "loss"), report.curve(stages[0], "bpb")
        if losses:
            found.append((f"last loss, {stages[-1]}", f"{losses[-1][1]:.4g}", False))
        if bpb:
            found.append((f"bits per byte, {stages[0]}", f"{bpb[-1][1]:.4g}", False))
        speed = sorted(value for stage in stages for _step, value in report.curve(stage, "tokens_per_s"))
        if speed:
            found.append(("tokens/s, median", f"{speed[len(speed) // 2]:,.0f}", False))
    if report.warnings:
        found.append(("warnings", str(sum(times for _code, _message, times in report.warnings)), True))
    return found


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
    """Estimate against actual, where the submitter kept accounts; without them, nothing."""
    known = report.accounts
    section = Section("Time and cost")
    low, mid, high = (_positive(known.get(key)) for key in ("hours_p10", "hours_p50", "hours_p90"))
    hours = _positive(known.get("hours")) or (report.wall_s / 3600 or None)
    if low and high:
        band = f"{_hours(low)} to {_hours(high)}"
        section.rows.append(("estimated", f"{_hours(mid)} ({band}, P10 to P90)" if mid else f"{band} (P10 to P90)"))
    if section.rows and hours:
        inside = "" if not (low and high) else ", inside the band" if low <= hours <= high else ", outside the band"
        ratio = f", {hours / mid:.2f} of the estimate" if mid else ""
        section.rows.append(("actual", f"{_hours(hours)}{ratio}{inside}"))
    price, npus, currency = _positive(known.get("price")), _positive(known.get("billed_npus")), str(known.get("currency") or "")
    if price and npus and hours:
        planned = _positive(known.get("cost_p50"))
        section.rows.append((
            "cost", f"{hours * npus * price:,.2f} {currency}" + (f", estimated {planned:,.2f}" if planned else "")
            + f" ({npus:.0f} NPUs × {_hours(hours)} × {price:g} {currency} per NPU-hour)",
        ))
    terms, taken = known.get("estimated"), known.get("actual")
    if isinstance(terms, dict) and isinstance(taken, dict) and taken:
        section.header = ["part", "estimated", "actual"]
        for name in [*terms, *(name for name in taken if name not in terms)]:
            times = [_positive(part.get(name)) for part in (terms, taken)]
            if any(times):
                section.table.append([name, *(duration(value) if value else "-" for value in times)])
    return section


def _positive(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None


def _hours(hours: float) -> str:
    return duration(hours * 3600)


def _setup(report: Report) -> Section:
    section = Section("What ran where")
    world = report.run.get("world") or {}
    if world:
        section.rows.append(("world", f"{_many(world.get('nodes', 1), 'node')} × {_many(world.get('ranks_per_node', 1), 'rank')}, device {world.get('device', 'auto')}"))
    versions = report.receipt.get("versions")
    if isinstance(versions, dict):
        section.rows.append(("submitted with", ", ".join(f"{name} {value}" for name, value in versions.items())))
    runtime = (report.results.get("runtime") or {}).get("versions")
    if isinstance(runtime, dict):
        section.rows.append(("ran with", ", ".join(f"{name} {value}" for name, value in runtime.items())))
    for key, title in (("device", "device"), ("host", "first host"), ("system", "system")):
        if value := (report.results.get("runtime") or {}).get(key):
            section.rows.append((title, str(value)))
    image = (report.receipt.get("details") or {}).get("image") if isinstance(report.receipt.get("details"), dict) else None
    if isinstance(image, str):
        section.rows.append(("image", image))
    for key, title in (("submission_id", "submission"), ("spec_sha256", "spec sha256"), ("owner", "owner"), ("backend", "backend")):
        value = report.receipt.get(key) or report.run.get(key)
        if value:
            section.rows.append((title, str(value)))
    run = report.run.get("run") or {}
    model = run.get("model") or {}
    if model:
        section.rows.append(("model", f"depth {model.get('depth')}, sequence {model.get('sequence_len')}, vocabulary {(run.get('tokenizer') or {}).get('vocab_size')}"))
    return section


def _many(count: Any, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


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

