"""What a job has done so far, folded from its events. Pure, and total: an event with odd fields adds what is usable of it.

Used by `status`, by everything that follows a job, and by the table at its end.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nanochat_npu import lenient, units
from nanochat_npu.i18n import _

__all__ = ["Evaluation", "Progress", "StageRun", "describe"]

RECENT = 8
"""Remarkable events that are kept for showing."""


@dataclass
class StageRun:
    """One stage of a job, as far as it came. A stage that is started again goes on in the same run."""

    name: str
    index: int
    status: str = "start"
    started_s: float | None = None
    took_s: float | None = None
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    tokens: int | None = None
    tokens_per_s: float | None = None
    busy_s: float = 0.0
    busy_tokens: float = 0.0
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    """(step, loss, tokens/s) of every step."""

    @property
    def mean_tokens_per_s(self) -> float | None:
        """Tokens per second over all its steps, evaluations and checkpoints left out."""
        return self.busy_tokens / self.busy_s if self.busy_s else self.tokens_per_s


@dataclass(frozen=True)
class Evaluation:
    """One result: a value, or how many of how many were right."""

    stage: str
    stage_index: int
    step: int | None
    name: str
    value: float | None
    correct: int | None = None
    total: int | None = None

    @property
    def text(self) -> str:
        """The result as a person reads it."""
        if self.correct is not None and self.total:
            return _("{correct} of {total}").format(correct=self.correct, total=self.total)
        return units.number(self.value) if self.value is not None else "?"


@dataclass
class Progress:
    """Everything that was read of a job's events; `feed` adds one."""

    attempt: int | None = None
    stage: str = ""
    stages_total: int | None = None
    runs: list[StageRun] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    checkpoint: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    recent: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=RECENT))
    eta_s: float | None = None
    mfu_frac: float | None = None
    memory_bytes: float | None = None
    done: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    last_t: float | None = None

    @property
    def run(self) -> StageRun | None:
        """The stage that is running, or ran last."""
        return self.runs[-1] if self.runs else None

    @property
    def stepping(self) -> StageRun | None:
        """The last stage that takes steps: an evaluation after training does not hide what was trained."""
        return next((run for run in reversed(self.runs) if run.step is not None), None)

    @property
    def tokens(self) -> int | None:
        """Tokens trained in all stages."""
        counts = [run.tokens for run in self.runs if run.tokens is not None]
        return sum(counts) if counts else None

    def feed_all(self, events: Iterable[dict[str, Any]]) -> None:
        """Add events in order."""
        for event in events:
            self.feed(event)

    def feed(self, event: dict[str, Any]) -> None:
        """Add one event; of an unknown kind only its time and stage are used."""
        self.last_t = lenient.moment(event.get("t")) or self.last_t
        attempt = lenient.whole(event.get("attempt"))
        if attempt is not None and attempt != self.attempt:
            self.attempt, self.error, self.done = attempt, None, None
        self.stage = lenient.text(event.get("stage")) or self.stage
        handler = getattr(self, f"_{event.get('event')}", None) if event.get("event") in _KINDS else None
        if handler is not None:
            handler(event)
        if event.get("event") in _REMARKABLE:
            self.recent.append((self.last_t or 0.0, describe(event)))

    def before_and_after(self) -> dict[str, tuple[Evaluation, Evaluation]]:
        """The first and the last result of everything that was measured, by a title.

        Answers that are right or wrong are comparable over the whole job. A loss or bpb is one of its stage's own data.
        """
        found: dict[str, list[Evaluation]] = {}
        for result in self.evaluations:
            title = result.name if result.total else f"{result.name} ({result.stage})"
            found.setdefault(title, []).append(result)
        return {title: (of_title[0], of_title[-1]) for title, of_title in found.items()}

    def _stage(self, event: dict[str, Any]) -> None:
        index = lenient.whole(event.get("index"))
        self.stages_total = lenient.whole(event.get("of")) or self.stages_total
        run = self._run_of(lenient.text(event.get("stage")), index)
        run.status = lenient.text(event.get("status")) or run.status
        if run.status == "start":
            run.started_s = run.started_s or lenient.moment(event.get("t"))
        took = lenient.number(event.get("took_s"))
        if took is not None and run.status == "end":
            run.took_s = took
        self.eta_s = None

    def _step(self, event: dict[str, Any]) -> None:
        run = self._run_of(lenient.text(event.get("stage")), None)
        step, loss, speed = lenient.whole(event.get("step")), lenient.number(event.get("loss")), lenient.number(event.get("tokens_per_s"))
        before = run.tokens or 0
        run.step, run.loss, run.tokens_per_s = step if step is not None else run.step, loss, speed
        run.steps = lenient.whole(event.get("steps")) or run.steps
        run.tokens = lenient.whole(event.get("tokens")) or run.tokens
        dt = lenient.number(event.get("dt_s"))
        if dt and run.tokens and run.tokens > before:
            run.busy_s, run.busy_tokens = run.busy_s + dt, run.busy_tokens + (speed * dt if speed else run.tokens - before)
        if step is not None and loss is not None:
            while run.curve and run.curve[-1][0] >= step:  # went back to a checkpoint
                run.curve.pop()
            run.curve.append((step, loss, speed or 0.0))
        self.eta_s = lenient.number(event.get("eta_s"))
        self.mfu_frac = lenient.number(event.get("mfu_frac"))
        self.memory_bytes = lenient.number(event.get("memory_bytes")) or self.memory_bytes

    def _eval(self, event: dict[str, Any]) -> None:
        run = self.run
        self.evaluations.append(
            Evaluation(
                lenient.text(event.get("stage")), run.index if run else 0, lenient.whole(event.get("step")), lenient.text(event.get("name")) or "?",
                lenient.number(event.get("value")), lenient.whole(event.get("correct")), lenient.whole(event.get("total")),
            )
        )

    def _checkpoint(self, event: dict[str, Any]) -> None:
        self.checkpoint = {key: event.get(key) for key in ("stage", "step", "path", "size_bytes")}

    def _warning(self, event: dict[str, Any]) -> None:
        self.warnings.append(lenient.text(event.get("message")) or lenient.text(event.get("code")))

    def _done(self, event: dict[str, Any]) -> None:
        self.done = event

    def _error(self, event: dict[str, Any]) -> None:
        self.error = event

    def _run_of(self, stage: str, index: int | None) -> StageRun:
        """The run of a stage: by its place where the event tells it, else the newest of that name."""
        for run in reversed(self.runs):
            if run.name == stage and (index is None or run.index == index):
                return run
        run = StageRun(stage, len(self.runs) if index is None else index)
        self.runs.append(run)
        self.runs.sort(key=lambda each: each.index)
        return run


