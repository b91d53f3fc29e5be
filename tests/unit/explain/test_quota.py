"""Quotas and queues against the whole gang, before anything is created."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanochat_npu.explain import Explanation, Facts, explain
from nanochat_npu.explain.quota import applies, per_pod, shortages, shown
from nanochat_npu.explain.waiting import queue_share, queue_too_small, quota_full, quota_too_small
from nanochat_npu.job_state import JobObjects
from nanochat_npu.quantities import amount

NPU = "requests.huawei.com/Ascend910"


def quota(hard: dict[str, str], used: dict[str, str] | None = None, name: str = "q", **spec: Any) -> dict[str, Any]:
    """A ResourceQuota as the server shows it."""
    return {"metadata": {"name": name}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


def job(nodes: int = 4, npus: int = 8, memory: str | None = "512Gi", cpu: str | None = "64", **pod: Any) -> dict[str, Any]:
    """A gang."""
    limits = {"huawei.com/Ascend910": str(npus), "memory": memory, "cpu": cpu}
    spec = {"containers": [{"resources": {"limits": {key: value for key, value in limits.items() if value}}}], **pod}
    return {
        "metadata": {"name": "d20", "namespace": "train"},
        "spec": {"queue": "q1", "minAvailable": nodes, "tasks": [{"replicas": nodes, "template": {"spec": spec}}]},
    }


def facts(found: list[dict[str, Any]], queue: dict[str, Any] | None = None, **gang: Any) -> Facts:
    return Facts(JobObjects(job(**gang)), quotas=found, queue=queue)


@pytest.mark.parametrize(("text", "value"), [
    ("8", 8), ("500m", "0.5"), ("1.5Ti", 1.5 * 2**40), ("1e3", 1000), ("2k", 2000), (7, 7), ("64Gi", 2**36), (".5", "0.5"), ("-1", -1), ("100n", "1e-7"),
])
def test_quantities_are_read_as_kubernetes_reads_them(text: Any, value: Any) -> None:
    assert amount(text) == Decimal(str(value) if isinstance(value, str) else value)


@pytest.mark.parametrize("text", ["", "Gi", "8 NPUs", None, True, [], "1e9999", "--3"])
def test_what_is_no_quantity_is_none(text: Any) -> None:
    assert amount(text) is None


def test_amounts_are_shown_for_people() -> None:
    assert shown("limits.memory", Decimal(2) ** 41) == "2,048Gi"
    assert shown("requests.storage", Decimal(2) ** 50) == "1,048,576Gi"
    assert shown("memory", Decimal(2) ** 29) == "0.5Gi"
    assert shown(NPU, Decimal(24)) == "24"
    assert shown("cpu", Decimal("0.5")) == "0.5"
    assert shown("cpu", Decimal(1000)) == "1,000"


def cause(answer: Explanation | None) -> str:
    assert answer is not None
    return answer.cause


def test_a_quota_that_never_holds_the_gang_is_told_with_numbers_and_the_nearest_job() -> None:
    answer = quota_too_small(facts([quota({NPU: "24"}, {NPU: "8"})]))
    assert "allows 24 requests.huawei.com/Ascend910, the gang of 4 pods needs 32" in cause(answer)
    assert answer is not None
    assert "resources.nodes=3" in answer.action
    assert quota_full(facts([quota({NPU: "24"}, {NPU: "8"})])) is None


def test_the_tightest_of_several_limits_decides_what_fits() -> None:
    answer = quota_too_small(facts([quota({NPU: "24", "limits.memory": "1Ti", "pods": "50"})]))
    assert answer is not None
    assert "resources.nodes=2" in answer.action
    assert any("2,048Gi" in text or "24" in text for text in answer.also)


def test_a_quota_that_others_use_is_told_as_something_that_passes() -> None:
    found = [quota({NPU: "64"}, {NPU: "40"})]
    assert quota_too_small(facts(found)) is None
    answer = quota_full(facts(found))
    assert "40 of 64" in cause(answer)
    assert "need 32 more" in cause(answer)


@pytest.mark.parametrize("hard", [{"pods": "3"}, {"count/pods": "3"}, {"requests.cpu": "200"}, {"cpu": "200"}, {"limits.cpu": "200"}, {"memory": "1.9Ti"}])
def test_every_way_to_limit_pods_is_counted(hard: dict[str, str]) -> None:
    assert quota_too_small(facts([quota(hard)])) is not None


@pytest.mark.parametrize("hard", [{NPU: "32"}, {"pods": "4"}, {"configmaps": "1"}, {"requests.nvidia.com/gpu": "0"}, {"memory": "2Ti"}, {}])
def test_a_quota_that_holds_the_gang_exactly_or_limits_something_else_says_nothing(hard: dict[str, str]) -> None:
    assert quota_too_small(facts([quota(hard)])) is None
    assert quota_full(facts([quota(hard)])) is None


def test_a_quota_for_memory_refuses_pods_that_do_not_say_theirs() -> None:
    answer = quota_too_small(facts([quota({"limits.memory": "10Ti"})], memory=None))
    assert "demands that every pod says its limits.memory" in cause(answer)
    assert answer is not None
    assert "resources.memory" in answer.action


def test_what_pods_do_not_say_goes_before_what_they_ask_too_much_of() -> None:
    answer = quota_too_small(facts([quota({NPU: "24"}, name="a"), quota({"limits.memory": "10Ti"}, name="b")], memory=None))
    assert "quota b of namespace train demands that every pod says its limits.memory" in cause(answer)
    assert answer is not None
    assert "resources.memory" in answer.action


def test_pods_that_exist_are_in_what_is_used_already() -> None:
    spec = job()["spec"]["tasks"][0]["template"]["spec"]
    found = [quota({NPU: "32"}, {NPU: "24"})]
    assert shortages(found, spec, pods=4, standing=3) == []
    assert [gap.never for gap in shortages(found, spec, pods=4, standing=0)] == [False]


def test_an_init_container_counts_only_where_it_is_larger() -> None:
    pod = {
        "containers": [{"resources": {"limits": {"cpu": "2"}}}, {"resources": {"requests": {"cpu": "1"}}}],
        "initContainers": [{"resources": {"requests": {"cpu": "8"}}}],
    }
    assert per_pod(pod)["requests.cpu"] == 8
    assert per_pod(pod)["limits.cpu"] == 2


@pytest.mark.parametrize(("spec", "pod", "counted"), [
    ({"scopes": ["Terminating"]}, {}, False), ({"scopes": ["Terminating"]}, {"activeDeadlineSeconds": 60}, True), ({"scopes": ["NotTerminating"]}, {}, True),
    ({"scopes": ["BestEffort"]}, {}, False), ({"scopes": ["NotBestEffort"]}, {}, True), ({"scopes": ["SomethingNew"]}, {}, False),
    ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}, {"priorityClassName": "high"}, True),
    ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}, {}, False),
    ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "NotIn", "values": ["high"]}]}}, {"priorityClassName": "low"}, True),
    ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}}, {"priorityClassName": "low"}, True),
    ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "DoesNotExist"}]}}, {"priorityClassName": "low"}, False),
])
def test_a_quota_with_a_scope_counts_only_pods_of_that_scope(spec: dict[str, Any], pod: dict[str, Any], counted: bool) -> None:
    pod_spec = job(**pod)["spec"]["tasks"][0]["template"]["spec"]
    assert applies(quota({NPU: "1"}, **spec), pod_spec) is counted


@pytest.mark.parametrize(("capability", "words"), [
    ({"huawei.com/Ascend910": "24"}, "needs 32 NPUs, queue q1 never has more than 24"), ({"cpu": "128"}, "needs 256 cpu, queue q1 never has more than 128"),
    ({"memory": "1Ti"}, "needs 2,048Gi memory, queue q1 never has more than 1,024Gi"),
])
def test_a_queue_is_held_against_the_gang_in_all_that_it_limits(capability: dict[str, str], words: str) -> None:
    queue = {"metadata": {"name": "q1"}, "spec": {"capability": capability}}
    assert words in cause(queue_too_small(facts([], queue=queue)))


def test_going_over_a_queues_deserved_share_is_told() -> None:
    queue = {"metadata": {"name": "q1"}, "spec": {"deserved": {"huawei.com/Ascend910": "16"}}, "status": {"allocated": {"huawei.com/Ascend910": "8"}}}
    assert "needs 32 NPUs, queue q1 deserves 16 and holds 8 now" in cause(queue_share(facts([], queue=queue)))
    assert queue_share(facts([], queue=queue, nodes=2)) is None


def test_explain_names_the_quota_of_a_job_that_waits() -> None:
    answer = explain(facts([quota({NPU: "24"})]))
    assert answer.rule == "W12"


_ODD = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=6), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(["metadata", "name", "spec", "hard", "status", "used", "scopes", "scopeSelector", "matchExpressions", "pods", "cpu", "memory", "containers", "resources", "limits"]),
    inner, max_size=4), max_leaves=20)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), _ODD, max_size=3), max_size=3), st.dictionaries(
    st.sampled_from(["containers", "initContainers", "activeDeadlineSeconds", "priorityClassName"]), _ODD, max_size=3))
def test_objects_with_anything_missing_never_crash(quotas: list[dict[str, Any]], pod: dict[str, Any]) -> None:
    for gap in shortages(quotas, pod, pods=2):
        assert gap.quota is not None
