"""Stopping, suspending and resuming a job by Volcano's Commands, with our intent noted on the job first.

The note comes first because Volcano's phases do not tell why a job ended. Volcano takes a Command only in some phases (none
while it restarts a job) and then deletes it without a word, so each is looked after until the job moves.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nanochat_npu import marks, partial
from nanochat_npu.cluster.read import pods_of, read_job
from nanochat_npu.cluster.submit import wait_until_gone
from nanochat_npu.errors import ClusterError, JobError
from nanochat_npu.i18n import _
from nanochat_npu.job_state import FINAL_PHASES, JobObjects, owned_pods, stuck_pods
from nanochat_npu.kube import Kube
from nanochat_npu.resources import COMMANDS, JOBS, PODS

__all__ = ["Control"]

ACTS_WITHIN_S = 20.0
"""How long a controller may take to act on a Command; it does so within a second unless it is down."""


@dataclass(frozen=True)
class Control:
    """Asks one cluster's Volcano to stop jobs and let them go on.

    Args:
        kube: Client.
        namespace: Of the jobs.
        user: Who asks, for the note on the job.
    """

    kube: Kube
    namespace: str
    user: str

    def cancel(self, name: str, *, now: bool) -> None:
        """Stop a job for good; its object, its ended pods and their logs stay. With `now` running pods are not given time.

        Raises:
            JobNotFound: There is none.
            ClusterError: Volcano did not act.
        """
        job = read_job(self.kube, self.namespace, name)
        phase = _phase(job)
        if phase in FINAL_PHASES:
            return
        self._note(job, marks.Intent.CANCEL)
        if phase == "Aborted":
            return  # suspended: nothing runs, and the note alone says that it will not go on
        if phase not in ("Terminating", "Aborting"):
            self._command(name, job, "TerminateJob", lambda p: p in FINAL_PHASES | {"Terminating"})
        if now:
            self._kill_pods(name, job)

    def suspend(self, name: str) -> None:
        """Stop a job so that it can go on: the workers write a checkpoint, the NPUs become free.

        Raises:
            JobError: It has ended, or resuming would find no attempt left.
        """
        job = read_job(self.kube, self.namespace, name)
        phase = _phase(job)
        if phase in FINAL_PHASES:
            raise JobError(_("the job has ended ({phase}); there is nothing to suspend").format(phase=phase), where=name)
        if phase in ("Aborting", "Aborted"):
            return
        left = partial.integer(job, "spec", "maxRetry") - 1 - partial.integer(job, "status", "retryCount")
        if left < 1:
            raise JobError(
                _("Volcano counts resuming as an attempt, and none is left: the job would fail instead of going on"), where=name,
                hint=_("cancel it and submit it again; it goes on from its newest checkpoint: nanochat-npu cancel {name}").format(name=name),
            )
        self._note(job, marks.Intent.SUSPEND)
        self._command(name, job, "AbortJob", lambda p: p in ("Aborting", "Aborted"))

    def resume(self, name: str) -> None:
        """Let a suspended job go on; it queues again.

        Raises:
            JobError: It is not suspended.
        """
        job = read_job(self.kube, self.namespace, name)
        phase = _phase(job)
        if phase not in ("Aborting", "Aborted"):
            raise JobError(
                _("the job is not suspended (Volcano says {phase})").format(phase=phase or "-"), where=name,
                hint=_("look at it with: nanochat-npu status {name}").format(name=name),
            )
        self._note(job, marks.Intent.RUN)
        self._command(name, job, "ResumeJob", lambda p: p not in ("Aborting", "Aborted"))

    def delete(self, name: str) -> None:
        """Remove a job with its pods, ConfigMaps and Service, and wait until they are gone; never the output claim."""
        job = read_job(self.kube, self.namespace, name)
        uid = partial.text(job, "metadata", "uid")
        if _phase(job) not in FINAL_PHASES:
            self._note(job, marks.Intent.CANCEL)
        self.kube.delete(JOBS, name, self.namespace, uid=uid, foreground=True)
        grace = max((partial.integer(pod, "spec", "terminationGracePeriodSeconds") for pod in pods_of(self.kube, self.namespace, name)), default=30)
        wait_until_gone(self.kube, self.namespace, name, uid, grace + 60.0)

    def stuck(self, name: str) -> list[dict[str, Any]]:
        """Pods of the job that should have been gone for a minute: their nodes are dead, and the gang waits for them."""
        job = read_job(self.kube, self.namespace, name)
        return stuck_pods(JobObjects(job, None, pods_of(self.kube, self.namespace, name), now_s=time.time()))

    def force(self, pods: list[dict[str, Any]]) -> None:
        """Delete pods without waiting for their nodes' word. Safe only where the node is really off: two pods may else write to one folder."""
        for pod in pods:
            self.kube.delete(PODS, partial.text(pod, "metadata", "name"), self.namespace, uid=partial.text(pod, "metadata", "uid"), grace_s=0)

    # ---- how -------------------------------------------------------------------------------------------------------

    def _note(self, job: dict[str, Any], intent: marks.Intent) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
        change = {"metadata": {
            "uid": partial.text(job, "metadata", "uid"),  # a job that was made anew since we looked must not get it (409)
            "annotations": {marks.ANNOTATION_INTENT: intent.value, marks.ANNOTATION_INTENT_BY: f"{self.user} at {stamp}"},
        }}
        self.kube.patch(JOBS, partial.text(job, "metadata", "name"), change, self.namespace)

    def _command(self, name: str, job: dict[str, Any], action: str, moved: Callable[[str], bool]) -> None:
        """Issue a Command until the phase says that it was taken."""
        uid, clock = partial.text(job, "metadata", "uid"), self.kube.clock
        deadline, issued_at = clock.now() + ACTS_WITHIN_S, float("-inf")
        while True:
            found = self.kube.find(JOBS, name, self.namespace)
            if found is None or partial.text(found, "metadata", "uid") != uid or moved(_phase(found)) or _phase(found) in FINAL_PHASES:
                return
            if _phase(found) != "Restarting" and clock.now() - issued_at > 3.0:
                self.kube.create(COMMANDS, _command(found, action), self.namespace)
                issued_at = clock.now()
            if clock.now() > deadline:
                break
            clock.sleep(0.3)
        raise ClusterError(
            _("Volcano has not acted on {action} within {seconds:.0f} s").format(action=action, seconds=ACTS_WITHIN_S), where=f"{self.namespace}/{name}",
            hint=_("is its controller running? kubectl -n volcano-system get pods; to remove the job all the same: nanochat-npu cancel {name} --delete").format(name=name),
        )

    def _kill_pods(self, name: str, job: dict[str, Any]) -> None:
        for pod in owned_pods(JobObjects(job, None, pods_of(self.kube, self.namespace, name))):
            if partial.text(pod, "status", "phase") not in ("Succeeded", "Failed"):
                self.kube.delete(PODS, partial.text(pod, "metadata", "name"), self.namespace, uid=partial.text(pod, "metadata", "uid"), grace_s=1)


def _phase(job: dict[str, Any] | None) -> str:
    return partial.text(job, "status", "state", "phase")


def _command(job: dict[str, Any], action: str) -> dict[str, Any]:
    """A Volcano Command; the controller deletes it and then acts, and the garbage collector does where no controller is."""
    name, uid = partial.text(job, "metadata", "name"), partial.text(job, "metadata", "uid")
    target = {"apiVersion": JOBS.api_version, "kind": "Job", "name": name, "uid": uid, "controller": True}
    return {
        "apiVersion": COMMANDS.api_version, "kind": COMMANDS.kind, "action": action, "target": target,
        "metadata": {"generateName": f"{name}-{action.lower()}-", "ownerReferences": [{**target, "blockOwnerDeletion": False}]},
    }
