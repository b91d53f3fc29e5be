"""The stand-in's job controller: ten phases, retries, policies, Commands, time to live."""

import re
import time
from collections import Counter
from datetime import datetime
from typing import Any

from standin_world import Object, World, now, owner_reference, owner_uid, uid_of

from nanochat_npu.errors import ClusterRejected, NanochatNpuError
from nanochat_npu.resources import COMMANDS, CONFIGMAPS, JOBS, PODGROUPS, PODS, Resource

SERVICES = Resource("", "v1", "services", "Service")
ENDED = ("Completed", "Failed", "Terminated")
STOPPED_BY = {"AbortJob": "Aborting", "TerminateJob": "Terminating", "CompleteJob": "Completing", "RestartJob": "Restarting"}
NEXT = {"Aborting": "Aborted", "Terminating": "Terminated", "Completing": "Completed"}
MAX_SYNC_ERRORS = 15
"""After so many failures in a row to make pods the real controller gives up (--max-requeue-num)."""
_STATUS_ERROR = (
    'failed to create pod {pod}, err: &errors.StatusError{{ErrStatus:v1.Status{{TypeMeta:v1.TypeMeta{{Kind:"", APIVersion:""}}, ListMeta:v1.ListMeta{{SelfLink:"", '
    'ResourceVersion:"", Continue:"", RemainingItemCount:(*int64)(nil)}}, Status:"Failure", Message:"{message}", Reason:"Forbidden", '
    "Details:(*v1.StatusDetails)(0x37c17ca32c00), Code:403}}}}"
)


