"""NPUs of a cluster: what each node and queue has, what is free, and who holds the rest. Pure; `read` asks the cluster."""

from dataclasses import dataclass
from typing import Any

from nanochat_npu import marks, partial
from nanochat_npu.cluster.asking import Asking
from nanochat_npu.explain.fit import free_by_node, node_ready, npus_of_pod
from nanochat_npu.i18n import _
from nanochat_npu.kube import Kube
from nanochat_npu.resources import NODES, PODS, QUEUES

__all__ = ["Capacity", "Holder", "NodeRow", "QueueRow", "capacity_of", "read"]

@dataclass(frozen=True)
class NodeRow:
    """A node that has NPUs; `free` is None where pods of other namespaces may not be read."""

    name: str
    kind: str
    chip: str
    total: int
    free: int | None
    ready: bool


@dataclass(frozen=True)
class QueueRow:
    """A queue; None where no limit is set or nothing is known."""

    name: str
    state: str
    capability: int | None
    allocated: int | None


@dataclass(frozen=True)
class Holder:
    """Who holds NPUs: a job and its namespace, or a pod that belongs to none."""

    namespace: str
    job: str
    owner: str
    npus: int
    nodes: int


@dataclass(frozen=True)
class Capacity:
    """All of it.

    Attributes:
        resource: Extended resource that is counted.
        unread: What could not be read, in words; its columns are empty.
    """

    resource: str
    nodes: tuple[NodeRow, ...] = ()
    queues: tuple[QueueRow, ...] = ()
    holders: tuple[Holder, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """NPUs on nodes that take pods."""
        return sum(node.total for node in self.nodes if node.ready)

    @property
    def free(self) -> int | None:
        """NPUs free on nodes that take pods, or None where that is unknown."""
        known = [node.free for node in self.nodes if node.ready]
        return None if not known or any(value is None for value in known) else sum(value for value in known if value is not None)

    @property
    def whole_nodes(self) -> int | None:
        """Nodes of which every NPU is free: what a job over several nodes can have now."""
        if not self.nodes or any(node.free is None for node in self.nodes):
            return None
        return sum(node.ready and node.free == node.total > 0 for node in self.nodes)


def read(kube: Kube, namespace: str) -> Capacity:
    """The capacity as far as one may see it; what is forbidden is left out and named (three requests side by side)."""
    asking = Asking()
    # Pods that have ended hold nothing; leaving them out on the server saves most of the bytes.
    live = "status.phase!=Succeeded,status.phase!=Failed"
    asked = (
        asking.start(_("nodes"), lambda: kube.list(NODES, cached=True).objects, name_missing=True),
        asking.start(_("queues"), lambda: kube.list(QUEUES, cached=True).objects, name_missing=True),
        asking.start(_("pods of all namespaces"), lambda: kube.list(PODS, fields=live, cached=True).objects, name_missing=True),
    )
    nodes, queues, pods = (promise() for promise in asked)
    shown = pods
    if shown is None:
        shown = asking.start(_("pods of this namespace"), lambda: kube.list(PODS, namespace, fields=live, cached=True).objects)() or []
    return capacity_of(nodes, queues, pods, shown, tuple(asking.unread))


def capacity_of(
    nodes: list[dict[str, Any]] | None, queues: list[dict[str, Any]] | None, pods: list[dict[str, Any]] | None, shown: list[dict[str, Any]],
    unread: tuple[str, ...] = (),
) -> Capacity:
    """Capacity from objects.

    Args:
        nodes: All nodes, or None.
        queues: All queues, or None.
        pods: Pods of all namespaces, or None where they may not be read: then nothing is said about what is free.
        shown: Pods whose holders are listed.
        unread: Passed on.
    """
    resource = _resource(nodes or [], shown)
    room = free_by_node(nodes or [], pods or [], resource)
    rows = tuple(
        NodeRow(
            name=partial.text(node, "metadata", "name"), kind=partial.label(node, "accelerator-type"), chip=partial.label(node, "node.kubernetes.io/npu.chip.name"),
            total=room[partial.text(node, "metadata", "name")][1], free=room[partial.text(node, "metadata", "name")][0] if pods is not None else None,
            ready=node_ready(node),
        )
        for node in nodes or [] if partial.text(node, "metadata", "name") in room
    )
    return Capacity(resource, rows, tuple(_queue(queue, resource) for queue in queues or []), _holders(shown, resource), unread)


def _resource(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> str:
    """The NPU resource that most nodes have; plugins of different vendors name it differently."""
    found: dict[str, int] = {}
    for amounts in [partial.mapping(node, "status", "allocatable") for node in nodes] or [
        partial.mapping(container, "resources", "limits") for pod in pods for container in partial.items(pod, "spec", "containers")
    ]:
        for name in amounts:
            if name.startswith("huawei.com/") and not name.endswith(("-memory", "-core")):
                found[name] = found.get(name, 0) + 1
    return max(found, key=lambda name: (found[name], name), default="huawei.com/Ascend910")


def _queue(queue: dict[str, Any], resource: str) -> QueueRow:
    limits, held = partial.mapping(queue, "spec", "capability"), partial.mapping(queue, "status", "allocated")
    return QueueRow(
        partial.text(queue, "metadata", "name"), partial.text(queue, "status", "state"),
        partial.integer(limits, resource) if resource in limits else None, partial.integer(held, resource) if resource in held else None,
    )


def _holders(pods: list[dict[str, Any]], resource: str) -> tuple[Holder, ...]:
    held: dict[tuple[str, str, str], tuple[int, set[str]]] = {}
    for pod in pods:
        npus, node = npus_of_pod(pod, resource), partial.text(pod, "spec", "nodeName")
        if not npus or not node:
            continue
        job = partial.label(pod, marks.LABEL_JOB) or partial.label(pod, "volcano.sh/job-name") or partial.text(pod, "metadata", "name")
        key = (partial.text(pod, "metadata", "namespace"), job, partial.label(pod, marks.LABEL_OWNER))
        before, nodes = held.get(key, (0, set()))
        held[key] = (before + npus, nodes | {node})
    found = [Holder(*key, npus, len(nodes)) for key, (npus, nodes) in held.items()]
    return tuple(sorted(found, key=lambda holder: (-holder.npus, holder.namespace, holder.job)))
