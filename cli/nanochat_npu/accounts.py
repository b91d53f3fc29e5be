"""Keeping accounts: a line in the ledger when a job is submitted, its actuals once it has ended, its projection meanwhile."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from nanochat.contract import events as contract_events
from nanochat.contract import layout
from nanochat_npu.backends import ENDED, JobState, JobView
from nanochat_npu.estimate import Estimate
from nanochat_npu.estimate.actual import Actual, actual
from nanochat_npu.jobs import JobFolder, Store, home_dir, read_json
from nanochat_npu.ledger import Entry, Ledger, LedgerError
from nanochat_npu.plan import Plan

__all__ = ["Projection", "close_entry", "note_submission", "open_entry", "project", "settle_local", "settle_seen", "settled"]

_FINISHED = {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.SUSPENDED}


Kind = Literal["whole", "continued", "calibration"]
"""What was submitted: a job from its beginning, the rest of one from a checkpoint, or a few steps that are measured."""


def open_entry(plan: Plan, result: Estimate, submitted_s: float, kind: Kind = "whole") -> Entry:
    """The ledger's line for a job that was just submitted; only whole ones say how good the estimate was."""
    inputs, spec = result.inputs, plan.spec
    total = result.cost.total
    estimated = {term.key: round(term.seconds, 3) for term in result.terms}
    if result.allowance_s is not None:
        estimated["allowance"] = round(result.allowance_s, 3)
    return Entry(
        job=plan.name, submission_id=plan.submission_id, submitted_s=submitted_s, backend=str(spec.backend), owner=spec.owner,
        project=spec.run.tracking.project, queue=spec.cluster.queue if spec.backend == "volcano" else "", chip=inputs.chip, stack=str(inputs.stack),
        tier=result.tier, world_size=inputs.world_size, billed_npus=inputs.billed_npus, hours_p10=result.hours.p10, hours_p50=result.hours.p50,
        hours_p90=result.hours.p90, cost_p50=total.p50 if total else None, price=inputs.price.likely if inputs.price else None,
        currency=inputs.price.currency if inputs.price else None, estimated=estimated,
        details={"depth": inputs.shape.depth, "device_batch": plan.run.pretrain.device_batch, "steps": plan.horizon.steps, "tokens": plan.horizon.tokens}
        | ({kind: True} if kind != "whole" else {}),
    )


def note_submission(plan: Plan, result: Estimate, *, kind: Kind = "whole", home: Path | None = None, now_s: float | None = None) -> str | None:
    """Write the line of a job that was just started; gives back why not, if it cannot: a job is not stopped for its books."""
    try:
        Ledger.of(home or home_dir()).put(open_entry(plan, result, time.time() if now_s is None else now_s, kind))
    except LedgerError as error:
        return str(error)
    return None


def close_entry(entry: Entry, state: JobState, took: Actual, *, exit_code: int | None, ended_s: float | None) -> Entry:
    """The line with what the job came to; waiting in the queue is not paid for."""
    hours = took.held_s / 3600
    cost = hours * entry.billed_npus * entry.price if entry.price is not None and entry.billed_npus else None
    return replace(entry, state=str(state), exit_code=exit_code, ended_s=ended_s, hours=hours, cost=cost, actual=took.as_dict())


def settled(entry: Entry, view: JobView, attempts: Sequence[Iterable[dict[str, Any]]], started_s: Sequence[float] = ()) -> Entry:
    """The line of a job that its backend says has ended; unchanged while it runs."""
    if entry.state != "OPEN" or view.state not in _FINISHED:
        return entry
    pulling = view.extra.get("pulling_s")
    took = actual(
        attempts, submitted_s=entry.submitted_s, started_s=started_s, ended_s=view.ended_s, pulling_s=pulling if isinstance(pulling, (int, float)) else 0.0
    )
    return close_entry(entry, view.state, took, exit_code=view.exit_code, ended_s=view.ended_s)


