"""Does the whole gang fit? What queue and nodes have free, against what the job needs; and the nearest job that would fit."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nanochat_npu import partial

__all__ = ["Fit", "GangFit", "free_by_node", "gang_fit", "node_ready", "npus_of_pod", "selector_mismatches", "selector_misses"]


class Fit(StrEnum):
    """When the gang fits."""

    NOW = "fits now"
    LATER = "fits later"
    NEVER = "never fits"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class GangFit:
    """The gang against the nodes that it may use.

    Attributes:
        fit: The verdict.
        workers: Pods needed, each with `per_worker` NPUs of `resource`.
        slots_now: Workers that would fit on what is free.
        slots_ever: Workers that would fit if the nodes were empty.
        matching_nodes: Nodes that the selector allows and that are ready.
        free: NPUs free on them, over all.
        total: NPUs on them, over all.
        biggest: Most NPUs on one of them.
    """

    fit: Fit
    resource: str
    workers: int
    per_worker: int
    slots_now: int = 0
    slots_ever: int = 0
    matching_nodes: int = 0
    free: int = 0
    total: int = 0
    biggest: int = 0


def npus_of_pod(pod: dict[str, Any], resource: str) -> int:
    """NPUs of this resource that a pod holds: its containers' limits, while it is not over."""
    if partial.text(pod, "status", "phase") in ("Succeeded", "Failed"):
        return 0
    return sum(partial.integer(c, "resources", "limits", resource) or partial.integer(c, "resources", "requests", resource) for c in partial.items(pod, "spec", "containers"))


def node_ready(node: dict[str, Any]) -> bool:
    """True if the node takes pods: Ready, not cordoned."""
    if partial.dig(node, "spec", "unschedulable") is True:
        return False
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in partial.items(node, "status", "conditions"))


def selector_misses(node: dict[str, Any], selector: dict[str, Any]) -> dict[str, str]:
    """Labels of the selector that a node does not carry: key → what the node has ("" if the label is missing)."""
    labels = partial.mapping(node, "metadata", "labels")
    return {key: str(labels.get(key, "")) for key, wanted in selector.items() if labels.get(key) != wanted}


def selector_mismatches(nodes: Iterable[dict[str, Any]], selector: dict[str, Any]) -> dict[str, dict[str, int]]:
    """For each label of the selector that some node misses: the values that nodes have there, with their number."""
    found: dict[str, dict[str, int]] = {}
    for node in nodes:
        for key, value in selector_misses(node, selector).items():
            counts = found.setdefault(key, {})
            counts[value] = counts.get(value, 0) + 1
    return found


def free_by_node(nodes: Iterable[dict[str, Any]], pods: Iterable[dict[str, Any]], resource: str) -> dict[str, tuple[int, int]]:
    """(free, allocatable) NPUs by node name; nodes without this resource are left out."""
    used: dict[str, int] = {}
    for pod in pods:
        node = partial.text(pod, "spec", "nodeName")
        if node:
            used[node] = used.get(node, 0) + npus_of_pod(pod, resource)
    result = {}
    for item in nodes:
        total = partial.integer(item, "status", "allocatable", resource)
        if total:
            name = partial.text(item, "metadata", "name")
            result[name] = (max(0, total - used.get(name, 0)), total)
    return result


def gang_fit(
    nodes: list[dict[str, Any]] | None, pods: list[dict[str, Any]] | None, *, resource: str, workers: int, per_worker: int,
    selector: dict[str, Any] | None = None,
) -> GangFit:
    """Whether `workers` pods with `per_worker` NPUs each fit on the nodes that the selector allows.

    Args:
        nodes: All nodes; None if they may not be read, which gives `Fit.UNKNOWN`.
        pods: Pods that hold NPUs now; None counts every node as if it were empty, so NOW cannot be told from LATER.
        resource: Extended resource.
        workers: Pods of the gang.
        per_worker: NPUs of one pod.
        selector: nodeSelector of the pods.
    """
    if nodes is None or not resource or per_worker <= 0:
        return GangFit(Fit.UNKNOWN, resource, workers, per_worker)
    matching = [node for node in nodes if node_ready(node) and not selector_misses(node, selector or {})]
    room = free_by_node(matching, pods or [], resource)
    now = sum(free // per_worker for free, _total in room.values())
    ever = sum(total // per_worker for _free, total in room.values())
    fit = Fit.NEVER if ever < workers else Fit.NOW if pods is not None and now >= workers else Fit.LATER
    if pods is None and ever >= workers:
        fit = Fit.UNKNOWN
    return GangFit(
        fit, resource, workers, per_worker, now, ever, len(matching), sum(free for free, _ in room.values()),
        sum(total for _, total in room.values()), max((total for _, total in room.values()), default=0),
    )
