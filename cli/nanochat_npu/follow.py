"""Following a job to its end: a moving picture for a person, plain lines in a pipe, and what Ctrl-C means.

A job that was started by this very command in the foreground belongs to it: Ctrl-C asks it to write a checkpoint and leave, a
second Ctrl-C stops it now, a third only leaves. Of every other job Ctrl-C just stops the watching. Closing the terminal
(SIGHUP) never stops a job.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from nanochat_npu import console, lenient, live, progress, units
from nanochat_npu.backends import ENDED, Backend, JobState, JobView
from nanochat_npu.errors import JobFailed, JobTimeout, JobUnschedulable
from nanochat_npu.i18n import _
from nanochat_npu.progress import Progress
from nanochat_npu.views import Snapshot, job_json

__all__ = ["Display", "Followed", "LiveDisplay", "Options", "PlainDisplay", "Signals", "catching", "follow", "make_display", "raise_for_end"]

POLL_S = {"local": 0.2, "volcano": 1.0}
ESTIMATE_EVERY_S = 5.0
PLAIN_EVERY_S = 5.0
"""Between two lines about steps in a pipe, in the trainer's own time."""


@dataclass(frozen=True)
class Options:
    """How to follow.

    Attributes:
        owned: Ctrl-C stops the job, not only the watching.
        timeout_s: Give up watching after this long; the job goes on.
        history: Also tell what had happened before the watching began.
        blocked_after_s: Give up after so long of something that does not heal by itself, such as an image that cannot be
            pulled; kubelets get over a hiccup of the registry within a minute or two.
    """

    owned: bool = False
    timeout_s: float | None = None
    history: bool = False
    blocked_after_s: float = 180.0


@dataclass(frozen=True)
class Followed:
    """The job as it was last seen, and how often the person pressed Ctrl-C."""

    snapshot: Snapshot
    interrupts: int = 0


class Display(Protocol):
    """Where a followed job is shown."""

    def show(self, snapshot: Snapshot, fresh: list[dict[str, Any]]) -> None:
        """Show the job as it is now; `fresh` are the events since the last call."""
        ...

    def note(self, text: str) -> None:
        """Tell the person something about the watching itself."""
        ...

    def close(self) -> None:
        """Leave the terminal in order."""
        ...


class PlainDisplay:
    """Lines on stderr: every remarkable event, a step now and then, every change of state."""

    def __init__(self) -> None:
        self._state: tuple[JobState, int | None] | None = None
        self._last_step_t = 0.0

    def show(self, snapshot: Snapshot, fresh: list[dict[str, Any]]) -> None:
        """Write the lines that are new."""
        job = snapshot.job
        for event in fresh:
            if self._worth_a_line(event):
                console.say(f"{_clock(event.get('t'))} {progress.describe(event)}")
        state = (job.state, job.attempt)
        if state != self._state and job.state is not JobState.PENDING:
            self._state = state
            attempt = _(", attempt {number}").format(number=job.attempt) if job.attempt else ""
            console.say(f"{_clock(snapshot.now_s)} {job.name}: {job.state}{attempt}{'  ' + job.reason if job.reason else ''}")

    def note(self, text: str) -> None:
        """Write a line."""
        console.say(text)

    def close(self) -> None:
        """Nothing to put in order."""

    def _worth_a_line(self, event: dict[str, Any]) -> bool:
        if event.get("event") != "step":
            return event.get("event") not in (None, "sample")
        moment = lenient.moment(event.get("t"))
        due = moment is None or moment - self._last_step_t >= PLAIN_EVERY_S or event.get("step") == event.get("steps")
        if due and moment is not None:
            self._last_step_t = moment
        return due


