"""A chat server for a job's model on the cluster: a Volcano Job of one worker, made after the trained job's own template.

It listens on the pod's loopback address only: nobody in the cluster reaches it, and whoever may forward ports in the namespace
does (`forward`). It leaves by itself after `idle_ttl_s` without a request, so NPUs are not held by a forgotten chat.
"""

import copy
import hashlib
from dataclasses import dataclass
from typing import Any

from nanochat_npu import marks, partial
from nanochat_npu.cluster.helper import mounted_of
from nanochat_npu.errors import PrerequisiteMissing
from nanochat_npu.i18n import _
from nanochat_npu.job_state import plan_of

__all__ = ["PORT", "SUFFIX", "Server", "server_objects"]

PORT = 8000
SUFFIX = "-serve"
COMPONENT = "server"
_MOUNT = "/opt/nanochat/job"


@dataclass(frozen=True)
class Server:
    """What the server should be like.

    Attributes:
        npus: NPUs that it gets; 0 serves on CPU.
        idle_ttl_s: Leave after so long without a request.
        stage: Stage whose model answers; "" for the last trained.
        slots: Answers that are written at the same time.
    """

    npus: int = 1
    idle_ttl_s: float = 1800.0
    stage: str = ""
    slots: int = 16


def server_objects(job: dict[str, Any], server: Server, entrypoint: str) -> tuple[str, str, list[dict[str, Any]]]:
    """Name, submission id, and the objects (ConfigMap, Job) of a server for this job's model. Pure.

    Args:
        job: The trained job, as it is on the cluster.
        server: Wishes.
        entrypoint: Text of entrypoint.sh.

    Raises:
        PrerequisiteMissing: The job does not say where its files are.
    """
    name = partial.text(job, "metadata", "name") + SUFFIX
    root = mounted_of(job).root
    template = copy.deepcopy(partial.mapping(job, "spec", "tasks", 0, "template"))
    pod = template.get("spec", {})
    worker = next(iter(partial.items(pod, "containers")), None)
    if worker is None:
        raise PrerequisiteMissing(_("the job has no worker to follow"), where=name)
    arguments = ["serve", "--job-dir", root, "--host", "127.0.0.1", "--port", str(PORT), "--slots", str(server.slots), "--idle-ttl-s", f"{server.idle_ttl_s:g}"]
    worker["command"] = ["bash", f"{_MOUNT}/entrypoint.sh", *arguments, *(["--stage", server.stage] if server.stage else [])]
    worker["resources"] = _resources(job, worker, server.npus)
    pod["containers"] = [worker]
    pod["terminationGracePeriodSeconds"] = 10
    pod["volumes"] = [
        _job_volume(volume, worker, f"{name}-run") if volume.get("name") == "job" else volume
        for volume in partial.items(pod, "volumes") if volume.get("name") != "rank-table"
    ]
    worker["volumeMounts"] = [mount for mount in partial.items(worker, "volumeMounts") if mount.get("name") != "rank-table"]
    labels = {
        **partial.mapping(template, "metadata", "labels"), marks.LABEL_MANAGED_BY: marks.MANAGED_BY, marks.LABEL_COMPONENT: COMPONENT, marks.LABEL_JOB: name,
    }
    template["metadata"] = {"labels": labels, "annotations": partial.mapping(template, "metadata", "annotations")}
    identity = hashlib.sha256(repr((partial.text(job, "metadata", "uid"), server)).encode()).hexdigest()[:16]
    annotations = {
        marks.ANNOTATION_SUBMISSION: identity, marks.ANNOTATION_INTENT: marks.Intent.RUN.value,
        marks.ANNOTATION_VERSION: partial.annotation(job, marks.ANNOTATION_VERSION),
    }
    objects = [
        {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-run", "labels": {marks.LABEL_MANAGED_BY: marks.MANAGED_BY, marks.LABEL_JOB: name}},
            "data": {"entrypoint.sh": entrypoint},
        },
        {
            "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "spec": {
                "schedulerName": "volcano", "queue": partial.text(job, "spec", "queue") or "default", "minAvailable": 1, "maxRetry": 1,
                "ttlSecondsAfterFinished": 600, "plugins": {"env": [], "svc": ["--publish-not-ready-addresses"]},
                "policies": [{"event": "PodFailed", "action": "TerminateJob"}, {"event": "TaskCompleted", "action": "CompleteJob"}],
                "tasks": [{"name": "worker", "replicas": 1, "minAvailable": 1, "template": template}],
            },
        },
    ]
    return name, identity, objects


def _job_volume(volume: dict[str, Any], worker: dict[str, Any], own: str) -> dict[str, Any]:
    """The server's own ConfigMap where the job had its; where the trainer's wheel came by the job's, that one file of it beside."""
    path = next((partial.text(entry, "value") for entry in partial.items(worker, "env") if entry.get("name") == "PYTHONPATH"), "")
    wheels = [part.removeprefix(f"{_MOUNT}/") for part in path.split(":") if part.startswith(f"{_MOUNT}/")]
    if not wheels:
        return {"name": "job", "configMap": {"name": own}}
    code = {"name": partial.text(volume, "configMap", "name"), "items": [{"key": wheel, "path": wheel} for wheel in wheels]}
    return {"name": "job", "projected": {"sources": [{"configMap": {"name": own}}, {"configMap": code}]}}


def _resources(job: dict[str, Any], worker: dict[str, Any], npus: int) -> dict[str, Any]:
    """A worker's share of CPU and memory for so many of its NPUs."""
    plan = plan_of(job)
    resource, whole = partial.text(plan, "resource"), max(1, partial.integer(plan, "npus_per_node"))
    amounts = {key: value for key, value in partial.mapping(worker, "resources", "limits").items() if key != resource and npus >= whole}
    if npus and resource:
        amounts[resource] = str(npus)
    return {"requests": amounts, "limits": dict(amounts)} if amounts else {}
