"""What people see of jobs: the sections of `status`, of `list`, and of the table at the end of a run."""

import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nanochat.contract import Stage
from nanochat_npu import lenient, units
from nanochat_npu.backends import ACTIVE, Backend, JobState, JobView
from nanochat_npu.i18n import _
from nanochat_npu.meanings import meaning
from nanochat_npu.progress import Evaluation, Progress
from nanochat_npu.tables import Section

__all__ = ["LIST_COLUMNS", "RESULT_SECTIONS", "STATUS_SECTIONS", "Snapshot", "job_json", "job_list", "next_command", "read_snapshot", "sections"]


@dataclass(frozen=True)
class Snapshot:
    """A job at one moment: what its backend says, and what its events say."""

    job: JobView
    progress: Progress
    now_s: float

    @classmethod
    def of(cls, job: JobView, progress: Progress) -> "Snapshot":
        """The snapshot of now."""
        return cls(job, progress, time.time())

    @property
    def elapsed_s(self) -> float | None:
        """Seconds since it started, until now or until its end."""
        begin = self.job.started_s or self.job.created_s
        end = self.job.ended_s or (self.now_s if self.job.state in ACTIVE else self.progress.last_t)
        return max(0.0, end - begin) if begin and end else None


def read_snapshot(backend: Backend, name: str) -> Snapshot:
    """A job and all its events so far, read once.

    Raises:
        JobNotFound: There is none of this name.
    """
    view, source, progress = backend.get(name), backend.events(name), Progress()
    try:
        progress.feed_all(source.poll())
    finally:
        source.close()
    return Snapshot.of(view, progress)


SectionMaker = Callable[[Snapshot], Section | None]


def sections(makers: Iterable[SectionMaker], snapshot: Snapshot) -> list[Section]:
    """The sections that have something to say about a job."""
    made = (maker(snapshot) for maker in makers)
    return [section for section in made if section is not None]


def overview(snapshot: Snapshot) -> Section:
    """State, reason, times, restarts."""
    job = snapshot.job
    rows = [(_("job"), job.name), (_("state"), f"{job.state}  {job.reason}".rstrip())]
    if job.phase and job.backend == "volcano":
        rows.append((_("Volcano phase"), job.phase))
    if job.exit_code:
        rows.append((_("exit code"), f"{job.exit_code}  {meaning(job.exit_code)}"))
    if job.attempt is not None:
        rows.append((_("attempt"), _attempt_text(job)))
    if snapshot.elapsed_s is not None:
        rows.append((_("running for") if job.state in ACTIVE else _("took"), units.duration(snapshot.elapsed_s)))
    rows += [(_("backend"), job.backend), (_("where"), job.where)]
    if job.owner:
        rows.append((_("owner"), job.owner))
    return Section("overview", rows=tuple(rows))


def _attempt_text(job: JobView) -> str:
    text = str(job.attempt)
    if job.failures or job.preemptions:
        text += "  " + _("({failures} failures, {preemptions} interruptions before)").format(failures=job.failures, preemptions=job.preemptions)
    return text


def cluster(snapshot: Snapshot) -> Section | None:
    """Queue and NPUs of a job on a cluster, and how many starts Volcano allows."""
    extra = snapshot.job.extra
    rows = [(_("queue"), str(extra["queue"]))] if extra.get("queue") else []
    if extra.get("npus"):
        rows.append((_("NPUs"), f"{extra['npus']}  ({extra.get('workers_wanted')} × {extra.get('npus_per_worker')})"))
    if extra.get("max_attempts") and snapshot.job.attempt is not None:
        rows.append((_("starts"), _("{n} of at most {limit}").format(n=snapshot.job.attempt + 1, limit=extra["max_attempts"])))
    return Section("cluster", rows=tuple(rows)) if rows and snapshot.job.backend == "volcano" else None


def training(snapshot: Snapshot) -> Section | None:
    """Stage, step, loss, speed."""
    progress, run = snapshot.progress, snapshot.progress.stepping
    if progress.run is None:
        return None
    rows = [(_("stage"), _stage_text(progress))]
    if run is not None:
        rows.append((_("step"), _step_text(run.step, run.steps)))
        if run.loss is not None:
            rows.append((_("loss"), f"{run.loss:.4f}"))
        if run.tokens_per_s is not None:
            rows.append((_("speed"), _("{count} tokens/s").format(count=units.count(run.tokens_per_s))))
    if progress.eta_s is not None and snapshot.job.state in ACTIVE:
        rows.append((_("left in this stage"), units.duration(progress.eta_s)))
    if progress.memory_bytes:
        rows.append((_("memory of rank 0"), units.size(progress.memory_bytes)))
    if progress.checkpoint:
        rows.append((_("checkpoint"), str(progress.checkpoint.get("path") or "?")))
    return Section("training", _("Training"), rows=tuple(rows))


def _stage_text(progress: Progress) -> str:
    run = progress.run
    if run is None:
        return "-"
    return _("{stage} ({number} of {of})").format(stage=run.name, number=run.index + 1, of=progress.stages_total) if progress.stages_total else run.name


