"""From the objects of a cluster to the state of a job: one total, pure function over a Job, its PodGroup, pods and events.

Our state is not a function of Volcano's phase. *Terminated* may mean that a person cancelled, that the trainer left with a
code that must not be retried, or that the controller gave up after 15 sync errors; *Aborted* is a suspension or a cancel;
*Pending* after a restart is a job between two attempts. So the intent that we annotated, the pods' exit codes and the
controller's events are read too. Phases and transitions: volcano-sh/volcano ``pkg/controllers/job/state/*.go``; what a client
sees in which order: ``tests/recordings``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nanochat_npu import marks, partial
from nanochat_npu.backends import JobState, JobView, WorkerView
from nanochat_npu.i18n import _
from nanochat_npu.job_objects import (
    UNHEALING,
    Failure,
    JobObjects,
    attempt_of,
    ended_container,
    first_failure,
    owned_pods,
    plan_of,
    pod_state,
    stuck_pods,
    worker_index,
)
from nanochat_npu.meanings import meaning

__all__ = ["FINAL_PHASES", "PHASES", "UNHEALING", "JobObjects", "attempt_of", "job_view", "owned_pods", "plan_of", "pod_state", "stuck_pods"]

PHASES = (
    "Pending", "Running", "Restarting", "Completing", "Completed", "Aborting", "Aborted", "Terminating", "Terminated", "Failed",
)
"""Volcano's ten phases; the empty string is a job that no controller has seen yet."""
FINAL_PHASES = frozenset({"Completed", "Failed", "Terminated"})
"""Phases that Volcano never leaves."""


def job_view(objects: JobObjects) -> JobView:
    """The job as a person should see it; never raises, whatever parts are missing."""
    job = objects.job
    phase = partial.text(job, "status", "state", "phase")
    facts = _Facts(objects, phase, partial.annotation(job, marks.ANNOTATION_INTENT), first_failure(owned_pods(objects)))
    state, reason = _judge(facts)
    created, ended = partial.when(job, "metadata", "creationTimestamp"), partial.when(job, "status", "state", "lastTransitionTime")
    name, namespace = partial.text(job, "metadata", "name"), partial.text(job, "metadata", "namespace")
    return JobView(
        name=partial.label(job, marks.LABEL_JOB) or name,
        backend="volcano",
        state=state,
        phase=phase,
        reason=reason,
        owner=partial.label(job, marks.LABEL_OWNER),
        submission_id=partial.annotation(job, marks.ANNOTATION_SUBMISSION),
        where=f"{namespace}/{name}",
        attempt=attempt_of(job),
        exit_code=_exit_code(facts, state),
        created_s=created.timestamp() if created else None,
        started_s=_first_running_s(job),
        ended_s=ended.timestamp() if ended and (phase in FINAL_PHASES or phase == "Aborted") else None,
        world_size=partial.integer(plan_of(job), "world_size") or _npus(job) or None,
        workers=tuple(_worker(pod) for pod in owned_pods(objects)),
        extra=_extra(objects),
    )


@dataclass(frozen=True)
class _Facts:
    objects: JobObjects
    phase: str
    intent: str
    failure: "Failure | None"

    @property
    def cancelled(self) -> bool:
        return self.intent == marks.Intent.CANCEL

    @property
    def intent_to_stop(self) -> bool:
        return self.intent in (marks.Intent.CANCEL, marks.Intent.SUSPEND)


Verdict = tuple[JobState, str]


def _judge(facts: _Facts) -> Verdict:
    job = facts.objects.job
    if job is None:
        return JobState.UNKNOWN, _("the job is gone from the cluster")
    if facts.phase not in FINAL_PHASES:
        if facts.objects.gone:
            return JobState.CANCELLED, _("the job was deleted from the cluster")
        if partial.text(job, "metadata", "deletionTimestamp"):
            return JobState.RUNNING, _("the job is being deleted")
    judge = _BY_PHASE.get(facts.phase)
    if judge is None:
        return JobState.UNKNOWN, _("Volcano reports phase {phase}, which this version does not know").format(phase=facts.phase)
    return judge(facts)


def _pending(facts: _Facts) -> Verdict:
    state = JobState.RESTARTING if partial.integer(facts.objects.job, "status", "retryCount") else JobState.PENDING
    return state, _why_waiting(facts)


def _why_waiting(facts: _Facts) -> str:
    objects = facts.objects
    pods, group = owned_pods(objects), partial.text(objects.podgroup, "status", "phase")
    blocked = [(pod, pod_state(pod)) for pod in pods if pod_state(pod) not in ("Pending", "Running", "Starting", "Succeeded", "Unknown", "Terminating")]
    if blocked:
        pod, why = blocked[0]
        return _("{pod} cannot start: {why}").format(pod=partial.text(pod, "metadata", "name"), why=why)
    if not partial.mapping(objects.job, "status") and not pods:
        return _("Volcano's controller has not looked at the job yet")
    if group in ("", "Pending") and not pods:
        return _last_scheduling_text(objects) or _("waiting in the queue")
    if any(pod_state(pod) == "Starting" for pod in pods):
        return _("containers are being started")
    return _last_scheduling_text(objects) or _("waiting for nodes for the whole gang")