class JobController:
    """Brings every job one step further."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._handled: set[str] = set()
        """Uids of pods whose end has had its consequence."""
        self._known: dict[str, set[str]] = {}
        """Pods that a job was seen to have: one that vanishes was evicted."""
        self._errors: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}

    def step(self) -> None:
        """Look at every job once."""
        for job in list(self.world.jobs):
            try:
                self._sync(job)
            except NanochatNpuError as error:
                print(job["metadata"]["name"], error, flush=True)

    # ---- one job ---------------------------------------------------------------------------------------------------

    def _sync(self, job: Object) -> None:
        if job["metadata"].get("deletionTimestamp"):
            return
        phase = job.get("status", {}).get("state", {}).get("phase", "")
        pods = [pod for pod in self.world.pods if owner_uid(pod) == uid_of(job)]
        if not phase:
            self._set(job, "Pending", pods)
            return
        for command in self.world.commands:
            if command.get("target", {}).get("uid") == uid_of(job):
                phase = self._obey(job, command, phase, pods)
        if phase in ENDED:
            self._expire(job)
        elif phase in ("Pending", "Running"):
            self._run(job, phase, pods)
        elif phase == "Restarting":
            self._restart(job, pods)
        elif phase in NEXT and not any(_alive(pod) for pod in pods):
            self._set(job, NEXT[phase], pods)

    def _obey(self, job: Object, command: Object, phase: str, pods: list[Object]) -> str:
        action = command.get("action", "")
        meta = command["metadata"]
        self.world.commands.remove(command)
        self.world.delete(COMMANDS, meta["name"], meta["namespace"])
        self._tell(job, "Normal", "CommandIssued", f"Start to execute command {action}, and clean it up to make sure executed not more than once.")
        return self._act(job, action, phase, pods)

    def _act(self, job: Object, action: str, phase: str, pods: list[Object]) -> str:
        """Carry out an action where the phase allows it; the phase afterwards."""
        resumes = action == "ResumeJob" and phase in ("Aborting", "Aborted")
        if not resumes and (phase not in ("Pending", "Running") or action not in STOPPED_BY):
            return phase
        self._tell(job, "Normal", "ExecuteAction", f"Start to execute action {action} ")
        target = "Restarting" if resumes else STOPPED_BY[action]
        retries = job["status"].get("retryCount", 0) + (target == "Restarting")
        self._kill(job, pods, keep_ended=target != "Restarting" or retries >= job["spec"].get("maxRetry", 3))
        self._set(job, target, self._mine(job), retries=retries)
        return target

    def _kill(self, job: Object, pods: list[Object], *, keep_ended: bool) -> None:
        meta = job["metadata"]
        for pod in pods:
            if not (keep_ended and pod["status"].get("phase") in ("Succeeded", "Failed")) and not pod["metadata"].get("deletionTimestamp"):
                self.world.delete(PODS, pod["metadata"]["name"], meta["namespace"], uid=uid_of(pod))
                pod["metadata"]["deletionTimestamp"] = now()
            self._handled.add(uid_of(pod))
        self._known.pop(uid_of(job), None)
        self.world.delete(CONFIGMAPS, f"{meta['name']}-svc", meta["namespace"])
        self.world.delete(SERVICES, meta["name"], meta["namespace"])
        self._drop_group(job)

    def _drop_group(self, job: Object) -> None:
        for group in [group for group in self.world.podgroups if owner_uid(group) == uid_of(job)]:
            self.world.podgroups.remove(group)
            self.world.delete(PODGROUPS, group["metadata"]["name"], group["metadata"]["namespace"], uid=uid_of(group))

    def _restart(self, job: Object, pods: list[Object]) -> None:
        if job["status"].get("retryCount", 0) >= job["spec"].get("maxRetry", 3):
            self._drop_group(job)
            self._set(job, "Failed", pods)
        elif not any(pod["metadata"].get("deletionTimestamp") or uid_of(pod) in self._handled for pod in pods):
            self._set(job, "Pending", pods)

    def _expire(self, job: Object) -> None:
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        since = job["status"]["state"].get("lastTransitionTime")
        if ttl is not None and since and time.time() - datetime.fromisoformat(since).timestamp() >= ttl:
            self.world.delete(JOBS, job["metadata"]["name"], job["metadata"]["namespace"], uid=uid_of(job), foreground=True)

    # ---- pending and running ---------------------------------------------------------------------------------------

    def _run(self, job: Object, phase: str, pods: list[Object]) -> None:
        if self._not_before.get(uid_of(job), 0.0) > time.monotonic():
            return
        if not self._prepare(job):
            return
        group = next((group for group in self.world.podgroups if owner_uid(group) == uid_of(job)), None)
        if group is None or group.get("status", {}).get("phase") in (None, "Pending"):
            return
        action = self._consequence(job, pods)
        if action:
            self._act(job, action, phase, pods)
            return
        if phase == "Pending" or len(pods) < _replicas(job):
            self._make_pods(job, pods)
        pods = self._mine(job)
        self._known.setdefault(uid_of(job), set()).update(uid_of(pod) for pod in pods)
        self._settle(job, phase, pods)
        self._pass_on(job, group)

    def _settle(self, job: Object, phase: str, pods: list[Object]) -> None:
        counts = _counts(pods)
        wanted, total = job["spec"].get("minAvailable", 0), _replicas(job)
        if phase == "Pending" and counts["Running"] + counts["Succeeded"] + counts["Failed"] >= wanted:
            phase = "Running"
        elif phase == "Running" and counts["Succeeded"] + counts["Failed"] == total:
            phase = "Completed" if counts["Succeeded"] >= wanted else "Failed"
        elif phase == "Running" and counts["Pending"] > total - wanted:
            phase = "Pending"
        self._set(job, phase, pods)

    def _consequence(self, job: Object, pods: list[Object]) -> str:
        """The action of the first policy that matches something that has happened, or ""."""
        gone = self._known.get(uid_of(job), set()) - {uid_of(pod) for pod in pods}
        if gone:
            self._known[uid_of(job)] -= gone
            return _policy(job, "PodEvicted", None)
        for pod in pods:
            if pod["status"].get("phase") == "Failed" and uid_of(pod) not in self._handled:
                self._handled.add(uid_of(pod))
                statuses = pod["status"].get("containerStatuses") or [{}]
                code = statuses[0].get("state", {}).get("terminated", {}).get("exitCode")
                return _policy(job, "PodFailed", code)
        done = sum(pod["status"].get("phase") == "Succeeded" for pod in pods)
        return _policy(job, "TaskCompleted", None) if done and done == _replicas(job) else ""

    def _prepare(self, job: Object) -> bool:
        """Service, its ConfigMap and the PodGroup; False if the name forbids a Service."""
        meta, spec = job["metadata"], job["spec"]
        if any(owner_uid(group) == uid_of(job) for group in self.world.podgroups):
            return True
        if "svc" in spec.get("plugins", {}):
            hosts = [f"{meta['name']}-{task['name']}-{i}.{meta['name']}" for task in spec["tasks"] for i in range(task.get("replicas", 0))]
            owned = {"namespace": meta["namespace"], "ownerReferences": owner_reference(job)}
            self.world.create(CONFIGMAPS, {"metadata": {"name": f"{meta['name']}-svc", **owned}, "data": {"VC_WORKER_HOSTS": ",".join(hosts)}}, meta["namespace"])
            try:
                self.world.create(SERVICES, {"metadata": {"name": meta["name"], **owned}, "spec": {"clusterIP": "None", "selector": {"volcano.sh/job-name": meta["name"]}}}, meta["namespace"])
            except ClusterRejected as error:
                self._tell(job, "Warning", "PluginError", f"Execute plugin when job add failed, err: {error.message}")
                self._not_before[uid_of(job)] = time.monotonic() + 2
                return False
        self.world.create(PODGROUPS, {
            "metadata": {"name": f"{meta['name']}-{meta['uid']}", "ownerReferences": owner_reference(job), "labels": meta.get("labels", {})},
            "spec": {"minMember": spec.get("minAvailable", 0), "queue": spec.get("queue", "default"), "minResources": _total(job)},
        }, meta["namespace"])
        return True

    def _make_pods(self, job: Object, pods: list[Object]) -> None:
        names, failed = {pod["metadata"]["name"] for pod in pods}, []
        for task in job["spec"]["tasks"]:
            for index in range(task.get("replicas", 0)):
                name = f"{job['metadata']['name']}-{task['name']}-{index}"
                if name in names:
                    continue
                try:
                    made = self.world.create(PODS, _pod(job, task, index, name), job["metadata"]["namespace"])
                    if made is not None:
                        self._errors.pop(uid_of(job), None)
                except NanochatNpuError as error:
                    failed.append(_STATUS_ERROR.format(pod=name, message=error.message.replace('"', '\\"')))
        if failed:
            self._refused(job, failed)

    def _refused(self, job: Object, failed: list[str]) -> None:
        self._tell(job, "Warning", "FailedCreate", f"Error creating pods: [{' '.join(failed)}]")
        self._errors[uid_of(job)] += 1
        tries = self._errors[uid_of(job)]
        self._not_before[uid_of(job)] = time.monotonic() + min(2.0, 0.005 * 2**tries)
        if tries >= MAX_SYNC_ERRORS:
            self._act(job, "TerminateJob", job["status"]["state"]["phase"], self._mine(job))

    def _pass_on(self, job: Object, group: Object) -> None:
        for condition in group.get("status", {}).get("conditions") or []:
            if condition["type"] == "Unschedulable" and condition["status"] == "True" and group["status"]["phase"] in ("Inqueue", "Pending"):
                meta = job["metadata"]
                self._tell(job, "Warning", "PodGroupPending", f"PodGroup {meta['namespace']}:{meta['name']} unschedulable, reason: {condition['message']}")

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _mine(self, job: Object) -> list[Object]:
        return [pod for pod in self.world.pods if owner_uid(pod) == uid_of(job)]

    def _set(self, job: Object, phase: str, pods: list[Object], *, retries: int | None = None) -> None:
        """Write the status if it differs from what is there."""
        status = job.get("status", {})
        counts = _counts(pods) if phase in ("Pending", "Running", "Restarting", "Aborting", "Terminating") else Counter()
        new: dict[str, Any] = {name.lower(): counts[name] or None for name in ("Pending", "Running", "Succeeded", "Failed", "Terminating")}
        new["minAvailable"] = job["spec"].get("minAvailable", 0)
        if retries:
            new["retryCount"] = retries
        old = status.get("state", {}).get("phase")
        if phase != old:
            new["state"] = {"phase": phase, "lastTransitionTime": now()}
            new["conditions"] = [*status.get("conditions", []), {"status": phase, "lastTransitionTime": now()}]
            new["version"] = status.get("version", 0) + (old is not None)
        if any(status.get(key) != value for key, value in new.items()):
            self.world.patch(JOBS, job, {"status": new}, sub="status")

    def _tell(self, job: Object, *event: str) -> None:
        sort, reason, message = event
        self.world.tell("Job", job, (sort, reason, message), "vc-controller-manager")


def _policy(job: Object, event: str, code: int | None) -> str:
    """The first entry that matches by event or by exit code, the task's before the job's."""
    for policy in [*(p for task in job["spec"]["tasks"] for p in task.get("policies", [])), *job["spec"].get("policies", [])]:
        events = [policy.get("event"), *policy.get("events", [])]
        if event in events or "*" in events or (code and policy.get("exitCode") == code):
            return str(policy.get("action", ""))
    return ""


def _counts(pods: list[Object]) -> Counter[str]:
    return Counter("Terminating" if pod["metadata"].get("deletionTimestamp") else pod["status"].get("phase", "Pending") for pod in pods)


def _alive(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) or pod["status"].get("phase") in ("Pending", "Running")


def _replicas(job: Object) -> int:
    return sum(task.get("replicas", 0) for task in job["spec"]["tasks"])


def _total(job: Object) -> dict[str, str]:
    """NPUs of all workers, as MinResources names them; other resources play no part here."""
    total: Counter[str] = Counter()
    for task in job["spec"]["tasks"]:
        for container in task["template"]["spec"]["containers"]:
            for name, amount in container.get("resources", {}).get("limits", {}).items():
                if name.startswith("huawei.com/"):
                    total[name] += task.get("replicas", 0) * int(amount)
    return {name: str(amount) for name, amount in total.items()}


def _pod(job: Object, task: Object, index: int, name: str) -> Object:
    meta, template = job["metadata"], task["template"]
    marks = {
        "volcano.sh/job-name": meta["name"], "volcano.sh/task-spec": task["name"], "volcano.sh/task-index": str(index),
        "volcano.sh/queue-name": job["spec"].get("queue", "default"),
    }
    spec = {**template["spec"], "hostname": name, "subdomain": meta["name"], "schedulerName": "volcano"}
    variables = [{"name": variable, "value": str(index)} for variable in ("VK_TASK_INDEX", "VC_TASK_INDEX")]
    spec["containers"] = [{**container, "env": [*container.get("env", []), *variables]} for container in spec["containers"]]
    given = template.get("metadata", {})
    return {
        "metadata": {
            "name": name, "ownerReferences": owner_reference(job),
            "labels": {**given.get("labels", {}), **marks, "volcano.sh/job-namespace": meta["namespace"]},
            "annotations": {
                **given.get("annotations", {}), **marks, "volcano.sh/job-version": str(job["status"].get("version", 0)),
                "volcano.sh/job-retry-count": str(job["status"].get("retryCount", 0)), "volcano.sh/template-uid": re.sub(r"-\d+$", "", name),
                "scheduling.k8s.io/group-name": f"{meta['name']}-{meta['uid']}",
            },
        },
        "spec": spec,
    }
