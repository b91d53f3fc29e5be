"""What the stand-in sees and how it writes: informers over the whole cluster, and writes that take effect in its view at once."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nanochat_npu.errors import NanochatNpuError
from nanochat_npu.kube import Kube
from nanochat_npu.kube_errors import ConflictError, NotFoundError
from nanochat_npu.resources import CLAIMS, COMMANDS, EVENTS, JOBS, NODES, PODGROUPS, PODS, QUEUES, Resource
from nanochat_npu.watch import Informer, Scope

Object = dict[str, Any]


def now() -> str:
    """The time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def uid_of(obj: Object) -> str:
    """Uid of an object."""
    return str(obj["metadata"]["uid"])


def owner_uid(obj: Object) -> str:
    """Uid of the controlling owner."""
    return next((owner["uid"] for owner in obj["metadata"].get("ownerReferences", []) if owner.get("controller")), "")


def owner_reference(job: Object) -> list[Object]:
    """What makes an object belong to a job."""
    meta = job["metadata"]
    return [{"apiVersion": JOBS.api_version, "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True, "blockOwnerDeletion": True}]


@dataclass
class World:
    """A consistent look at the cluster, renewed by `refresh`."""

    kube: Kube
    changed: Callable[[], None]
    jobs: list[Object] = field(default_factory=list)
    podgroups: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    nodes: list[Object] = field(default_factory=list)
    queues: list[Object] = field(default_factory=list)
    commands: list[Object] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    _written: dict[str, tuple[int, Object | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._informers = {
            kind.plural: Informer(self.kube, Scope(kind), self.changed).start() for kind in (JOBS, PODGROUPS, PODS, NODES, QUEUES, COMMANDS, CLAIMS)
        }
        for informer in self._informers.values():
            informer.ready(30)

    def refresh(self) -> None:
        """Take over what the watches brought, and keep what we wrote ourselves until they bring it too."""
        for kind in ("jobs", "podgroups", "pods", "nodes", "queues", "commands"):
            setattr(self, kind, self._merged(self._informers[kind].objects()))
        self.claims = self._informers["persistentvolumeclaims"].objects()

    def _merged(self, seen: list[Object]) -> list[Object]:
        result = []
        for obj in seen:
            version, ours = self._written.get(uid_of(obj), (0, obj))
            if int(obj["metadata"]["resourceVersion"]) >= version:
                self._written.pop(uid_of(obj), None)
                ours = obj
            if ours is not None:
                result.append(ours)
        return result

    def _remember(self, obj: Object) -> None:
        self._written[uid_of(obj)] = (int(obj["metadata"]["resourceVersion"]), obj)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, obj: Object, namespace: str) -> Object | None:
        """Create; None if it is there already."""
        try:
            made = self.kube.create(resource, {"apiVersion": resource.api_version, "kind": resource.kind, **obj}, namespace)
        except ConflictError:
            return None
        self._remember(made)
        kept: list[Object] = getattr(self, resource.plural, [])
        kept.append(made)
        return made

    def patch(self, resource: Resource, obj: Object, change: Object, sub: str | None = None) -> Object:
        """Merge a change into an object; the object as it is then (in place, too)."""
        meta = obj["metadata"]
        try:
            made = self.kube.patch(resource, meta["name"], {"metadata": {"uid": meta["uid"]}, **change} if sub is None else change, meta.get("namespace"), sub)
        except (NotFoundError, ConflictError):
            return obj
        self._remember(made)
        obj.clear()
        obj.update(made)
        return obj

    def delete(self, resource: Resource, name: str, namespace: str, *, uid: str | None = None, foreground: bool = False) -> None:
        """Delete; nothing happens if it is gone."""
        try:
            self.kube.delete(resource, name, namespace, uid=uid, foreground=foreground)
        except ConflictError:
            return

    def tell(self, kind: str, obj: Object, event: tuple[str, str, str], component: str) -> None:
        """Leave an event (type, reason, message) on an object; the same one only once."""
        sort, reason, message = event
        meta = obj["metadata"]
        digest = hashlib.sha256(f"{kind}{meta['uid']}{reason}{message}".encode()).hexdigest()[:12]
        body = {
            "metadata": {"name": f"{meta['name'][:200]}.{digest}"}, "type": sort, "reason": reason, "message": message, "count": 1,
            "source": {"component": component}, "firstTimestamp": now(), "lastTimestamp": now(),
            "involvedObject": {
                "kind": kind, "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"], "apiVersion": obj.get("apiVersion", "v1"),
            },
        }
        if digest in self._told:
            return
        self._told.add(digest)
        try:
            self.create(EVENTS, body, meta["namespace"])
        except NanochatNpuError:
            return  # events are advice; a namespace that is going away takes none

    _told: set[str] = field(default_factory=set)