_KINDS = frozenset({"stage", "step", "eval", "checkpoint", "warning", "done", "error"})
_REMARKABLE = frozenset({"stage", "eval", "sample", "checkpoint", "warning", "done", "error"})


def describe(event: dict[str, Any]) -> str:
    """One event as a short line; total over kinds and fields."""
    kind, stage = event.get("event"), lenient.text(event.get("stage"))
    if kind == "step":
        return _step_text(event, stage)
    if kind == "stage":
        return _stage_text(event, stage)
    if kind == "eval":
        result = Evaluation(
            stage, 0, None, lenient.text(event.get("name")) or "?", lenient.number(event.get("value")), lenient.whole(event.get("correct")), lenient.whole(event.get("total"))
        )
        return _("{where}: {name} {result}").format(where=_where(event, stage), name=result.name, result=result.text)
    if kind == "checkpoint":
        size = lenient.number(event.get("size_bytes"))
        return _("{where}: checkpoint {path}{size}").format(
            where=_where(event, stage), path=lenient.text(event.get("path")), size=f" ({units.size(size)})" if size else ""
        )
    if kind == "sample":
        return _("{where}: sample {prompt}{text}").format(where=_where(event, stage), prompt=_line(event.get("prompt")), text=_line(event.get("text")))
    if kind == "warning":
        return _("warning: {text}").format(text=_line(event.get("message")) or lenient.text(event.get("code")))
    if kind == "done":
        return _done_text(lenient.text(event.get("reason")), resumable=event.get("resumable") is True)
    if kind == "error":
        return _("error {code} {name}: {message}").format(code=event.get("code"), name=lenient.text(event.get("name")), message=_line(event.get("message")))
    return f"{stage} {kind}".strip()


def _step_text(event: dict[str, Any], stage: str) -> str:
    parts = [_where(event, stage)]
    loss, speed, eta = (lenient.number(event.get(key)) for key in ("loss", "tokens_per_s", "eta_s"))
    if loss is not None:
        parts.append(_("loss {loss}").format(loss=f"{loss:.4f}"))
    if speed is not None:
        parts.append(_("{count} tokens/s").format(count=units.count(speed)))
    if eta is not None:
        parts.append(_("{time} left").format(time=units.duration(eta)))
    return "  ".join(parts)


def _stage_text(event: dict[str, Any], stage: str) -> str:
    index, of, took = lenient.whole(event.get("index")), lenient.whole(event.get("of")), lenient.number(event.get("took_s"))
    place = _(" ({number} of {of})").format(number=index + 1, of=of) if index is not None and of else ""
    if event.get("status") == "end":
        return _("stage {stage}{place} done{took}").format(
            stage=stage, place=place, took=_(" in {time}").format(time=units.duration(took)) if took is not None else ""
        )
    if event.get("status") == "skip":
        return _("stage {stage}{place}: done before").format(stage=stage, place=place)
    return _("stage {stage}{place}").format(stage=stage, place=place)


def _done_text(reason: str, *, resumable: bool) -> str:
    if not resumable:
        return _("all stages are done")
    return _("stopped on request; it can go on") if reason == "interrupted" else _("stopped: {reason}; it can go on").format(reason=reason or "?")


def _where(event: dict[str, Any], stage: str) -> str:
    step, steps = lenient.whole(event.get("step")), lenient.whole(event.get("steps"))
    if step is None:
        return stage
    return f"{stage} {step}/{steps}" if steps else f"{stage} {step}"


def _line(value: object, limit: int = 100) -> str:
    text = " ".join(str(value).split()) if isinstance(value, str) else ""
    return text if len(text) <= limit else text[: limit - 1] + "…"
