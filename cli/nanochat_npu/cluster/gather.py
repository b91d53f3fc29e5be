"""Reads everything that `explain` wants to know about a job; what may not be read is left out and named."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from nanochat_npu import partial
from nanochat_npu.backends import LogQuery
from nanochat_npu.cluster.logs import read_logs
from nanochat_npu.cluster.read import read_objects
from nanochat_npu.errors import ClusterError, ClusterForbidden, PrerequisiteMissing
from nanochat_npu.explain import Facts
from nanochat_npu.i18n import _
from nanochat_npu.job_state import JobObjects
from nanochat_npu.kube import Kube
from nanochat_npu.kube_errors import NotFoundError
from nanochat_npu.resources import CLAIMS, EVENTS, NODES, PODGROUPS, PODS, QUEUES, QUOTAS

__all__ = ["Gathered", "gather"]

T = TypeVar("T")
LOG_LINES = 400
"""Lines of the last output in which error codes are looked for."""


@dataclass(frozen=True)
class Gathered:
    """Facts, and what could not be read, in words."""

    facts: Facts
    unread: tuple[str, ...] = ()


def gather(kube: Kube, namespace: str, name: str) -> Gathered:
    """Facts about a job (at most eleven requests, a page per 500 objects).

    Raises:
        JobNotFound: There is no such job.
    """
    unread: list[str] = []

    def ask(what: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except ClusterForbidden:
            unread.append(what)
        except (NotFoundError, PrerequisiteMissing):
            return None
        return None

    objects = read_objects(kube, namespace, name)
    ended = partial.text(objects.job, "status", "state", "phase") in ("Completed", "Failed", "Terminated")
    pod_events = ask(_("events"), lambda: kube.list(EVENTS, namespace, fields="involvedObject.kind=Pod").objects) or []
    own = {partial.text(pod, "metadata", "name") for pod in objects.pods}
    events = [*objects.events, *(event for event in pod_events if partial.text(event, "involvedObject", "name") in own)]
    objects = JobObjects(objects.job, objects.podgroup, objects.pods, events, objects.now_s)
    if ended:
        return Gathered(Facts(objects, log_lines=_last_lines(kube, namespace, name)), tuple(unread))
    queue = partial.text(objects.job, "spec", "queue") or "default"
    live = "status.phase!=Succeeded,status.phase!=Failed"
    claims = ask(_("storage claims"), lambda: kube.list(CLAIMS, namespace).objects)
    groups = ask(_("pod groups of other namespaces"), lambda: kube.list(PODGROUPS).objects)
    facts = Facts(
        objects,
        queue=ask(_("the queue"), lambda: kube.get(QUEUES, queue)),
        podgroups=None if groups is None else [group for group in groups if (partial.text(group, "spec", "queue") or "default") == queue],
        nodes=ask(_("nodes"), lambda: kube.list(NODES).objects),
        node_pods=ask(_("pods of other namespaces"), lambda: kube.list(PODS, fields=live).objects),
        quotas=ask(_("quotas"), lambda: kube.list(QUOTAS, namespace).objects),
        claims=None if claims is None else [partial.text(claim, "metadata", "name") for claim in claims],
        log_lines=_last_lines(kube, namespace, name) if _is_up(objects) else (),
    )
    return Gathered(facts, tuple(dict.fromkeys(unread)))


def _is_up(objects: JobObjects) -> bool:
    return any(partial.text(pod, "status", "phase") in ("Running", "Failed") for pod in objects.pods)


def _last_lines(kube: Kube, namespace: str, name: str) -> tuple[str, ...]:
    """The newest output, as far as pods are still there; a restart takes them and their logs away."""
    try:
        return tuple(line.text for line in read_logs(kube, namespace, name, LogQuery(tail=LOG_LINES)))[-4 * LOG_LINES :]
    except ClusterError:
        return ()