def _step_text(step: int | None, steps: int | None) -> str:
    if step is None:
        return "-"
    return f"{step:,} / {steps:,}  ({100 * step / steps:.0f} %)" if steps else f"{step:,}"


def stages(snapshot: Snapshot) -> Section | None:
    """What each stage took and did."""
    lines = []
    for run in snapshot.progress.runs:
        speed = run.mean_tokens_per_s
        lines.append(
            (
                run.name, units.duration(run.took_s) if run.took_s is not None else "-", f"{run.step:,}" if run.step is not None else "-",
                units.count(run.tokens) if run.tokens else "-", units.count(speed) if speed else "-", f"{run.loss:.4f}" if run.loss is not None else "-",
            )
        )
    header = (_("stage"), _("took"), _("steps"), _("tokens"), _("tokens/s"), _("last loss"))
    value = [
        {
            "stage": run.name, "index": run.index, "status": run.status, "took_s": run.took_s, "step": run.step, "steps": run.steps, "tokens": run.tokens,
            "tokens_per_s": run.mean_tokens_per_s, "loss": run.loss,
        }
        for run in snapshot.progress.runs
    ]
    return Section("stages", _("Stages"), header=header, table=tuple(lines), value=value) if lines else None


def results(snapshot: Snapshot) -> Section | None:
    """First and last result of each evaluation."""
    lines, value = [], {}
    for title, (first, last) in snapshot.progress.before_and_after().items():
        early = first is last and first.step == 0  # measured before the first step, and not since
        lines.append((title + _measured_on(last, snapshot.progress), first.text if early or first is not last else "-", "-" if early else last.text))
        value[title] = {
            "name": first.name, "before": first.value, "after": None if early else last.value, "correct_before": first.correct, "correct": None if early else last.correct, "total": last.total, "stage": last.stage,
            "step": last.step,
        }
    return Section("results", _("Results"), header=(_("measured"), _("before"), _("after")), table=tuple(lines), value=value) if lines else None


def _measured_on(result: Evaluation, progress: Progress) -> str:
    """What a bpb was measured on: it rises on the text of pretraining once a model is taught to answer, and is no loss of skill."""
    if result.name != "bpb" or result.stage not in ("sft", "eval"):
        return ""
    if result.stage == "sft":
        return _(": on its examples")
    trained = [run.name for run in progress.runs if run.index < result.stage_index and run.name in ("pretrain", "sft", "rl")]
    return _(": on pretraining text, after {stage}").format(stage=trained[-1]) if trained else _(": on pretraining text")


def workers(snapshot: Snapshot) -> Section | None:
    """Launchers or pods; left out for a single one that does as it should."""
    views = snapshot.job.workers
    value = [
        {"node": view.node, "name": view.name, "state": view.state, "where": view.where, "exit_code": view.exit_code, "reason": view.reason} for view in views
    ]
    if len(views) < 2 and all(view.exit_code in (None, 0) for view in views):
        return Section("workers", value=value)
    table = tuple(
        (view.name, view.state, view.where, "-" if view.exit_code is None else str(view.exit_code), view.reason) for view in views
    )
    return Section("workers", _("Workers"), header=(_("worker"), _("state"), _("where"), _("code"), _("reason")), table=table, value=value)


def recent(snapshot: Snapshot) -> Section | None:
    """The last remarkable events."""
    events = snapshot.progress.recent
    table = tuple((time.strftime("%H:%M:%S", time.localtime(moment)), text) for moment, text in events)
    return Section("recent", _("Last events"), header=(_("time"), _("event")), table=table, value=[text for _t, text in events]) if table else None


def attempts(snapshot: Snapshot) -> Section | None:
    """The starts of a job, where there was more than one."""
    ends = lenient.mappings(snapshot.job.extra.get("attempts"))
    if len(ends) < 2 and not (ends and snapshot.job.state in ACTIVE and lenient.whole(ends[0].get("exit_code"))):
        return None
    lines = []
    for end in ends:
        begun, over, code = lenient.moment(end.get("started_s")), lenient.moment(end.get("ended_s")), lenient.whole(end.get("exit_code"))
        took = units.duration(over - begun) if begun and over else "-"
        lines.append((str(end.get("attempt")), took, "-" if code is None else str(code), "" if code is None else meaning(code)))
    return Section("attempts", _("Attempts"), header=(_("attempt"), _("took"), _("code"), _("meaning")), table=tuple(lines))


def warnings(snapshot: Snapshot) -> Section | None:
    """Warnings that the trainer gave."""
    texts = list(dict.fromkeys(snapshot.progress.warnings))
    return Section("warnings", _("Warnings"), rows=tuple(("!", text) for text in texts[-5:]), value=texts) if texts else None