def _last_scheduling_text(objects: JobObjects) -> str:
    """The scheduler's newest reason; the gang's own sentence hides the cause, which stands behind "Origin reason is"."""
    condition = partial.latest(
        [c for c in partial.items(objects.podgroup, "status", "conditions") if c.get("type") == "Unschedulable" and c.get("status") == "True"],
        "lastTransitionTime",
    )
    texts = [partial.text(condition, "message")]
    texts += [partial.text(event, "message") for event in objects.events if partial.text(event, "reason") in ("Unschedulable", "PodGroupPending", "FailedCreate")]
    texts = [text for text in texts if text]
    best = next((text for text in texts if "Origin reason is" in text), None)
    best = best or next((text for text in texts if "gang unschedulable" not in text), None) or (texts[0] if texts else "")
    _head, mark, cause = best.partition("Origin reason is ")
    if not mark and "gang unschedulable" in best:
        return ""  # how many of how many are not there yet says nothing about why
    return _plain(cause if mark else best)


def _plain(text: str) -> str:
    """One line; of a Go struct with a server's answer in it, the server's sentence."""
    _before, mark, rest = text.partition('Message:"')
    return " ".join((rest.partition('", Reason:')[0].replace('\\"', '"') if mark else text).split())[:600]


def _running(facts: _Facts) -> Verdict:
    stuck = stuck_pods(facts.objects)
    if stuck:
        return JobState.RUNNING, _("{pod} on node {node} does not end: its node seems to be dead, and all other workers wait for it").format(
            pod=partial.text(stuck[0], "metadata", "name"), node=partial.text(stuck[0], "spec", "nodeName") or "?"
        )
    return JobState.RUNNING, ""


def _restarting(facts: _Facts) -> Verdict:
    failure = facts.failure
    if failure is None:
        return JobState.RESTARTING, _("the pods of the last attempt are being removed")
    return JobState.RESTARTING, _failure_text(failure)


def _completing(facts: _Facts) -> Verdict:
    return JobState.RUNNING, _("all ranks are done; the pods are being put away")


def _completed(facts: _Facts) -> Verdict:
    if facts.failure is not None:
        # A policy of somebody's own (CompleteJob on a failure) must not turn a failure into a success.
        return JobState.FAILED, _("Volcano says completed, but {text}").format(text=_failure_text(facts.failure))
    return JobState.SUCCEEDED, ""


def _stopping(facts: _Facts) -> Verdict:
    # Still running for whoever waits for the stop: checkpoints take minutes.
    if facts.failure is not None and not facts.intent_to_stop:
        return JobState.RUNNING, _("the job is being ended: {text}").format(text=_failure_text(facts.failure))
    return JobState.RUNNING, _("the workers are writing a checkpoint and stopping")


def _aborted(facts: _Facts) -> Verdict:
    return (JobState.CANCELLED, _by_whom(facts)) if facts.cancelled else (JobState.SUSPENDED, _by_whom(facts))


def _terminated(facts: _Facts) -> Verdict:
    if facts.cancelled:
        return JobState.CANCELLED, _by_whom(facts)
    if facts.failure is not None:
        return JobState.FAILED, _failure_text(facts.failure)
    if _commanded(facts.objects, "TerminateJob"):
        return JobState.CANCELLED, _("ended by a Volcano command that was not ours")
    gave_up = _sync_error(facts.objects)
    return JobState.FAILED, gave_up or _("Volcano ended the job, and no pod is left that could say why")


def _failed(facts: _Facts) -> Verdict:
    if facts.failure is not None:
        return JobState.FAILED, _failure_text(facts.failure)
    if _commanded(facts.objects, "ResumeJob"):
        return JobState.FAILED, _("resuming takes an attempt, and none was left")
    return JobState.FAILED, _("no attempt is left")


_BY_PHASE: dict[str, Callable[[_Facts], Verdict]] = {
    "": _pending,
    "Pending": _pending,
    "Running": _running,
    "Restarting": _restarting,
    "Completing": _completing,
    "Completed": _completed,
    "Aborting": _stopping,
    "Aborted": _aborted,
    "Terminating": _stopping,
    "Terminated": _terminated,
    "Failed": _failed,
}


def _by_whom(facts: _Facts) -> str:
    who = partial.annotation(facts.objects.job, marks.ANNOTATION_INTENT_BY)
    return _("asked for by {who}").format(who=who) if who else ""


def _failure_text(failure: Failure) -> str:
    if failure.code is None:
        return _("worker {index} was lost: {meaning}").format(index=failure.worker, meaning=failure.message or _("no reason was given"))
    why = failure.message or meaning(failure.code)
    return _("worker {index} left with exit code {code}: {meaning}").format(index=failure.worker, code=failure.code, meaning=why)


