"""Messages that people met on their clusters and published: their words, not ours. Each must be explained rightly or be called unknown and
shown as it is; a guess is worse than no answer.
"""

from typing import Any

import pytest

from nanochat_npu.explain import Explanation, Facts, explain
from nanochat_npu.job_state import JobObjects

SCHEDULER: list[tuple[str, str, str, str]] = [
    # where it was published, the message, the rule, words that the answer has to say (or, for X00, nothing)
    ("aws/karpenter-provider-aws#6447", "0/20 nodes are available: 1 node(s) had untolerated taint {windowsContainers: true}, 2 node(s) had untolerated taint {eks.amazonaws.com/compute-type: fargate}, 4 node(s) didn't match Pod's node affinity/selector, 4 node(s) didn't match pod anti-affinity rules, 9 node(s) didn't match pod topology spread constraints. preemption: 0/20 nodes are available: 13 No preemption victims found for incoming pod, 7 Preemption is not helpful for scheduling.", "W17", "4 of 20"),
    ("red-hat-storage/ocs-operator#4163", "0/6 nodes are available: 1 node(s) had untolerated taint {unschedulable: true}, 2 node(s) didn't match pod topology spread constraints, 3 node(s) had untolerated taint {node-role.kubernetes.io/master: }. preemption: 0/6 nodes are available: 2 node(s) didn't match pod topology spread constraints, 4 Preemption is not helpful for scheduling.", "W18", "4 of 6"),
    ("yugabyte/yugabyte-db#20349", "0/10 nodes are available: 3 node(s) had volume node affinity conflict, 7 node(s) didn't match Pod's node affinity/selector. preemption: 0/10 nodes are available: 10 Preemption is not helpful for scheduling..", "W17", "7 of 10"),
    ("kubernetes/kubernetes#108096", "0/1 nodes are available: 1 node(s) had volume node affinity conflict", "X00", ""),
    ("radondb/radondb-mysql-kubernetes#395", "0/3 nodes are available: 1 node(s) had taint {node-role.kubernetes.io/master: }, that the pod didn't tolerate, 2 node(s) had volume node affinity conflict.", "W18", "1 of 3"),
    ("Project-HAMi/HAMi#620", "0/4 nodes are available: 3 node unregistered. preemption: 0/4 nodes are available: 4 No preemption victims found for incoming pod..", "X00", ""),
    ("Project-HAMi/HAMi#1332", "5 nodes failed: CardTypeMismatch (node1,node2,node3,node4,node5)", "X00", ""),
    ("Project-HAMi/HAMi#1332", "3 nodes failed: CardInsufficientMemory (node2,node3,node5)", "X00", ""),
    ("Project-HAMi/HAMi#1069", "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.memory. preemption: 0/4 nodes are available: 4 No preemption victims found for incoming pod.", "W19", "nvidia.com/gpu.memory (4)"),
    ("microsoft/pai#5577", "0/2 nodes are available: 1 Insufficient memory, 1 Pod is waiting for preemptible or free resource to appear: have to use at least one bad node 1/10.1.2.3 when scheduling in VC default, 1 node(s) didn't match node selector.", "W19", "Insufficient memory (1)"),
    ("sapcc/helm-charts#548", "No nodes are available that match all of the predicates: Insufficient cpu (19), Insufficient memory (19), PodToleratesNodeTaints (10).", "X00", ""),
    ("volcano-sh/volcano#2416", "1/1 tasks in gang unschedulable: pod group is not ready, 1 Pending, 1 minAvailable; Pending: 1 Undetermined", "W91", "queue research"),
    ("volcano-sh/volcano#519", "10/6 tasks in gang unschedulable: job is not ready, 10 minAvailable, 6 Pending.", "W91", "queue research"),
    ("volcano-sh/volcano#2633", "resource in cluster is overused", "W21", "16 NPUs"),
    ("volcano-sh/volcano#4117", "all nodes are unavailable: 1 plugin InterPodAffinity predicates failed node(s) didn't match pod affinity rules.", "X00", ""),
    ("volcano-sh/volcano#4116", "0/1 nodes are unavailable: 1 Insufficient cpu.", "W19", "Insufficient cpu (1)"),
    ("Project-HAMi/HAMi#39", "AssumePod failed: pod c4c9c2a8-83d3-4e9b-b6fa-ed47719d3d19 is in the cache, so can't be assumed", "X00", ""),
]
KUBELET: list[tuple[str, str, str, str, str]] = [
    ("Project-HAMi/HAMi#39", "UnexpectedAdmissionError", "Allocate failed due to rpc error: code = Unavailable desc = transport is closing, which is unexpected", "W16", "hand out"),
    ("kubernetes/kubernetes#125579", "UnexpectedAdmissionError", "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices xxx, which is unexpected", "W16", "hand out"),
    ("Project-HAMi/HAMi#39", "FailedMount", 'MountVolume.SetUp failed for volume "kube-api-access-8hcmj" : object "default"/"kube-root-ca.crt" not registered', "W15", "volume"),
    ("zendesk/samson#3273", "FailedCreatePodSandBox", "Failed create pod sandbox: rpc error: code = Unknown desc = NetworkPlugin cni failed to set up pod", "W16", "network"),
]


