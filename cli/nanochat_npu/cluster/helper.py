"""A short-lived CPU pod that mounts a job's volumes, so that files can be reached from a laptop.

It is made like one of the job's workers (image, user, pull secrets, volumes) without NPUs, so it sees what they saw. It is
deleted when the command ends; should the command be killed, its deadline ends it, the job's deletion takes it away, and the
next command sweeps it up.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nanochat_npu import marks, partial
from nanochat_npu.errors import ClusterError, NanochatNpuError, PrerequisiteMissing
from nanochat_npu.i18n import _
from nanochat_npu.job_state import UNHEALING, plan_of, pod_state
from nanochat_npu.kube import Kube
from nanochat_npu.resources import JOBS, PODS

__all__ = ["HELPER", "Mounted", "helper_pod", "mounted_of", "opened"]

HELPER = "files"
"""Value of the component label."""
DEADLINE_S = 3600
START_S = 180.0


@dataclass(frozen=True)
class Mounted:
    """A folder on a volume, and a worker's template that can reach it.

    Attributes:
        job: The Volcano Job (or what was rendered of it) whose template is followed.
        volume: Name of the volume in that template.
        root: Folder inside of the container that is shown.
    """

    job: dict[str, Any]
    volume: str
    root: str


def mounted_of(job: dict[str, Any]) -> Mounted:
    """The folder of a job on its output volume.

    Raises:
        PrerequisiteMissing: The job has none that we know of.
    """
    root = partial.text(plan_of(job), "job_dir")
    if not root:
        raise PrerequisiteMissing(
            _("where the job keeps its files is not noted on it"), where=partial.text(job, "metadata", "name"),
            hint=_("only jobs that nanochat-npu submitted can be looked into"),
        )
    return Mounted(job, "output", root)


def helper_pod(mounted: Mounted, name: str) -> dict[str, Any]:
    """The pod's manifest. Pure."""
    job = mounted.job
    pod = partial.mapping(job, "spec", "tasks", 0, "template", "spec")
    worker = next(iter(partial.items(pod, "containers")), {})
    volumes = [volume for volume in partial.items(pod, "volumes") if volume.get("name") == mounted.volume]
    mounts = [mount for mount in partial.items(worker, "volumeMounts") if mount.get("name") == mounted.volume]
    kept = ("securityContext", "imagePullSecrets", "tolerations", "serviceAccountName", "runtimeClassName")
    arch = partial.text(pod, "nodeSelector", "kubernetes.io/arch")
    meta = partial.mapping(job, "metadata")
    owner = {"apiVersion": JOBS.api_version, "kind": "Job", "name": meta.get("name"), "uid": meta.get("uid"), "blockOwnerDeletion": False}
    small = {"cpu": "100m", "memory": "256Mi"}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                marks.LABEL_MANAGED_BY: marks.MANAGED_BY, marks.LABEL_COMPONENT: HELPER, marks.LABEL_JOB: str(meta.get("name", "")),
                "sidecar.istio.io/inject": "false",
            },
            **({"ownerReferences": [owner]} if meta.get("uid") else {}),
        },
        "spec": {
            **{key: pod[key] for key in kept if key in pod and key != "runtimeClassName"},
            "restartPolicy": "Never", "activeDeadlineSeconds": DEADLINE_S, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False,
            "enableServiceLinks": False, **({"nodeSelector": {"kubernetes.io/arch": arch}} if arch else {}), "volumes": volumes,
            "containers": [{
                "name": HELPER, "image": partial.text(worker, "image"), "imagePullPolicy": partial.text(worker, "imagePullPolicy") or "IfNotPresent",
                "command": ["sleep", str(DEADLINE_S)], "resources": {"requests": small, "limits": small}, "volumeMounts": mounts,
            }],
        },
    }


@contextmanager
def opened(kube: Kube, namespace: str, mounted: Mounted) -> Iterator[str]:
    """Name of a running helper pod, which is gone afterwards, whatever happens.

    Raises:
        ClusterError: It does not start; the message says why.
    """
    name = f"{partial.text(mounted.job, 'metadata', 'name')[:40].rstrip('-')}-{HELPER}-{secrets.token_hex(3)}"
    _sweep(kube, namespace)
    made = kube.create(PODS, helper_pod(mounted, name), namespace)
    try:
        _await_running(kube, namespace, name)
        yield name
    finally:
        kube.delete(PODS, name, namespace, uid=partial.text(made, "metadata", "uid"), grace_s=1)


def _await_running(kube: Kube, namespace: str, name: str) -> None:
    deadline, state = kube.clock.now() + START_S, ""
    while kube.clock.now() < deadline:
        pod = kube.get(PODS, name, namespace)
        state = pod_state(pod)
        if partial.text(pod, "status", "phase") == "Running":
            return
        if state in UNHEALING or partial.text(pod, "status", "phase") in ("Failed", "Succeeded"):
            break
        kube.clock.sleep(0.3)
    raise ClusterError(
        _("the helper pod for files does not start: {state}").format(state=state or "?"), where=f"{namespace}/{name}",
        hint=_("it needs no NPU, but a node that may run the job's image and mount its volume"),
    )


def _sweep(kube: Kube, namespace: str) -> None:
    """Delete helper pods that a killed command left and that their deadline has ended."""
    try:
        pods = kube.list(PODS, namespace, labels=f"{marks.LABEL_COMPONENT}={HELPER},{marks.LABEL_MANAGED_BY}={marks.MANAGED_BY}").objects
        for pod in pods:
            made = partial.when(pod, "metadata", "creationTimestamp")
            ended = partial.text(pod, "status", "phase") in ("Failed", "Succeeded")
            if ended or (made and time.time() - made.timestamp() > DEADLINE_S + 60):
                kube.delete(PODS, partial.text(pod, "metadata", "name"), namespace)
    except NanochatNpuError:
        return  # housekeeping must not stop what the person asked for