class LiveDisplay:
    """A picture on stderr that moves."""

    def __init__(self, *, curve_rows: int = 0, screen: bool = False) -> None:
        from rich.live import Live

        self._console = console.rich_err()
        self._curve_rows = curve_rows
        self._note, self._untold = "", False
        self._shown: JobView | None = None
        self._drawn = 0.0
        self._estimated = -ESTIMATE_EVERY_S
        self._rows: tuple[tuple[str, str], ...] = ()
        self._live = Live(console=self._console, refresh_per_second=8, auto_refresh=False, screen=screen, vertical_overflow="crop")
        self._live.start()

    def show(self, snapshot: Snapshot, fresh: list[dict[str, Any]]) -> None:
        """Draw the picture anew."""
        if not fresh and snapshot.job == self._shown and time.monotonic() - self._drawn < 1.0:
            return
        self._shown, self._drawn = snapshot.job, time.monotonic()
        width, height = self._console.size
        curve_rows = min(self._curve_rows, max(2, (height - 16) // 2)) if self._curve_rows else 0
        view = live.View(width=width, curve_rows=curve_rows, note=self._note, rows=self._estimate(snapshot))
        self._live.update(live.picture(snapshot, view), refresh=True)
        self._untold = False

    def _estimate(self, snapshot: Snapshot) -> tuple[tuple[str, str], ...]:
        """Time left and cost against the estimate; now and then, since they are read from the ledger."""
        if time.monotonic() - self._estimated >= ESTIMATE_EVERY_S:
            from nanochat_npu.accounts_view import estimate_section

            self._estimated = time.monotonic()
            section = estimate_section(snapshot)
            self._rows = section.rows if section is not None else ()
        return self._rows

    def note(self, text: str) -> None:
        """Show a line below the picture, with the next one or at the end."""
        self._note, self._shown, self._untold = text, None, True

    def close(self) -> None:
        """Leave the last picture standing."""
        self._live.stop()
        if self._untold:
            console.say(self._note)


def make_display(*, curve_rows: int = 0, screen: bool = False) -> Display:
    """A moving picture where a person watches, else plain lines."""
    if console.is_watching():
        return LiveDisplay(curve_rows=curve_rows, screen=screen)
    return PlainDisplay()


@dataclass
class Signals:
    """How often the person pressed Ctrl-C (or sent SIGTERM), and how many of these were acted on."""

    count: int = 0
    seen: int = 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Count one; the handler for `signal.signal`."""
        self.count += 1

    def fresh(self) -> bool:
        """True once for each signal."""
        if self.seen < self.count:
            self.seen += 1
            return True
        return False


@contextmanager
def catching() -> Iterator[Signals]:
    """Count Ctrl-C and SIGTERM instead of dying of them."""
    signals = Signals()
    before = {number: signal.signal(number, signals.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def follow(backend: Backend, name: str, display: Display, options: Options | None = None, signals: Signals | None = None) -> Followed:
    """Watch a job until it has ended, the person has had enough, or the time is up.

    Args:
        backend: Has the job.
        name: Of the job.
        display: Where it is shown; closed at the end.
        options: How to follow.
        signals: Of a caller who has been `catching` since before the job started; what came since then counts.

    Raises:
        JobTimeout: `timeout_s` is over.
        JobUnschedulable: Something keeps the job from starting that does not heal by itself.
    """
    options = options or Options()
    state, source = Progress(), backend.events(name)
    blocked_since: float | None = None
    deadline = None if options.timeout_s is None else time.monotonic() + options.timeout_s
    with nullcontext(signals) if signals is not None else catching() as signals:
        try:
            if not options.history:
                state.feed_all(source.poll())
            while True:
                job = backend.get(name)  # before the events: what a job wrote before it ended is then never missed
                fresh = source.poll()
                state.feed_all(fresh)
                snapshot = Snapshot.of(job, state)
                display.show(snapshot, fresh)
                if job.state in ENDED:
                    return Followed(snapshot, signals.count)
                if signals.fresh() and _leave(backend, job, display, options, signals.seen):
                    return Followed(snapshot, signals.count)
                if deadline is not None and time.monotonic() >= deadline:
                    raise _timeout(job, options)
                blocked_since = _blocked(job, blocked_since, options)
                time.sleep(POLL_S[job.backend])
        finally:
            source.close()
            display.close()


def _blocked(job: JobView, since: float | None, options: Options) -> float | None:
    """Since when something keeps the job from starting that does not heal by itself.

    Raises:
        JobUnschedulable: For too long; waiting on would help nobody. The job stays as it is.
    """
    reason = job.extra.get("blocked")
    if not reason:
        return None
    now = time.monotonic()
    if since is not None and now - since > options.blocked_after_s:
        raise JobUnschedulable(
            str(reason), where=job.name, hint=_("why: nanochat-npu explain {name}; remove it: nanochat-npu cancel {name}").format(name=job.name),
            details={"state": job.state},
        )
    return since if since is not None else now


def _leave(backend: Backend, job: JobView, display: Display, options: Options, nth: int) -> bool:
    """React to the nth Ctrl-C; true if the watching ends."""
    if not options.owned:
        display.note(_("{name} goes on; stop it with: nanochat-npu cancel {name}").format(name=job.name))
        return True
    if nth == 1:
        backend.cancel(job.name)
        display.note(_("stopping {name}: a checkpoint is being written (Ctrl-C again stops now)").format(name=job.name))
    elif nth == 2:
        backend.cancel(job.name, now=True)
        display.note(_("stopping {name} now").format(name=job.name))
    return nth > 2


def _timeout(job: JobView, options: Options) -> JobTimeout:
    return JobTimeout(
        _("the job has not ended within {time}; it goes on").format(time=units.duration(options.timeout_s or 0)), where=job.name,
        hint=_("nanochat-npu status {name}").format(name=job.name), details={"state": job.state},
    )


def raise_for_end(snapshot: Snapshot) -> None:
    """Raise what the end of a job means for the command that followed it; nothing for a good end.

    Raises:
        JobFailed: With the first failing rank's exit code in ``details["code"]``.
    """
    job = snapshot.job
    if job.state is JobState.SUCCEEDED or (job.state is JobState.SUSPENDED and job.exit_code == 0):
        return
    verdict = job.extra.get("verdict")
    hint = (verdict.get("hint") if isinstance(verdict, dict) else None) or _("nanochat-npu logs {name}").format(name=job.name)
    raise JobFailed(
        job.reason or _("the job is {state}").format(state=job.state), where=job.name, hint=str(hint),
        details={"code": job.exit_code, "state": job.state, "job": job_json(snapshot)},
    )


def _clock(value: object) -> str:
    moment = lenient.moment(value)
    return time.strftime("%H:%M:%S", time.localtime(moment)) if moment is not None else "        "