def outcome(snapshot: Snapshot) -> Section:
    """What is left of a run: how it ended, its checkpoint, what to do next."""
    job, progress = snapshot.job, snapshot.progress
    rows = [(_("job"), f"{job.name}  {job.state}")]
    if job.reason:
        rows.append((_("because"), job.reason))
    if snapshot.elapsed_s is not None:
        rows.append((_("took"), units.duration(snapshot.elapsed_s)))
    if progress.tokens:
        rows.append((_("tokens"), units.count(progress.tokens)))
    run = max(progress.runs, key=lambda each: each.busy_s, default=None)
    if run is not None and run.mean_tokens_per_s:
        rows.append((_("tokens/s"), f"{units.count(run.mean_tokens_per_s)}  ({run.name})"))
    bpb = progress.before_and_after().get("bpb (pretrain)")
    if bpb is not None:
        rows.append((_("validation bpb (pretrain)"), f"{bpb[0].text} → {bpb[1].text}"))
    if progress.checkpoint and progress.checkpoint.get("path"):
        rows.append((_("checkpoint"), f"{job.where}/{progress.checkpoint['path']}"))
    rows.append((_("next"), next_command(job)))
    return Section("outcome", rows=tuple(rows))


STATUS_SECTIONS: list[SectionMaker] = [overview, cluster, training, results, attempts, workers, warnings, recent]
"""The parts of `status`, in order; append to it to show more."""
RESULT_SECTIONS: list[SectionMaker] = [stages, results, warnings, outcome]
"""The parts of the table at the end of a followed run."""


def next_command(job: JobView, where: Sequence[str] = ()) -> str:
    """The command that a person most likely wants next.

    Args:
        job: Which they have just looked at.
        where: The options with which they found it (`locate.Where.words`).
    """
    commands = {
        JobState.PENDING: ("status", job.name),
        JobState.RUNNING: ("logs", job.name, "--follow"),
        JobState.RESTARTING: ("logs", job.name, "--follow"),
        JobState.SUSPENDED: ("submit", _spec_of(job)) if job.backend == "local" else ("resume", job.name),
        JobState.SUCCEEDED: ("chat" if _left_a_model(job) else "report", job.name),
        JobState.FAILED: ("explain", job.name),
        JobState.CANCELLED: ("submit", _spec_of(job)),
        JobState.UNKNOWN: ("logs", job.name),
    }
    words = commands[job.state]
    return shlex.join(("nanochat-npu", *words, *(where if words[0] != "submit" else ())))  # a spec says itself where it belongs


def _spec_of(job: JobView) -> str:
    return f"{job.where}/spec.yaml" if job.backend == "local" else "SPEC"


def _left_a_model(job: JobView) -> bool:
    """False for a job that only made a tokenizer, fetched data or scored another one's model; true where its stages are not known."""
    stages = job.extra.get("stages")
    return not stages or not {Stage.PRETRAIN, Stage.SFT, Stage.RL}.isdisjoint(stages)


def job_json(snapshot: Snapshot) -> dict[str, Any]:
    """The facts of a job for ``-o json``: flat, None where unknown."""
    job, progress = snapshot.job, snapshot.progress
    run = progress.stepping
    return {
        "job": job.name, "state": str(job.state), "reason": job.reason, "backend": job.backend, "phase": job.phase, "where": job.where, "owner": job.owner,
        "submission_id": job.submission_id, "attempt": job.attempt, "failures": job.failures, "preemptions": job.preemptions, "exit_code": job.exit_code,
        "stage": progress.stage or None, "stage_index": progress.run.index if progress.run else None, "stages": progress.stages_total,
        "step": run.step if run else None, "steps": run.steps if run else None, "loss": run.loss if run else None,
        "tokens_per_s": run.tokens_per_s if run else None, "tokens": progress.tokens, "eta_s": progress.eta_s, "mfu_frac": progress.mfu_frac,
        "memory_bytes": progress.memory_bytes, "checkpoint": progress.checkpoint, "world_size": job.world_size, "created_s": job.created_s,
        "started_s": job.started_s, "ended_s": job.ended_s, "elapsed_s": snapshot.elapsed_s, "verdict": job.extra.get("verdict"),
        "attempts": job.extra.get("attempts"),
    }


LIST_COLUMNS: list[tuple[str, Callable[[Snapshot], str]]] = [
    ("job", lambda s: s.job.name),
    ("state", lambda s: str(s.job.state)),
    ("stage", lambda s: s.progress.stage or "-"),
    ("step", lambda s: _step_text(s.progress.stepping.step, s.progress.stepping.steps) if s.progress.stepping else "-"),
    ("loss", lambda s: f"{s.progress.stepping.loss:.4f}" if s.progress.stepping and s.progress.stepping.loss is not None else "-"),
    ("took", lambda s: units.duration(s.elapsed_s) if s.elapsed_s is not None else "-"),
    ("backend", lambda s: s.job.backend),
    ("owner", lambda s: s.job.owner or "-"),
]
"""Columns of `list`: heading and cell; append to it to show more."""


def job_list(snapshots: Iterable[Snapshot]) -> Section:
    """All jobs, one line each."""
    shots = list(snapshots)
    return Section(
        "jobs", header=tuple(_(title) for title, _cell in LIST_COLUMNS), table=tuple(tuple(cell(shot) for _title, cell in LIST_COLUMNS) for shot in shots),
        value=[job_json(shot) for shot in shots],
    )