def job() -> dict[str, Any]:
    """A job of 2 x 8 that waits."""
    return {
        "metadata": {"name": "j", "namespace": "train", "uid": "u"}, "status": {"state": {"phase": "Pending"}},
        "spec": {"minAvailable": 2, "queue": "research", "tasks": [{"name": "worker", "replicas": 2, "template": {"spec": {
            "containers": [{"name": "trainer", "resources": {"limits": {"huawei.com/Ascend910": "8"}}}]}}}]},
    }


def held(answer: Explanation, text: str, rule: str, words: str) -> None:
    assert answer.rule == rule, answer
    if rule == "X00":
        assert answer.raw == text
        assert "not known" in answer.cause
    else:
        assert words in answer.cause, answer


SANDBOX = 'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "a1": plugin type="calico" failed (add): pod {pod}_{namespace}'


def test_a_name_with_npu_in_it_makes_no_network_trouble_the_npus() -> None:
    pod = {"metadata": {"name": "j-npu-worker-0", "ownerReferences": [{"kind": "Job", "uid": "u", "controller": True}]}, "spec": {"nodeName": "n"}, "status": {"phase": "Pending"}}
    mine = {**job(), "metadata": {"name": "j-npu", "namespace": "npu-research", "uid": "u"}}
    text = SANDBOX.format(pod="j-npu-worker-0", namespace="npu-research")
    event = {"reason": "FailedCreatePodSandBox", "message": text, "involvedObject": {"kind": "Pod", "name": "j-npu-worker-0"}}
    held(explain(Facts(JobObjects(mine, None, [pod], [event]))), text, "W16", "network")
    broken = {**event, "message": "Failed to create pod sandbox: OCI runtime create failed: npu-runtime: no such device"}
    called_so = {**mine, "metadata": {**mine["metadata"], "namespace": "npu"}}  # a name is not cut out of other words
    held(explain(Facts(JobObjects(called_so, None, [pod], [broken]))), broken["message"], "W16", "hand out")
    refused = {"reason": "UnexpectedAdmissionError", "message": "Allocate failed", "involvedObject": event["involvedObject"]}
    held(explain(Facts(JobObjects(mine, None, [pod], [event, refused]))), "Allocate failed", "W16", "hand out")  # what has passed hides nothing


def test_there_are_twenty_of_them() -> None:
    assert len(SCHEDULER) + len(KUBELET) >= 20


@pytest.mark.parametrize(("source", "text", "rule", "words"), SCHEDULER)
def test_a_schedulers_message_is_explained_rightly_or_called_unknown(source: str, text: str, rule: str, words: str) -> None:
    podgroup = {"metadata": {"name": "j-u"}, "status": {"phase": "Inqueue", "conditions": [{"type": "Unschedulable", "status": "True", "message": text}]}}
    held(explain(Facts(JobObjects(job(), podgroup))), text, rule, words)


@pytest.mark.parametrize(("source", "reason", "text", "rule", "words"), KUBELET)
def test_a_kubelets_message_is_explained_rightly_or_called_unknown(source: str, reason: str, text: str, rule: str, words: str) -> None:
    pod = {"metadata": {"name": "j-worker-0", "ownerReferences": [{"kind": "Job", "uid": "u", "controller": True}]}, "spec": {"nodeName": "npu-0"}, "status": {"phase": "Pending"}}
    event = {"reason": reason, "message": text, "involvedObject": {"kind": "Pod", "name": "j-worker-0"}}
    held(explain(Facts(JobObjects(job(), None, [pod], [event]))), text, rule, words)