def _commanded(objects: JobObjects, action: str) -> bool:
    return any(
        partial.text(event, "reason") == "CommandIssued" and f"command {action}" in partial.text(event, "message") for event in objects.events
    )


def _sync_error(objects: JobObjects) -> str:
    """What kept the controller from making pods; its events hold Go structs, of which the server's sentence is taken."""
    for event in objects.events:
        if partial.text(event, "reason") in ("FailedCreate", "PluginError", "PVCError", "PodGroupError"):
            return _plain(partial.text(event, "message"))
    return ""


def _exit_code(facts: _Facts, state: JobState) -> int | None:
    if facts.failure is not None:
        return facts.failure.code
    return 0 if state is JobState.SUCCEEDED else None


def _worker(pod: dict[str, Any]) -> WorkerView:
    ended = ended_container(pod)
    code = ended.get("exitCode")
    return WorkerView(
        node=worker_index(pod),
        name=partial.text(pod, "metadata", "name"),
        state=pod_state(pod),
        where=partial.text(pod, "spec", "nodeName"),
        exit_code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        reason=partial.text(ended, "reason") or partial.text(pod, "status", "reason"),
    )


def _extra(objects: JobObjects) -> dict[str, Any]:
    job = objects.job
    return {
        "namespace": partial.text(job, "metadata", "namespace"),
        "queue": partial.text(job, "spec", "queue"),
        "podgroup_phase": partial.text(objects.podgroup, "status", "phase"),
        "max_attempts": partial.integer(job, "spec", "maxRetry") or None,
        "workers_wanted": _replicas(job),
        "npus": _npus(job),
        "npus_per_worker": _npus_per_worker(job),
        "stages": _stages(job),
        "uid": partial.text(job, "metadata", "uid"),
        "intent": partial.annotation(job, marks.ANNOTATION_INTENT),
        "pulling_s": _pulling_s(owned_pods(objects)),
        "blocked": _blocked(objects),
        "stuck": [partial.text(pod, "metadata", "name") for pod in stuck_pods(objects)],
    }


def _stages(job: dict[str, Any] | None) -> list[str]:
    stages = partial.dig(plan_of(job), "stages")
    return [stage for stage in stages if isinstance(stage, str)] if isinstance(stages, list) else []


def _blocked(objects: JobObjects) -> str:
    """What keeps the job from starting and does not heal by itself, in one sentence; "" if there is no such thing."""
    if partial.text(objects.job, "status", "state", "phase") not in ("", "Pending"):
        return ""
    for pod in owned_pods(objects):
        if pod_state(pod) in UNHEALING:
            return _("{pod} cannot start: {why}").format(pod=partial.text(pod, "metadata", "name"), why=pod_state(pod))
    for event in objects.events:
        if partial.text(event, "reason") == "PluginError":
            return " ".join(partial.text(event, "message").split())
    return ""


def _replicas(job: dict[str, Any] | None) -> int:
    return sum(partial.integer(task, "replicas") for task in partial.items(job, "spec", "tasks"))


def _npus(job: dict[str, Any] | None) -> int:
    return sum(partial.integer(task, "replicas") * _task_npus(task) for task in partial.items(job, "spec", "tasks"))


def _npus_per_worker(job: dict[str, Any] | None) -> int:
    return max((_task_npus(task) for task in partial.items(job, "spec", "tasks")), default=0)


def _task_npus(task: dict[str, Any]) -> int:
    """NPUs of one pod: every vendor's plugin hands them out under a name of its own below ``huawei.com/`` (HAMi adds -memory and -core)."""
    limits = partial.mapping(task, "template", "spec", "containers", 0, "resources", "limits")
    return sum(
        partial.integer(limits, key) for key in limits if key.startswith("huawei.com/") and not key.endswith(("-memory", "-core"))
    )


def _first_running_s(job: dict[str, Any] | None) -> float | None:
    for condition in partial.items(job, "status", "conditions"):
        moment = partial.when(condition, "lastTransitionTime")
        if partial.text(condition, "status") == "Running" and moment:
            return moment.timestamp()
    return None


def _pulling_s(pods: list[dict[str, Any]]) -> float | None:
    """Seconds from a pod's place on a node until its container ran: pulling the image, mounting volumes. The slowest pod counts."""
    found = []
    for pod in pods:
        scheduled = next((partial.when(c, "lastTransitionTime") for c in partial.items(pod, "status", "conditions") if c.get("type") == "PodScheduled"), None)
        states = [partial.mapping(status, "state") for status in partial.items(pod, "status", "containerStatuses")]
        started = next((moment for state in states for kind in ("running", "terminated") if (moment := partial.when(state, kind, "startedAt"))), None)
        if scheduled and started:
            found.append(max(0.0, (started - scheduled).total_seconds()))
    return max(found) if found else None
