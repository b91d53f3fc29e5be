"""Reading one job's objects: Job, PodGroup, pods, events. Advice that needs more rights than the job itself is left out where they are missing."""

import time
from typing import Any

from nanochat_npu import marks, partial
from nanochat_npu.backends import JobView
from nanochat_npu.errors import ClusterError, ClusterForbidden, JobNotFound
from nanochat_npu.i18n import _
from nanochat_npu.job_state import JobObjects, job_view
from nanochat_npu.jobs import nearest
from nanochat_npu.kube import Kube
from nanochat_npu.resources import EVENTS, JOBS, PODGROUPS, PODS

__all__ = ["events_of", "job_events", "podgroup_of", "pods_of", "read_job", "read_jobs", "read_objects", "selector"]


def selector(name: str) -> str:
    """Selector of a job's pods; it also matches pods of an earlier job of that name that still terminate."""
    return f"volcano.sh/job-name={name}"


def read_job(kube: Kube, namespace: str, name: str) -> dict[str, Any]:
    """The Volcano Job.

    Raises:
        JobNotFound: There is none in this namespace; the nearest name is in the hint.
    """
    job = kube.find(JOBS, name, namespace)
    if job is None:
        raise _not_found(kube, namespace, name)
    return job


def read_objects(kube: Kube, namespace: str, name: str, *, events: bool = True) -> JobObjects:
    """Everything about one job that its state and its reason follow from (four requests, three without events).

    Raises:
        JobNotFound: There is none.
    """
    job = read_job(kube, namespace, name)
    return JobObjects(
        job=job,
        podgroup=podgroup_of(kube, job),
        pods=pods_of(kube, namespace, name),
        events=job_events(kube, job) if events else [],
        now_s=time.time(),
    )


def read_jobs(kube: Kube, namespace: str | None) -> list[JobView]:
    """All jobs that nanochat-npu sent to a namespace (None: to any), newest first; one request for every 500."""
    page = kube.list(JOBS, namespace, labels=f"{marks.LABEL_MANAGED_BY}={marks.MANAGED_BY}")
    views = [job_view(JobObjects(job)) for job in page.objects]
    return sorted(views, key=lambda view: (view.created_s or 0.0, view.name), reverse=True)


def pods_of(kube: Kube, namespace: str, name: str) -> list[dict[str, Any]]:
    """Pods with the job's name label."""
    return kube.list(PODS, namespace, labels=selector(name)).objects


def podgroup_of(kube: Kube, job: dict[str, Any] | None) -> dict[str, Any] | None:
    """The job's PodGroup, or None: named JOB-UID, before Volcano 1.6 JOB; without the right to read it there is no advice."""
    name, uid, namespace = (partial.text(job, "metadata", key) for key in ("name", "uid", "namespace"))
    try:
        return kube.find(PODGROUPS, f"{name}-{uid}", namespace) or kube.find(PODGROUPS, name, namespace)
    except ClusterForbidden:
        return None


def job_events(kube: Kube, job: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Events about the job and its PodGroup, newest first; none without the right to read them."""
    try:
        return events_of(job, kube.list(EVENTS, partial.text(job, "metadata", "namespace"), fields="involvedObject.kind!=Pod").objects)
    except ClusterForbidden:
        return []


def events_of(job: dict[str, Any] | None, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of these events those about the job and its PodGroup, newest first."""
    name, uid = (partial.text(job, "metadata", key) for key in ("name", "uid"))
    ours = [
        event for event in events
        if partial.text(event, "involvedObject", "uid") == uid
        or (partial.text(event, "involvedObject", "kind") == "PodGroup" and partial.text(event, "involvedObject", "name") in (f"{name}-{uid}", name))
    ]
    return sorted(ours, key=lambda event: partial.text(event, "lastTimestamp") or partial.text(event, "eventTime"), reverse=True)


def _not_found(kube: Kube, namespace: str, name: str) -> JobNotFound:
    try:
        known = [partial.text(job, "metadata", "name") for job in kube.list(JOBS, namespace).objects]
    except ClusterError:
        known = []
    close = nearest(name, known)
    hint = _("did you mean {name}?").format(name=close) if close else _("see all jobs with: nanochat-npu list --namespace {namespace}").format(namespace=namespace)
    return JobNotFound(
        _("there is no job of this name in namespace {namespace}; one that has ended may have been removed by its time to live").format(namespace=namespace),
        where=name, hint=hint, details={"did_you_mean": close, "namespace": namespace},
    )
