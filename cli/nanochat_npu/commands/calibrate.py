"""``calibrate``: measure speed and memory with a short run of the very job, so that plans of it are sure."""

import datetime
import itertools
import math
import platform
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from nanochat.contract import Stage
from nanochat_npu import calibration, console, tables
from nanochat_npu.accounts import note_submission
from nanochat_npu.backends import Backend, JobState, JobView, Submission
from nanochat_npu.commands.submit import backend_of, spec_text
from nanochat_npu.errors import JobFailed, UsageError
from nanochat_npu.estimate import Calibration
from nanochat_npu.estimate.actual import StepTimes, step_times
from nanochat_npu.estimate.stages import validation_tokens
from nanochat_npu.estimating import (
    check_budget,
    estimate_here,
    host_with,
    inputs_of,
    job_versions,
    others_load,
    this_host,
)
from nanochat_npu.follow import Options, follow, make_display, raise_for_end
from nanochat_npu.i18n import _
from nanochat_npu.jobs import home_dir
from nanochat_npu.load import load_spec
from nanochat_npu.locate import job_backend
from nanochat_npu.options import OutputFormat, OutputOption, SetOption, SpecArgument, YesOption, set_flags
from nanochat_npu.plan import Plan, make_plan
from nanochat_npu.planviews import words
from nanochat_npu.planviews.sections import short_lines
from nanochat_npu.tables import Section

__all__ = ["Seen", "command", "record_of", "short_run"]

STEPS, DROP = 40, 10
MEASURED_S, SESSION_S, MOST_STEPS = 60.0, 150, 2000
"""Steps of a small model are over in a blink; what is measured has to last a minute, but not much longer on a slow computer."""
"""The first steps choose kernels and fill caches; the median of the next thirty was within 1.6 % of a whole run (PR 492)."""
CHEAP_STEPS, CHEAP_DROP = 4, 1
DRIFT = 0.05

StepsOption = Annotated[
    int | None, typer.Option("--steps", min=4, help=_("Optimiser steps to run; default: 40, or as many as take a minute."), show_default=False)
]
DropOption = Annotated[int, typer.Option("--drop", min=1, help=_("Steps at the beginning that do not count."))]
CheapOption = Annotated[bool, typer.Option("--cheap", help=_("Four steps only; the interval of plans is twice as wide."))]
FromOption = Annotated[
    str | None, typer.Option("--from-job", metavar="JOB", help=_("Take the steps of a job that ran here instead of running one."), show_default=False)
]


