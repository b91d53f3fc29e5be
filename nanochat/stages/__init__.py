"""The stages of a job, one module each, run one after the other in the same processes.

A stage module has ``check(context)``, which raises if what the stage needs is missing, and ``run(context)``, which gives
back a small JSON object for the record. Stages never import each other; what two need is in `nanochat` itself.
"""

import importlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nanochat.context import Context
from nanochat.contract import Stage, layout
from nanochat.errors import BadConfig
from nanochat.files import write_atomic

__all__ = ["STAGES", "finished", "run_stages"]

STAGES: dict[Stage, str] = {
    Stage.DATA: "nanochat.stages.data",
    Stage.TOKENIZER: "nanochat.stages.tokenizer",
    Stage.PRETRAIN: "nanochat.stages.pretrain",
    Stage.SFT: "nanochat.stages.sft",
    Stage.RL: "nanochat.stages.rl",
    Stage.EVAL: "nanochat.stages.evaluate",
    Stage.REPORT: "nanochat.stages.report",
}
"""Module of each stage."""


@dataclass(frozen=True)
class _Loaded:
    check: Callable[[Context], None]
    run: Callable[[Context], dict[str, Any]]


def _load(stage: Stage) -> _Loaded:
    if stage not in STAGES:
        raise BadConfig(f"stage {stage} is not part of this version", where="run.stages", hint=f"one of {', '.join(STAGES)}")
    module = importlib.import_module(STAGES[stage])
    return _Loaded(module.check, module.run)


def run_stages(context: Context) -> None:
    """Run the stages of the run config in order, skipping those that an earlier attempt finished."""
    stages = context.run.stages
    modules = [_load(stage) for stage in stages]  # a stage that does not exist is found before hours of training
    done = context.peers.share(finished(context) if context.is_first else None)
    for index, (stage, module) in enumerate(zip(stages, modules, strict=True)):
        context.stage_index, context.events.stage, context.events.step = index, stage.value, 0
        if str(index) in done:
            _event(context, "skip", index, done[str(index)].get("took_s", 0.0))
            continue
        context.stop.check()
        module.check(context)
        _event(context, "start", index, 0.0)
        started = time.monotonic()
        result = module.run(context)
        took_s = round(time.monotonic() - started, 3)
        context.heart.rest()
        context.peers.meet()
        if context.is_first:
            _note(context, index, stage, took_s, result)
        _event(context, "end", index, took_s)


def _event(context: Context, status: str, index: int, took_s: float) -> None:
    if context.is_first:
        context.events.emit("stage", status=status, index=index, of=len(context.run.stages), took_s=took_s)


def finished(context: Context) -> dict[str, Any]:
    """Records of the stages that are finished, by their index; those of another submission or order do not count."""
    try:
        record = json.loads(layout.stages_file(context.job_dir).read_text(encoding="utf-8"))
        entries: dict[str, Any] = record["stages"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if record.get("submission_id", "") != context.run_file.submission_id or context.run.resume == "never":
        return {}
    order = [stage.value for stage in context.run.stages]
    return {index: entry for index, entry in entries.items() if int(index) < len(order) and order[int(index)] == entry["stage"]}


def _note(context: Context, index: int, stage: Stage, took_s: float, result: dict[str, Any]) -> None:
    entries = finished(context)
    entries[str(index)] = {"stage": stage.value, "took_s": took_s, "attempt": context.events.attempt, "ended": time.time(), "result": result}
    record = {"v": 1, "submission_id": context.run_file.submission_id, "stages": entries}
    write_atomic(layout.stages_file(context.job_dir), json.dumps(record, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
