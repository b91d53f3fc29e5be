"""What a local job's folder says about the job: total over missing, half-written and foreign files."""

from dataclasses import replace
from typing import Any

from nanochat_npu import jobs, lenient, processes
from nanochat_npu.backends import ACTIVE, JobState, JobView, WorkerView
from nanochat_npu.i18n import _
from nanochat_npu.jobs import JobFolder
from nanochat_npu.meanings import meaning
from nanochat_npu.restarts import Why

__all__ = ["view_of"]


def view_of(folder: JobFolder) -> JobView:
    """The job as its folder tells it."""
    # The lock first: a supervisor that ends in good order writes its last state before it lets go of the lock.
    alive = jobs.is_locked(folder.lock_file)
    state, run, receipt = jobs.read_json(folder.state_file), jobs.read_json(folder.run_file), folder.receipt()
    view = JobView(
        name=folder.name, backend="local", state=_state(state.get("state")), phase=lenient.text(state.get("why")), owner=receipt.owner,
        submission_id=receipt.submission_id, where=str(folder.path), attempt=lenient.whole(state.get("attempt")), failures=lenient.whole(state.get("failures")) or 0,
        preemptions=lenient.whole(state.get("preemptions")) or 0, exit_code=lenient.whole(state.get("exit_code")), created_s=receipt.submitted_s or None,
        started_s=lenient.moment(state.get("started_s")), ended_s=lenient.moment(state.get("ended_s")), world_size=_world_size(run),
        workers=_workers(state, alive=alive), extra={**_extra(folder, state), "stages": _stages(run)},
    )
    if view.state in ACTIVE and not alive:
        return replace(view, state=JobState.UNKNOWN, phase="supervisor_gone", reason=_gone(folder))
    if view.state is JobState.UNKNOWN and alive:
        return replace(view, state=JobState.RUNNING, reason=_("its supervisor lives, but state.json cannot be read"))
    return replace(view, reason=_reason(view, lenient.text(state.get("detail"))))


def _state(value: object) -> JobState:
    try:
        return JobState(str(value))
    except ValueError:
        return JobState.UNKNOWN


def _world_size(run: dict[str, Any]) -> int | None:
    world = lenient.mapping(run.get("world"))
    nodes, ranks = lenient.whole(world.get("nodes")), lenient.whole(world.get("ranks_per_node"))
    return nodes * ranks if nodes and ranks else None


def _stages(run: dict[str, Any]) -> list[str]:
    stages = lenient.mapping(run.get("run")).get("stages")
    return [stage for stage in stages if isinstance(stage, str)] if isinstance(stages, list) else []


def _workers(state: dict[str, Any], *, alive: bool) -> tuple[WorkerView, ...]:
    views = []
    for launcher in lenient.mappings(state.get("launchers")):
        node, code = lenient.whole(launcher.get("node")) or 0, lenient.whole(launcher.get("exit_code"))
        word = "Running" if code is None and alive else "Gone" if code is None else "Succeeded" if code == 0 else "Failed"
        views.append(WorkerView(node, f"launcher {node}", word, where=f"pid {launcher.get('pid')}", exit_code=code, reason=meaning(code) if code else ""))
    return tuple(views)


def _extra(folder: JobFolder, state: dict[str, Any]) -> dict[str, Any]:
    attempts = folder.attempts
    verdict = jobs.read_json(folder.path / "attempts" / str(attempts[-1]) / "verdict.json") if attempts else {}
    settings = jobs.read_json(folder.settings_file)
    return {
        "attempts": lenient.mappings(state.get("attempts")), "verdict": verdict or None, "supervisor_pid": folder.supervisor_pid,
        "has_checkpoint": folder.has_checkpoint,
        "allowed_failures": lenient.whole(settings.get("failures")), "allowed_preemptions": lenient.whole(settings.get("preemptions")),
    }


def _gone(folder: JobFolder) -> str:
    left = len(processes.job_processes(folder.path))
    if left:
        return _("its supervisor was killed; {count} processes are still stopping (nanochat-npu cancel {name} ends them)").format(
            count=left, name=folder.name
        )
    return _("its supervisor was killed or the computer was restarted; submit the same spec again to go on from the newest checkpoint")


def _reason(view: JobView, detail: str) -> str:
    """The sentence for what the supervisor wrote; "" for a reason that this version does not know."""
    verdict = lenient.mapping(view.extra.get("verdict"))
    code = view.exit_code if view.exit_code is not None else 0
    message, place = lenient.text(verdict.get("message")) or detail or meaning(code), lenient.text(verdict.get("where"))
    failure = _("exit code {code}: {meaning}").format(code=code, meaning=f"{place}: {message}" if place else message)
    again = _("submit the same spec again to go on")
    texts: dict[str, str] = {
        Why.STARTING: _("the supervisor is starting"),
        Why.RUNNING: "",
        Why.STOPPING: _("the ranks are writing a checkpoint and stopping"),
        Why.FINISHED: "",
        Why.SESSION_LIMIT: _("the session's limit is reached; {again}").format(again=again),
        Why.FINAL_CODE: failure,
        Why.FAILURES_SPENT: _("failures: {count}, retries.failures allows {allowed}; last: {failure}").format(
            count=view.failures, allowed=view.extra.get("allowed_failures"), failure=failure
        ),
        Why.PREEMPTIONS_SPENT: _("interruptions: {count}, retries.preemptions allows {allowed}").format(
            count=view.preemptions, allowed=view.extra.get("allowed_preemptions")
        ),
        Why.RESTARTING: _("starting again after {failure}").format(failure=failure),
        Why.CANCELLED: _("cancelled; {again}").format(again=again),
        Why.CANCELLED_NOW: (
            # It may have been asked to leave in good order before, and have managed to: what there is counts, not what was asked for.
            _("stopped at once; {again} from its newest checkpoint").format(again=again) if view.extra.get("has_checkpoint")
            else _("stopped at once, before its first checkpoint; submit the same spec again to begin anew")
        ),
        Why.STOPPED_OUTSIDE: _("stopped by a signal from outside; {again}").format(again=again),
        Why.CANNOT_START: _("the launcher cannot be started: {detail}").format(detail=detail),
    }
    return texts.get(view.phase, "")