def command(
    spec: SpecArgument, set_: SetOption = None, steps: StepsOption = None, drop: DropOption = DROP, cheap: CheapOption = False, from_job: FromOption = None,
    yes: YesOption = False, output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Run a few steps of exactly this job, at its own depth, batch and ranks, and keep what they took."""
    if cheap:
        steps, drop = CHEAP_STEPS, CHEAP_DROP
    overrides = set_ or []
    plan = make_plan(load_spec(spec, overrides).spec, datetime.date.today())
    session_s = None
    if steps is None:
        steps, session_s = _enough_steps(plan, drop)
    will_run = steps if from_job else min(steps, plan.horizon.steps)
    if drop >= will_run - 1:
        raise UsageError(_("of {steps} steps, {drop} do not count: nothing would be left").format(steps=will_run, drop=drop), where="--drop")
    seen = _see(job_backend(from_job), from_job) if from_job else _measure(spec, [*overrides, *short_run(plan, steps, session_s)], plan, steps, yes=yes)
    measured = step_times(seen.events, drop=drop)
    if measured is None:
        raise UsageError(_("there are no steps beyond the first {drop} in this job").format(drop=drop), where=seen.job.name, hint=_("run more steps, or drop fewer: --steps, --drop"))
    record = record_of(plan, measured, seen, cheap=cheap)
    path = calibration.save(home_dir(), record)
    _show(record, path, output)
    console.say_next("plan", spec, *set_flags(overrides))


@dataclass(frozen=True)
class Seen:
    """A job that ran, with the events of its newest attempt, and the load average of other work meanwhile if somebody looked."""

    job: JobView
    events: list[dict[str, Any]]
    load_others: float | None = None


def _see(backend: Backend, name: str) -> Seen:
    source = backend.events(name)
    try:
        listed = source.poll()
        while fresh := source.poll():
            listed += fresh
    finally:
        source.close()
    newest = max((event["attempt"] for event in listed if isinstance(event.get("attempt"), int)), default=0)
    return Seen(backend.get(name), [event for event in listed if event.get("attempt") == newest])


def _enough_steps(plan: Plan, drop: int) -> tuple[int, int | None]:
    """Steps to run, and seconds after which it is enough where that are more than the usual number: a minute has to be measured."""
    step_s = estimate_here(plan)[0].rates.step_s
    wanted = min(MOST_STEPS, drop + math.ceil(MEASURED_S / step_s))
    return (STEPS, None) if wanted <= STEPS else (wanted, SESSION_S)


def short_run(plan: Plan, steps: int, session_s: int | None = None) -> list[str]:
    """``--set`` values that make a plan's job its own first steps: under another name, so that its folder stays as it is.

    Horizon, batch and model are unchanged, so the steps are the very steps of the job.
    """
    stages = [str(stage) for stage in (Stage.DATA, Stage.TOKENIZER) if stage in plan.run.stages] + [str(Stage.PRETRAIN)]
    return [
        f"name={_name(plan)}", f"run.stages=[{', '.join(stages)}]", f"run.pretrain.stop_at_step={min(steps, plan.horizon.steps)}",
        f"run.pretrain.steps={plan.horizon.steps}", f"run.pretrain.eval_every={max(1, min(steps, STEPS) // 2)}", "run.tracking.logger=none", "run.resume=never",
        "run.checkpoint.every_minutes=null", *([f"run.pretrain.max_session_s={session_s}"] if session_s is not None else []),
    ]


def _measure(spec: str, overrides: list[str], plan: Plan, steps: int, *, yes: bool) -> Seen:
    loaded = load_spec(spec, overrides)
    small = make_plan(loaded.spec, datetime.date.today())
    backend = backend_of(small)
    estimated, _problems = estimate_here(small)
    check_budget(estimated)
    for line in short_lines(estimated):
        console.say(line)
    question = _("Run {steps} steps of {name} on {backend}?").format(steps=steps, name=plan.name, backend=backend.name)
    if console.is_interactive() and not console.confirm(question, yes=yes):
        raise typer.Abort
    load_before = host_with(small).load
    submitted = backend.submit(Submission(small, spec_text(loaded.spec), rerun=True, origin=("calibrate", spec)))
    # It is paid for like any other job.
    note_submission(small, estimated, kind="calibration")
    followed = follow(backend, submitted.job.name, make_display(), Options(owned=backend.interrupt == "cancel"))
    if followed.snapshot.job.state not in (JobState.SUCCEEDED, JobState.SUSPENDED):
        raise_for_end(followed.snapshot)
        raise JobFailed(_("the calibration run did not end well"), where=submitted.job.name, hint=f"nanochat-npu logs {submitted.job.name}")
    seen = _see(backend, submitted.job.name)
    begun, ended = _begun(seen.job), seen.job.ended_s
    if backend.name != "local" or load_before is None or begun is None or ended is None:
        return seen
    after = others_load(this_host(), [(ended, ended - begun)], time.time()).load
    return replace(seen, load_others=(load_before + after) / 2 if after is not None else load_before)


def _name(plan: Plan) -> str:
    return f"calibrate-{plan.name}"[:54].rstrip("-")


@dataclass(frozen=True)
class _Around:
    """What a run spent beside its steps; None where it did not say."""

    start_s: float | None
    eval_tokens_per_s: float | None
    save_bytes_per_s: float | None
    end_s: float | None


def _around(seen: Seen, eval_tokens: int) -> _Around:
    """Start-up until the first step (the first evaluation left out), speed of validation, speed of writing."""
    timed = [event for event in seen.events if isinstance(event.get("t"), (int, float))]
    stage = [event for event in timed if event.get("stage") == Stage.PRETRAIN]
    evals = [e["t"] - before["t"] for before, e in itertools.pairwise(stage) if e.get("event") == "eval" and e.get("name") == "bpb" and e.get("step")]
    eval_s = median(evals) if evals else None
    begun, launched = _begun(seen.job), next((event["t"] for event in timed if event.get("event") == "stage"), None)
    start_s = None
    if begun is not None and launched is not None and launched > begun and stage:
        first_eval = next((e["t"] for e in stage if e.get("event") == "eval"), stage[0]["t"]) - stage[0]["t"]
        start_s = launched - begun + max(0.0, first_eval - (eval_s or 0.0))
    saves = [e["size_bytes"] / e["save_s"] for e in stage if e.get("event") == "checkpoint" and e.get("save_s") and e.get("size_bytes")]
    end_s = seen.job.ended_s - timed[-1]["t"] if seen.job.ended_s is not None and timed and seen.job.ended_s >= timed[-1]["t"] else None
    return _Around(start_s, eval_tokens / eval_s if eval_s else None, median(saves) if saves else None, end_s)


def _begun(job: JobView) -> float | None:
    """When the processes of the newest attempt began."""
    attempts = job.extra.get("attempts")
    times = [item.get("started_s") for item in attempts if isinstance(item, dict)] if isinstance(attempts, list) else []
    numbers = [float(time) for time in times if isinstance(time, (int, float))]
    return numbers[-1] if numbers else job.started_s


def record_of(plan: Plan, measured: StepTimes, seen: Seen, *, cheap: bool = False) -> Calibration:
    """What is kept of a measured run: its shape, where it ran, and what its steps took.

    Raises:
        UsageError: The run is of another batch than the plan.
    """
    inputs = inputs_of(plan, this_host())
    begun, ended = _begun(seen.job), seen.job.ended_s
    around = _around(seen, validation_tokens(inputs))
    if abs(measured.tokens_per_step - plan.horizon.tokens_per_step) > 0.02 * plan.horizon.tokens_per_step:
        raise UsageError(
            _("this job trained {seen:,} tokens per step, the plan has {planned:,}").format(seen=measured.tokens_per_step, planned=plan.horizon.tokens_per_step),
            where=seen.job.name,
        )
    return Calibration(
        chip=inputs.chip, stack=str(inputs.stack), depth=plan.shape.depth, width=plan.shape.width, device_batch=plan.run.pretrain.device_batch,
        tokens_per_step=plan.horizon.tokens_per_step, sequence_len=plan.shape.sequence_len, vocab=plan.shape.padded_vocab, world_size=plan.world_size,
        nodes=plan.spec.resources.nodes, window_pattern=plan.run.model.window_pattern, step_s=measured.median_s, mean_step_s=measured.mean_s,
        steps=measured.count, measured_on=datetime.date.today().isoformat(), peak_bytes=measured.peak_bytes, start_s=around.start_s,
        eval_tokens_per_s=around.eval_tokens_per_s, save_bytes_per_s=around.save_bytes_per_s, versions=job_versions(plan), host=_host(seen.job),
        quick_step_s=measured.quick_s, load_others=seen.load_others, end_s=around.end_s, ended_s=ended, ran_s=max(0.001, ended - begun) if ended and begun else None,
        drift_ln_sd=measured.drift_ln_sd, cheap=cheap,
    )


def _host(job: JobView) -> str:
    """Where it was measured: this computer, or the first worker's node."""
    if job.backend == "local":
        return platform.node()
    return next((worker.where for worker in job.workers if worker.where), job.where)


def _show(record: Calibration, path: Path, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        console.json_data({"calibration": vars(record), "tokens_per_s": record.tokens_per_s, "stalls": record.stalls, "file": str(path)})
        return
    rows = [
        (_("step"), _("median {median:.3f} s, mean {mean:.3f} s of {steps} steps").format(median=record.step_s, mean=record.mean_step_s, steps=record.steps)),
        (_("speed"), _("{speed:,.0f} tokens/s").format(speed=record.tokens_per_s)),
    ]
    if record.peak_bytes:
        rows.append((_("memory"), f"{record.peak_bytes / 1e9:.2f} GB"))
    if record.start_s is not None:
        rows.append((_("start-up"), words.hours(record.start_s / 3600)))
    if record.load_others is not None:
        rows.append((_("load of others"), _("{load:.1f} on average; the fastest steps took {quick:.3f} s").format(load=record.load_others, quick=record.quick_step_s or record.step_s)))
    rows.append((_("kept in"), str(path)))
    if record.drift_ln_sd > DRIFT:
        rows.append(("!", _("the speed wandered by {percent:.0f} % during the run: something else runs here, so plans stay wide").format(percent=100 * record.drift_ln_sd)))
    if record.stalls:
        rows.append(("!", _("host stalls: the mean is {percent:.0f} % above the median, so the mean counts").format(percent=100 * (record.mean_step_s / record.step_s - 1))))
    console.data(tables.to_text([Section("calibration", _("Calibration"), rows=tuple(rows))]))
