"""What was read about a job, and what its pods say: which are its own, how each is, which failed first. Pure and total."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nanochat.contract import ExitCode
from nanochat_npu import marks, partial

__all__ = [
    "UNHEALING", "Failure", "JobObjects", "attempt_of", "ended_container", "first_failure", "owned_pods", "plan_of", "pod_state", "stuck_pods", "worker_index",
]

UNHEALING = frozenset({
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CrashLoopBackOff",
})
"""Reasons for which a container waits until somebody changes something."""
_STUCK_AFTER_S = 60.0
"""Beyond its grace period, a pod that is still Terminating after this long has no kubelet any more."""


@dataclass(frozen=True)
class JobObjects:
    """What was read about one job; any part may be missing, empty or half written.

    Attributes:
        job: The Volcano Job, or None if it is gone.
        podgroup: Its PodGroup; there is none while it is suspended and after its end.
        pods: Pods with its name label; those of an earlier job of the same name are sorted out by owner.
        events: Events about job and PodGroup, in any order; may be left out.
        now_s: Unix time, for ages.
        gone: The job was deleted; `job` is what was last seen of it.
    """

    job: dict[str, Any] | None
    podgroup: dict[str, Any] | None = None
    pods: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    now_s: float | None = None
    gone: bool = False


def owned_pods(objects: JobObjects) -> list[dict[str, Any]]:
    """The job's own pods by worker index: the name label also matches pods of an earlier job that still terminate."""
    uid = partial.text(objects.job, "metadata", "uid")
    pods = [pod for pod in objects.pods if isinstance(pod, dict)]
    if uid:
        pods = [pod for pod in pods if _owner_uid(pod) in ("", uid)]
    return sorted(pods, key=lambda pod: (worker_index(pod), partial.text(pod, "metadata", "name")))


def attempt_of(job: dict[str, Any] | None) -> int:
    """Number of the current or last attempt, 0-based.

    Volcano counts ``retryCount`` up when it decides to restart, also when no attempt is left: a job that has failed for
    good shows one more than it ran (recording ``always_fails_1``).
    """
    retries = partial.integer(job, "status", "retryCount")
    allowed = partial.integer(job, "spec", "maxRetry")
    failed = partial.text(job, "status", "state", "phase") == "Failed"
    return min(retries, allowed - 1) if failed and 0 < allowed <= retries else retries


def plan_of(job: dict[str, Any] | None) -> dict[str, Any]:
    """What the renderer noted of the plan, {} where it is missing or unreadable."""
    try:
        noted = json.loads(partial.annotation(job, marks.ANNOTATION_PLAN))
    except ValueError:
        return {}
    return noted if isinstance(noted, dict) else {}


def pod_state(pod: dict[str, Any]) -> str:
    """One word on a pod: its phase, ``Terminating`` while it is being deleted, or why its container waits (``ImagePullBackOff``)."""
    if partial.text(pod, "metadata", "deletionTimestamp"):
        return "Terminating"
    phase = partial.text(pod, "status", "phase")
    if phase in ("Pending", ""):
        for status in (*partial.items(pod, "status", "initContainerStatuses"), *partial.items(pod, "status", "containerStatuses")):
            reason = partial.text(status, "state", "waiting", "reason")
            if reason and reason not in ("PodInitializing", "ContainerCreating"):
                return reason
        if partial.text(pod, "spec", "nodeName"):
            return "Starting" if phase else "Unknown"
    return phase or "Unknown"


def stuck_pods(objects: JobObjects) -> list[dict[str, Any]]:
    """Pods that should have been gone for a minute: their node is dead, and the whole gang waits for them (``dead_node_stuck``)."""
    if objects.now_s is None:
        return []
    return [pod for pod in owned_pods(objects) if _overdue_s(pod, objects.now_s) > _STUCK_AFTER_S]


@dataclass(frozen=True)
class Failure:
    """How the worker that failed first ended."""

    worker: int
    pod: str
    code: int | None
    """None where no container ended: the pod was evicted, or its node is gone."""
    message: str


def first_failure(pods: Iterable[dict[str, Any]]) -> Failure | None:
    """The worker that failed first; peers that were killed for it (137, 143, 82) come second whatever their clocks say."""
    found: list[tuple[bool, float, int, Failure]] = []
    for pod in pods:
        ended = ended_container(pod)
        code = partial.integer(ended, "exitCode")
        if partial.text(pod, "status", "phase") != "Failed" and code == 0:
            continue
        moment = partial.when(ended, "finishedAt")
        told = partial.text(ended, "message").strip() or partial.text(pod, "status", "message").strip() or partial.text(pod, "status", "reason")
        failure = Failure(worker_index(pod), partial.text(pod, "metadata", "name"), code or None, told[:400])
        bystander = code in (ExitCode.INTERRUPTED, 137, 143)
        found.append((bystander, moment.timestamp() if moment else float("inf"), failure.worker, failure))
    return min(found, key=lambda entry: entry[:3])[3] if found else None


def ended_container(pod: dict[str, Any]) -> dict[str, Any]:
    """How the trainer's container ended, {} while it has not."""
    # Volcano's exitCode policies look at the first container only, and so do we.
    return partial.mapping(pod, "status", "containerStatuses", 0, "state", "terminated")


def _overdue_s(pod: dict[str, Any], now_s: float) -> float:
    # deletionTimestamp already lies a grace period ahead of the request.
    moment = partial.when(pod, "metadata", "deletionTimestamp")
    return now_s - moment.timestamp() if moment else 0.0


def _owner_uid(pod: dict[str, Any]) -> str:
    for owner in partial.items(pod, "metadata", "ownerReferences"):
        if owner.get("kind") == "Job":
            return partial.text(owner, "uid")
    return ""


def worker_index(pod: dict[str, Any]) -> int:
    """Worker index: label since Volcano 1.9, before that the end of the name."""
    for value in (partial.label(pod, "volcano.sh/task-index"), partial.text(pod, "metadata", "name").rpartition("-")[2]):
        if value.isascii() and value.isdigit() and len(value) < 10:
            return int(value)
    return 0
