"""Who has how many NPUs, from objects of which any part may be missing."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nanochat_npu import marks
from nanochat_npu.cluster.capacity import Capacity, capacity_of

READY = [{"type": "Ready", "status": "True"}]


def node(name: str, npus: int = 8, resource: str = "huawei.com/Ascend910", **spec: Any) -> dict[str, Any]:
    """A node that has NPUs."""
    labels = {"accelerator-type": "module-910b-8", "node.kubernetes.io/npu.chip.name": "910B3"}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": {resource: str(npus), "cpu": "192"}, "conditions": READY}}


def pod(where: str, npus: int, job: str = "d20", phase: str = "Running", namespace: str = "train") -> dict[str, Any]:
    """A pod that holds NPUs."""
    labels = {marks.LABEL_JOB: job, marks.LABEL_OWNER: "li"}
    limits = {"huawei.com/Ascend910": str(npus)}
    return {
        "metadata": {"name": f"{job}-x", "namespace": namespace, "labels": labels}, "spec": {"nodeName": where, "containers": [{"resources": {"limits": limits}}]},
        "status": {"phase": phase},
    }


def of(nodes: list[dict[str, Any]] | None, pods: list[dict[str, Any]] | None) -> Capacity:
    """Capacity of these."""
    return capacity_of(nodes, [], pods, pods or [])


def test_what_is_held_is_not_free() -> None:
    found = of([node("a"), node("b"), node("c")], [pod("a", 8), pod("b", 2, job="small")])
    assert (found.total, found.free, found.whole_nodes) == (24, 14, 1)
    assert [(holder.job, holder.npus, holder.nodes, holder.owner) for holder in found.holders] == [("d20", 8, 1, "li"), ("small", 2, 1, "li")]


def test_pods_that_have_ended_hold_nothing() -> None:
    assert of([node("a")], [pod("a", 8, phase="Succeeded"), pod("a", 8, phase="Failed")]).free == 8


def test_a_node_that_takes_no_pods_does_not_count() -> None:
    found = of([node("a"), node("b", unschedulable=True)], [])
    assert (found.total, found.free, found.whole_nodes) == (8, 8, 1)
    assert [row.ready for row in found.nodes] == [True, False]


def test_without_the_right_to_see_all_pods_nothing_is_called_free() -> None:
    found = capacity_of([node("a")], None, None, [pod("a", 2)])
    assert (found.total, found.free, found.whole_nodes) == (8, None, None)
    assert [holder.npus for holder in found.holders] == [2]


def test_the_resource_is_found_on_the_nodes_whatever_the_plugin_calls_it() -> None:
    assert of([node("a", resource="huawei.com/ascend-1980"), node("b", resource="huawei.com/ascend-1980")], []).resource == "huawei.com/ascend-1980"
    hami = node("a", resource="huawei.com/Ascend910B3")
    hami["status"]["allocatable"]["huawei.com/Ascend910B3-memory"] = "524288"
    assert of([hami], []).resource == "huawei.com/Ascend910B3"


def test_queues_show_limits_and_what_they_hold() -> None:
    queue = {"metadata": {"name": "q"}, "spec": {"capability": {"huawei.com/Ascend910": "64"}}, "status": {"state": "Open", "allocated": {"huawei.com/Ascend910": "16"}}}
    (row,) = capacity_of([node("a")], [queue], [], []).queues
    assert (row.name, row.state, row.allocated, row.capability) == ("q", "Open", 16, 64)


_ANY = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=6), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(["metadata", "name", "labels", "spec", "status", "allocatable", "huawei.com/Ascend910", "containers", "resources", "limits", "nodeName", "phase"]), inner,
    max_size=4,
), max_leaves=10)
_OBJECTS = st.lists(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), _ANY), max_size=4)


@settings(max_examples=150, deadline=None)
@given(nodes=_OBJECTS | st.none(), queues=_OBJECTS | st.none(), pods=_OBJECTS | st.none(), shown=_OBJECTS)
def test_no_missing_or_wrong_part_ever_raises(nodes: Any, queues: Any, pods: Any, shown: Any) -> None:
    found = capacity_of(nodes, queues, pods, shown)
    assert found.total >= 0
    assert found.free is None or found.free >= 0