def attempt_events(folder: JobFolder, since_s: float) -> tuple[list[list[dict[str, Any]]], list[float]]:
    """Events of a local job's attempts that began after a submission, and when their processes did."""
    begun = {
        int(item["attempt"]): float(item["started_s"]) for item in read_json(folder.state_file).get("attempts") or []
        if isinstance(item, dict) and isinstance(item.get("attempt"), int) and isinstance(item.get("started_s"), (int, float))
    }
    found: list[list[dict[str, Any]]] = []
    started: list[float] = []
    for attempt in folder.attempts:
        path = layout.events_file(folder.path, attempt)
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                listed = list(contract_events.parse_lines(file))
        except OSError:
            continue
        first = next((event["t"] for event in listed if isinstance(event.get("t"), (int, float))), 0.0)
        if listed and first >= since_s - 1:
            found.append(listed)
            started.append(begun.get(attempt, first))
    return found, started


def settle_seen(view: JobView, listed: Sequence[dict[str, Any]], home: Path | None = None) -> None:
    """Close the line of a job whose end and events somebody has just seen; books that cannot be written stop nobody."""
    if view.state not in _FINISHED:
        return
    ledger = Ledger.of(home or home_dir())
    try:
        entry = ledger.latest(view.name, view.submission_id)
        if entry is None or entry.state != "OPEN":
            return
        since = [event for event in listed if isinstance(event.get("t"), (int, float)) and event["t"] >= entry.submitted_s - 1]
        numbers = sorted({event["attempt"] for event in since if isinstance(event.get("attempt"), int)})
        attempts = [[event for event in since if event.get("attempt") == number] for number in numbers]
        begun = [view.started_s] if view.started_s is not None and attempts else []
        ledger.put(settled(entry, view, attempts, begun))
    except LedgerError:
        return


def settle_local(home: Path | None = None) -> int:
    """Close the lines of local jobs that have ended since; gives back how many.

    Raises:
        LedgerError: The ledger cannot be read or written.
    """
    folder_home = home or home_dir()
    ledger, store, closed = Ledger.of(folder_home), Store(folder_home), 0
    entries = ledger.entries()
    newest = {entry.job: entry for entry in entries}
    for entry in entries:
        if entry.state != "OPEN" or entry.backend != "local":
            continue
        from nanochat_npu.backends.local_view import view_of

        folder = store.folder(entry.job)
        if newest[entry.job] is not entry or not folder.path.exists():
            # Its folder was removed, or belongs to a later submission: what it took cannot be told any more.
            ledger.put(replace(entry, state="GONE"))
            continue
        view = view_of(folder)
        if view.submission_id not in ("", entry.submission_id) or view.state not in ENDED:
            continue
        attempts, started = attempt_events(folder, entry.submitted_s)
        done = settled(entry, view, attempts, started)
        if done is not entry:
            ledger.put(done)
            closed += 1
    return closed


@dataclass(frozen=True)
class Projection:
    """Where a running job is heading, against its estimate.

    Attributes:
        hours: All of it, from its start to its likely end.
        left_h: Until then.
        cost: At the price of its plan, or None.
        outside: ``early`` or ``late`` where it leaves the P10-P90 of its estimate, else None.
    """

    hours: float
    left_h: float
    cost: float | None
    outside: str | None


def project(entry: Entry, *, elapsed_s: float, done: float) -> Projection | None:
    """The projection of a job of which a fraction of the work is done.

    Args:
        entry: Its line in the ledger.
        elapsed_s: Seconds since it started.
        done: Fraction of the estimated work behind it, 0 to 1; too little to say anything below 2 %.
    """
    if not 0.02 <= done <= 1 or elapsed_s <= 0 or entry.details.get("continued"):
        return None
    hours = elapsed_s / 3600 / done
    cost = hours * entry.billed_npus * entry.price if entry.price is not None and entry.billed_npus else None
    outside = "late" if hours > entry.hours_p90 else "early" if hours < entry.hours_p10 else None
    return Projection(hours, hours - elapsed_s / 3600, cost, outside)
