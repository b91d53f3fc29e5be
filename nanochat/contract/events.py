"""Events: the JSON lines by which a running job tells what it does.

Rank 0 writes them to ``attempts/N/events.jsonl`` and to stdout. One object a line:
``{"v": 1, "event": "step", "stage": "pretrain", "t": 1767225600.0, "rank": 0, "attempt": 0, ...}``; `FIELDS` lists what
each kind carries beyond that. Readers must accept unknown keys and unknown kinds, and a last line that is cut short.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

__all__ = ["FIELDS", "VERSION", "EventKind", "encode", "measured_in", "parse_line", "parse_lines"]

VERSION = 1

EventKind = Literal["step", "eval", "sample", "checkpoint", "stage", "warning", "checks", "done", "error"]

FIELDS: dict[str, dict[str, str]] = {
    "step": {
        "step": "optimiser updates done, 1-based", "steps": "horizon", "loss": "training loss in nats, this step",
        "loss_ema": "debiased moving average", "lr_frac": "schedule multiplier", "dt_s": "seconds of this step",
        "tokens_per_s": "over all ranks", "tokens": "trained so far", "mfu_frac": "or null where the peak is unknown",
        "mfu_peak_flops": "denominator per rank or null", "epoch": "of the data", "eta_s": "seconds to the end of the stage",
        "data_wait_s": "waiting for the next batch", "comm_s": "waiting for collectives, or null",
        "memory_bytes": "peak allocated on this rank, or null",
    },
    "eval": {"step": "", "name": "bpb, sums, facts, core, a task", "value": "", "correct": "optional", "total": "optional",
             "model": "in stage eval: the stage that made the model"},
    "sample": {"step": "", "prompt": "", "text": ""},
    "checkpoint": {"step": "", "path": "relative to the job's folder", "size_bytes": "", "save_s": ""},
    "stage": {"status": "start, end or skip", "index": "position in run.stages, 0-based", "of": "number of stages", "took_s": ""},
    "warning": {"code": "short-word", "message": ""},
    "done": {"reason": "finished, session_limit", "resumable": "bool", "step": ""},
    "checks": {"node": "", "took_s": "", "checks": "list of check, ok and, where not ok, code and message"},
    "error": {"code": "exit code", "name": "of the code", "message": "", "failed_rank": "", "step": ""},
}
"""Fields of each kind of event beside v, event, stage, t, rank, attempt."""


def measured_in(stage: str, fields: Mapping[str, Any]) -> str:
    """Under which stage's name a value of an ``eval`` event is kept: ``sft``, or ``eval-sft`` where stage eval measured sft's model.

    Stage eval may run after each stage, on models whose steps are counted anew: one name for all would mix them into one curve, and
    SwanLab leaves out a value whose step is below that of the value before it.
    """
    return f"{stage}-{fields['model']}" if fields.get("model") else stage


def encode(
    event: EventKind, *, stage: str, t: float, rank: int = 0, attempt: int = 0, fields: dict[str, Any] | None = None
) -> str:
    """One event as a line of JSON with its newline. Numbers that JSON cannot hold (NaN, infinity) become strings.

    Args:
        event: Kind of event.
        stage: Stage that is running, or "" outside of one.
        t: Unix time in seconds.
        rank: Rank that writes.
        attempt: Attempt number, 0-based.
        fields: The kind's own fields, see `FIELDS`.
    """
    record: dict[str, Any] = {"v": VERSION, "event": event, "stage": stage, "t": round(t, 3), "rank": rank, "attempt": attempt}
    record.update({key: _finite(value) for key, value in (fields or {}).items()})
    return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def parse_line(line: str) -> dict[str, Any] | None:
    """The event in a line, or None where the line is ordinary text, cut short, or of another version."""
    line = line.strip()
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or record.get("v") != VERSION or not isinstance(record.get("event"), str):
        return None
    return record


def parse_lines(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The events among lines of mixed output, in order."""
    for line in lines:
        record = parse_line(line)
        if record is not None:
            yield record
