"""The stand-in's scheduler: lets gangs in when cluster and queue have room for all of them, and places all workers or none."""

from collections import Counter
from typing import Any

from standin_world import Object, World, now, owner_uid, uid_of

from nanochat_npu.errors import NanochatNpuError
from nanochat_npu.resources import PODGROUPS, PODS

OVERCOMMIT = 1.2
"""Volcano's default factor: a gang is let in while all that are in need at most this much of what is idle."""


class Scheduler:
    """Looks at every gang in turn."""

    def __init__(self, world: World) -> None:
        self.world = world

    def step(self) -> None:
        """One scheduling cycle."""
        free = self._free()
        for group in list(self.world.podgroups):
            try:
                self._group(group, free)
            except NanochatNpuError as error:
                print(group["metadata"]["name"], error, flush=True)

    def _group(self, group: Object, free: dict[str, Counter[str]]) -> None:
        phase = group.get("status", {}).get("phase")
        pods = [pod for pod in self.world.pods if owner_uid(pod) == owner_uid(group)]
        members, wanted = len(pods), group["spec"].get("minMember", 0)
        if phase in (None, "Pending"):
            refusal = self._no_room(group, free)
            self._set(group, "Pending" if refusal else "Inqueue")
            if refusal:
                self._tell(group, "Normal", "Unschedulable", refusal)
            self._tell(group, "Warning", "Unschedulable", f"0/0 tasks in gang unschedulable: pod group is not ready, {wanted} minAvailable")
            return
        live = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        waiting = [pod for pod in live if not pod["spec"].get("nodeName")]
        if waiting and phase == "Inqueue":
            self._place(group, pods, waiting, free)
        elif phase in ("Inqueue", "Running", "Unknown") and members:
            self._follow(group, pods)

    def _place(self, group: Object, pods: list[Object], waiting: list[Object], free: dict[str, Counter[str]]) -> None:
        wanted = group["spec"].get("minMember", 0)
        places, why = self._places(waiting, free)
        ready = len(places) + sum(bool(pod["spec"].get("nodeName")) and not pod["metadata"].get("deletionTimestamp") for pod in pods)
        if ready < wanted or len(places) < len(waiting):
            self._explain(group, pods, waiting, why)
            return
        self._condition(group, "Scheduled", "tasks in gang are ready to be scheduled", "")
        self._tell(group, "Warning", "Unschedulable", f"0/{len(pods)} tasks in gang unschedulable: pod group is ready, {len(waiting)} Binding, {wanted} minAvailable")
        for pod, node in places:
            meta = pod["metadata"]
            self.world.kube.post(PODS, meta["namespace"], meta["name"], "binding", {
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            })
            pod["spec"]["nodeName"] = node
            self.world.tell("Pod", pod, ("Normal", "Scheduled", f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}"), "volcano")

    def _places(self, waiting: list[Object], free: dict[str, Counter[str]]) -> tuple[list[tuple[Object, str]], str]:
        """A node for each pod, as far as they go, and why the first that has none has none."""
        left = {name: Counter(amounts) for name, amounts in free.items()}
        places, why = [], ""
        for pod in waiting:
            found, reason = self._node_for(pod, left)
            if found:
                places.append((pod, found))
                left[found].subtract(_needs(pod))
            else:
                why = why or f"{pod['metadata']['name']}: {reason}"
        if len(places) == len(waiting):
            for name, amounts in left.items():
                free[name] = amounts
        return places, why

    def _node_for(self, pod: Object, left: dict[str, Counter[str]]) -> tuple[str, str]:
        total = len(self.world.nodes)
        claims = {(claim["metadata"]["namespace"], claim["metadata"]["name"]) for claim in self.world.claims}
        for volume in pod["spec"].get("volumes", []):
            name = volume.get("persistentVolumeClaim", {}).get("claimName")
            if name and (pod["metadata"]["namespace"], name) not in claims:
                return "", f'0/{total} nodes are unavailable: {total} plugin VolumeZone pre-predicates failed persistentvolumeclaim "{name}" not found.'
        wrong: Counter[str] = Counter()
        for node in self.world.nodes:
            name = node["metadata"]["name"]
            labels = node["metadata"].get("labels", {})
            short = [resource for resource, amount in _needs(pod).items() if left.get(name, Counter())[resource] < amount]
            if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
                wrong["node(s) didn't match Pod's node affinity/selector"] += 1
            elif not _ready(node):
                wrong["node(s) were not ready"] += 1
            elif short:
                wrong[f"Insufficient {short[0]}"] += 1
            else:
                return name, ""
        return "", f"0/{total} nodes are unavailable: " + ", ".join(f"{count} {reason}" for reason, count in sorted(wrong.items())) + "."

    def _explain(self, group: Object, pods: list[Object], waiting: list[Object], why: str) -> None:
        wanted = group["spec"].get("minMember", 0)
        state = _states(pods)
        origin = f" Origin reason is {why}" if why else ""
        text = f"pod group is not ready, {state}, {wanted} minAvailable; Pending: {len(waiting)} Unschedulable" + (f".{origin}" if origin else "")
        self._condition(group, "Unschedulable", "NotEnoughResources", f"{wanted}/{len(pods)} tasks in gang unschedulable: {text}")
        self._tell(group, "Warning", "Unschedulable", f"{len(waiting)}/{len(pods)} tasks in gang unschedulable: {text}")
        for pod in waiting:
            own = why.partition(": ")[2] if why.startswith(pod["metadata"]["name"] + ":") else text
            self.world.tell("Pod", pod, ("Warning", "FailedScheduling", own), "volcano")

    def _follow(self, group: Object, pods: list[Object]) -> None:
        wanted = group["spec"].get("minMember", 0)
        good = sum(pod["status"].get("phase") in ("Running", "Succeeded") and not pod["metadata"].get("deletionTimestamp") for pod in pods)
        bound = sum(bool(pod["spec"].get("nodeName")) and not pod["metadata"].get("deletionTimestamp") and pod["status"].get("phase") != "Failed" for pod in pods)
        phase = group["status"]["phase"]
        if bound >= wanted:
            self._set(group, "Running")
            if good >= wanted:
                self._tell(group, "Normal", "Scheduled", "pod group is ready")
        elif phase == "Running":
            text = f"pod group is not ready, {_states(pods)}, {wanted} minAvailable"
            self._condition(group, "Unschedulable", "NotEnoughResources", f"{bound}/{len(pods)} tasks in gang unschedulable: {text}")
            self._set(group, "Unknown")
            self._tell(group, "Warning", "Unschedulable", f"0/{len(pods)} tasks in gang unschedulable: {text}")

    def _no_room(self, group: Object, free: dict[str, Counter[str]]) -> str:
        for resource, amount in group["spec"].get("minResources", {}).items():
            need = int(amount)
            queue = next((q for q in self.world.queues if q["metadata"]["name"] == group["spec"].get("queue")), {})
            cap = queue.get("spec", {}).get("capability", {}).get(resource)
            taken = sum(int(g["spec"].get("minResources", {}).get(resource, 0)) for g in self._let_in(group) if g["spec"].get("queue") == group["spec"].get("queue"))
            if cap is not None and need + taken > int(cap):
                return f"queue resource quota insufficient: insufficient {resource}"
            idle = sum(amounts[resource] for amounts in free.values())
            queued = sum(int(g["spec"].get("minResources", {}).get(resource, 0)) for g in self._let_in(group) if g["status"]["phase"] == "Inqueue")
            if need + queued > OVERCOMMIT * idle:
                return f"resource in cluster is overused: overused {resource}"
        return ""

    def _let_in(self, other: Object) -> list[Object]:
        return [g for g in self.world.podgroups if uid_of(g) != uid_of(other) and g.get("status", {}).get("phase") in ("Inqueue", "Running", "Unknown")]

    def _free(self) -> dict[str, Counter[str]]:
        free = {
            node["metadata"]["name"]: Counter({name: _number(amount) for name, amount in node.get("status", {}).get("allocatable", {}).items()})
            for node in self.world.nodes
        }
        for pod in self.world.pods:
            node = pod["spec"].get("nodeName")
            if node in free and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                free[node].subtract(_needs(pod))
        return free

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _set(self, group: Object, phase: str) -> None:
        if group.get("status", {}).get("phase") != phase:
            self.world.patch(PODGROUPS, group, {"status": {"phase": phase}})

    def _condition(self, group: Object, kind: str, reason: str, message: str) -> None:
        conditions = {c["type"]: c for c in group.get("status", {}).get("conditions") or []}
        if conditions.get(kind, {}).get("message", "") == message and kind in conditions:
            return
        conditions[kind] = {
            "type": kind, "status": "True", "reason": reason, "lastTransitionTime": now(), "transitionID": uid_of(group), **({"message": message} if message else {}),
        }
        self.world.patch(PODGROUPS, group, {"status": {"conditions": list(conditions.values())}})

    def _tell(self, group: Object, *event: str) -> None:
        sort, reason, message = event
        self.world.tell("PodGroup", group, (sort, reason, message), "volcano")


def _needs(pod: Object) -> dict[str, int]:
    needs: Counter[str] = Counter({"pods": 1})
    for container in pod["spec"]["containers"]:
        for name, amount in container.get("resources", {}).get("requests", {}).items():
            if name.startswith("huawei.com/"):
                needs[name] += int(amount)
    return dict(needs)


def _number(amount: Any) -> int:
    text = str(amount)
    return int(text) if text.isdigit() else 0


def _ready(node: Object) -> bool:
    conditions = {c["type"]: c["status"] for c in node.get("status", {}).get("conditions") or []}
    return conditions.get("Ready") == "True" and not node["spec"].get("unschedulable")


def _states(pods: list[Object]) -> str:
    """Volcano's words for where members are, sorted."""
    counts = Counter("Releasing" if pod["metadata"].get("deletionTimestamp") else pod["status"].get("phase", "Pending") for pod in pods)
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
