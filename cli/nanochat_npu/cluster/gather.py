"""Reads everything that `explain` wants to know about a job; what may not be read is left out and named."""

import time
from dataclasses import dataclass
from typing import Any

from nanochat_npu import partial
from nanochat_npu.backends import LogQuery
from nanochat_npu.cluster.asking import Asking
from nanochat_npu.cluster.logs import read_logs
from nanochat_npu.cluster.read import events_of, podgroup_of, pods_of, read_job
from nanochat_npu.errors import ClusterError
from nanochat_npu.explain import Facts
from nanochat_npu.i18n import _
from nanochat_npu.job_state import JobObjects
from nanochat_npu.kube import Kube
from nanochat_npu.resources import CLAIMS, EVENTS, NODES, PODGROUPS, PODS, QUEUES, QUOTAS

__all__ = ["Gathered", "gather"]

LOG_LINES = 400
"""Lines of the last output in which error codes are looked for."""


@dataclass(frozen=True)
class Gathered:
    """Facts, and what could not be read, in words."""

    facts: Facts
    unread: tuple[str, ...] = ()


def gather(kube: Kube, namespace: str, name: str) -> Gathered:
    """Facts about a job (at most ten requests and one for each log, most of them side by side).

    Raises:
        JobNotFound: There is no such job.
    """
    asking = Asking()
    job = read_job(kube, namespace, name)
    events = asking.start(_("events"), lambda: kube.list(EVENTS, namespace, cached=True).objects)
    pods = asking.start(_("pods"), lambda: pods_of(kube, namespace, name))
    if partial.text(job, "status", "state", "phase") in ("Completed", "Failed", "Terminated"):
        objects = _objects(job, podgroup_of(kube, job), pods() or [], events() or [])
        return Gathered(Facts(objects, log_lines=_last_lines(kube, namespace, name)), tuple(asking.unread))
    queue = partial.text(job, "spec", "queue") or "default"
    # Pods that have ended hold nothing; leaving them out on the server saves most of the bytes.
    live = "status.phase!=Succeeded,status.phase!=Failed"
    found = asking.start(_("the queue"), lambda: kube.get(QUEUES, queue))
    nodes = asking.start(_("nodes"), lambda: kube.list(NODES, cached=True).objects)
    node_pods = asking.start(_("pods of other namespaces"), lambda: kube.list(PODS, fields=live, cached=True).objects)
    groups = asking.start(_("pod groups of other namespaces"), lambda: kube.list(PODGROUPS, cached=True).objects)
    quotas = asking.start(_("quotas"), lambda: kube.list(QUOTAS, namespace).objects)
    claims = asking.start(_("storage claims"), lambda: kube.list(CLAIMS, namespace).objects)
    objects = _objects(job, podgroup_of(kube, job), pods() or [], events() or [])
    lines = _last_lines(kube, namespace, name) if _is_up(objects) else ()
    names, others = claims(), groups()
    facts = Facts(
        objects,
        queue=found(),
        podgroups=None if others is None else [group for group in others if (partial.text(group, "spec", "queue") or "default") == queue],
        nodes=nodes(),
        node_pods=node_pods(),
        quotas=quotas(),
        claims=None if names is None else [partial.text(claim, "metadata", "name") for claim in names],
        log_lines=lines,
    )
    return Gathered(facts, tuple(asking.unread))


def _objects(job: dict[str, Any], podgroup: dict[str, Any] | None, pods: list[dict[str, Any]], events: list[dict[str, Any]]) -> JobObjects:
    own = {partial.text(pod, "metadata", "name") for pod in pods}
    of_pods = [
        event for event in events
        if partial.text(event, "involvedObject", "kind") == "Pod" and partial.text(event, "involvedObject", "name") in own
    ]
    return JobObjects(job, podgroup, pods, [*events_of(job, events), *of_pods], time.time())


def _is_up(objects: JobObjects) -> bool:
    return any(partial.text(pod, "status", "phase") in ("Running", "Failed") for pod in objects.pods)


def _last_lines(kube: Kube, namespace: str, name: str) -> tuple[str, ...]:
    """The newest output, as far as pods are still there; a restart takes them and their logs away."""
    try:
        return tuple(line.text for line in read_logs(kube, namespace, name, LogQuery(tail=LOG_LINES)))[-4 * LOG_LINES :]
    except ClusterError:
        return ()

