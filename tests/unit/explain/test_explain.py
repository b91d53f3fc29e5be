"""explain on recordings of real Volcano, on messages from public threads, and on objects with parts missing."""

import copy
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
from recorded import SCENARIOS, moments

from nanochat_npu.explain import Explanation, Facts, Who, explain, explain_log
from nanochat_npu.explain.scheduler_text import node_reasons, origin_reason, server_message
from nanochat_npu.job_state import JobObjects


def node(name: str, npus: int = 8, *, ready: bool = True, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"accelerator-type": "module-910b-8", **{k.replace("_", "-"): v for k, v in labels.items()}}},
        "status": {"allocatable": {"huawei.com/Ascend910": str(npus)}, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def at_end(scenario: str, **more: Any) -> Explanation:
    *_rest, (_t, objects) = moments(scenario)
    return explain(Facts(objects, **more))


def worst(scenario: str, **more: Any) -> set[str]:
    return {explain(Facts(objects, **more)).rule for _t, objects in moments(scenario)}


@pytest.mark.parametrize(
    ("scenario", "rule", "words"),
    [
        ("missing_claim", "W07", ["claim nope"]),
        ("quota", "W05", ["quota q", "2 x 8 = 16"]),
        ("bad_service_account", "W06", ["service account nope"]),
        ("name_digit", "W04", ["2x8", "Service"]),
        ("name_dot", "W04", ["qwen2.5"]),
        ("queue_capability", "W20", ["queue small", "16 NPUs"]),
        ("fatal_exit", "E78", ["exit code 78", "configuration"]),
        ("always_fails_3", "E1", ["after 3 attempts", "exit code 1"]),
        ("suspend_resume_maxretry_1", "E10", ["resuming takes an attempt"]),
        ("success", "E00", ["finished"]),
    ],
)
def test_recorded_scenarios_are_explained(scenario: str, rule: str, words: list[str]) -> None:
    answer = at_end(scenario)
    assert answer.rule == rule
    for word in words:
        assert word in answer.cause
    assert answer.action


def test_too_big_names_the_shortage_in_numbers_and_the_nearest_job_that_fits() -> None:
    answer = at_end("too_big", nodes=[node(f"npu-{i}") for i in range(4)], node_pods=[])
    assert answer.rule == "W11"
    assert "40 NPUs on 5 nodes" in answer.cause
    assert "32 on 4" in answer.cause
    assert "8 NPUs short" in answer.cause
    assert "resources.nodes=4" in answer.action


def test_a_wrong_label_is_compared_with_what_nodes_really_carry() -> None:
    answer = at_end("wrong_selector", nodes=[node(f"npu-{i}") for i in range(4)])
    assert answer.rule == "W10"
    assert "accelerator-type=module-910b-16" in answer.cause
    assert "module-910b-8 (4)" in answer.cause
    assert answer.values["have"] == {"module-910b-8": 4}


def test_without_the_right_to_read_nodes_the_label_is_still_named() -> None:
    answer = at_end("wrong_selector")
    assert answer.rule == "W17"
    assert "4 of 4 nodes" in answer.cause


def test_a_queue_that_can_never_hold_the_job_is_told_from_one_that_is_full() -> None:
    queue = {"metadata": {"name": "small"}, "spec": {"capability": {"huawei.com/Ascend910": "8"}}, "status": {"state": "Open"}}
    assert at_end("queue_capability", queue=queue).rule == "W09"
    queue["spec"]["capability"]["huawei.com/Ascend910"] = "32"  # type: ignore[index]
    queue["status"]["allocated"] = {"huawei.com/Ascend910": "24"}  # type: ignore[index]
    full = at_end("queue_capability", queue=queue)
    assert full.rule == "W20"
    assert "24 of its 32" in full.cause
    assert full.who is Who.WAIT


def test_a_closed_queue() -> None:
    queue = {"metadata": {"name": "small"}, "status": {"state": "Closed"}}
    assert at_end("queue_capability", queue=queue).rule == "W08"


def test_a_dead_node_is_named_with_the_way_out() -> None:
    found = []
    for _t, objects in moments("dead_node_stuck"):
        if any(p["metadata"].get("deletionTimestamp") for p in objects.pods):
            later = JobObjects(objects.job, objects.podgroup, objects.pods, objects.events, now_s=4e9)
            found.append(explain(Facts(later)))
    assert any(a.rule == "W13" and a.action == "nanochat-npu recover train" for a in found)


def waiting_job(text: str, **more: Any) -> Facts:
    """A job of 2 x 8 whose scheduler says `text`."""
    job = {
        "metadata": {"name": "j", "namespace": "train", "uid": "u"},
        "spec": {"minAvailable": 2, "queue": "research", "tasks": [{"name": "worker", "replicas": 2, "template": {"spec": {
            "nodeSelector": {"accelerator-type": "module-910b-8"},
            "containers": [{"name": "trainer", "resources": {"limits": {"huawei.com/Ascend910": "8"}}}]}}}]},
        "status": {"state": {"phase": "Pending"}},
    }
    podgroup = {"metadata": {"name": "j-u"}, "status": {"phase": "Inqueue", "conditions": [{"type": "Unschedulable", "status": "True", "message": text}]}}
    return Facts(JobObjects(job, podgroup), **more)


GANG = "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable; Pending: 2 Unschedulable. Origin reason is j-worker-0: "


@pytest.mark.parametrize(
    ("text", "rule", "words"),
    [
        ("check Node controller01 label [accelerator-type] Failed, value is module-910b-16", "W17", ["controller01", "module-910b-16"]),
        ("0/9 nodes are unavailable: 4 Insufficient huawei.com/Ascend910, 5 Insufficient cpu.", "W19", ["9 nodes", "huawei.com/Ascend910 (4)"]),
        ("0/4 nodes are unavailable: 3 node(s) had untolerated taint {pool: inference}, 1 Insufficient memory.", "W18", ["3 of 4", "pool: inference"]),
        ("0/4 nodes are unavailable: 4 node(s) didn't have free ports for the requested pod ports.", "W19", ["free ports"]),
        ('0/4 nodes are unavailable: 4 plugin VolumeZone pre-predicates failed persistentvolumeclaim "ckpt" not found.', "W07", ["ckpt"]),
        ("0/4 nodes are unavailable: pod has unbound immediate PersistentVolumeClaims.", "W07", ["not bound"]),
        ("resource in cluster is overused: overused huawei.com/Ascend910", "W21", ["16 NPUs"]),
        ("queue resource quota insufficient: insufficient huawei.com/Ascend910", "W20", ["research"]),
    ],
)
@pytest.mark.parametrize("in_gang", [False, True])
def test_messages_of_public_threads(text: str, rule: str, words: list[str], in_gang: bool) -> None:
    answer = explain(waiting_job(GANG + text if in_gang else text))
    assert answer.rule == rule
    for word in words:
        assert word in answer.cause


@pytest.mark.parametrize(
    "text",
    [
        "the moon is in the wrong phase", "node gremlin detected on 3 nodes", "plugin frobnicate vetoed the placement",
        "0/4 nodes are unavailable: 4 node(s) violated policy kumquat.", "NUMA alignment could not be satisfied for rack 7",
    ],
)
def test_unknown_texts_are_shown_raw_and_called_unknown(text: str) -> None:
    answer = explain(waiting_job(GANG + text))
    assert answer.rule == "X00"
    assert answer.raw == text


def test_a_job_that_waits_without_pods_says_that_no_autoscaler_sees_it() -> None:
    job = {
        "metadata": {"name": "d20", "uid": "u", "creationTimestamp": "2026-11-30T00:00:00Z"}, "status": {"state": {"phase": "Pending"}},
        "spec": {"queue": "q", "minAvailable": 2, "tasks": [{"replicas": 2}]},
    }
    answer = explain(Facts(JobObjects(job)))
    assert answer.rule == "W91"
    assert any("autoscaler" in text for text in answer.also)


def test_a_gang_that_fits_later_says_how_much_is_free() -> None:
    busy = [{"metadata": {"name": f"p{i}", "uid": f"p{i}"}, "spec": {"nodeName": f"npu-{i}", "containers": [{"resources": {"limits": {"huawei.com/Ascend910": "4"}}}]}} for i in range(3)]
    answer = explain(waiting_job("", nodes=[node(f"npu-{i}") for i in range(3)], node_pods=busy))
    assert answer.rule == "W21"
    assert answer.values["free"] == 12
    assert answer.values["slots_now"] == 0
    assert answer.values["slots_ever"] == 3


def test_free_nodes_behind_a_reservation_name_the_holders() -> None:
    others = [{"metadata": {"name": "stuck-1"}, "status": {"phase": "Inqueue"}}, {"metadata": {"name": "busy"}, "status": {"phase": "Running", "running": 2}}]
    answer = explain(waiting_job("", nodes=[node("a"), node("b")], node_pods=[], podgroups=others))
    assert answer.rule == "W22"
    assert "stuck-1" in answer.cause
    assert "busy" not in answer.cause


@pytest.mark.parametrize(
    ("reason", "who"),
    [("ImagePullBackOff", Who.YOU), ("CreateContainerConfigError", Who.YOU), ("RunContainerError", Who.ADMIN), ("CrashLoopBackOff", Who.YOU)],
)
@pytest.mark.parametrize("kind", ["initContainerStatuses", "containerStatuses"])
def test_containers_that_cannot_start_are_named_also_init_containers(reason: str, who: Who, kind: str) -> None:
    facts = waiting_job("")
    status = {"name": "fetch", "image": "registry.example.com/x:1", "state": {"waiting": {"reason": reason, "message": "back-off"}}}
    pod = {"metadata": {"name": "j-worker-0"}, "spec": {"nodeName": "npu-0"}, "status": {"phase": "Pending", kind: [status]}}
    answer = explain(Facts(JobObjects(facts.job, facts.objects.podgroup, [pod])))
    assert (answer.rule, answer.who) == ("W14", who)
    assert reason in answer.cause


def test_hccl_codes_in_a_log_lead_to_meaning_and_action() -> None:
    lines = [
        "[ERROR] 2026-03-01 ERR02200 DIST call hccl api failed.",
        "EI0006: Getting socket times out. Reason: ...",
        "step 507 of 561103000 tokens",  # numbers that merely contain a code
    ]
    answer = explain_log(lines)
    assert answer is not None
    assert answer.rule == "L-EI0006"
    assert "late" in answer.cause
    assert answer.values["codes"] == ["EI0006", "ERR02200"]
    assert explain_log(["all is well"]) is None


def test_a_failure_joins_verdict_and_log() -> None:
    *_rest, (_t, objects) = moments("fatal_exit")
    answer = explain(Facts(objects, verdict={"code": 69, "rank": 11, "step": 1200, "message": "HCCL"}, log_lines=("EI0013 error",)))
    assert answer.rule == "E69"
    assert "rank 11 at step 1200" in answer.cause
    assert "EI0013" in answer.cause
    assert answer.who is Who.ADMIN


def test_origin_reasons_and_go_structs_are_taken_apart() -> None:
    assert origin_reason(GANG + "0/4 nodes are unavailable: 4 x.") == "0/4 nodes are unavailable: 4 x."
    assert origin_reason("0/0 tasks in gang unschedulable: pod group is not ready, 5 minAvailable") == ""
    assert server_message('err: &errors.StatusError{ErrStatus:v1.Status{Message:"pods \\"a\\" is forbidden: no", Reason:"Forbidden"}}') == 'pods "a" is forbidden: no'
    parsed = node_reasons("0/4 nodes are unavailable: 3 node(s) didn't match Pod's node affinity/selector, 1 Insufficient huawei.com/Ascend910.")
    assert parsed is not None
    assert parsed.reasons == {"node(s) didn't match Pod's node affinity/selector": 3, "Insufficient huawei.com/Ascend910": 1}


def mutilate(value: Any, rng: random.Random) -> Any:
    """The object with random keys removed or replaced by something of another type."""
    if isinstance(value, dict):
        return {k: mutilate(v, rng) if rng.random() > 0.05 else rng.choice([None, "x", 3, [], {}]) for k, v in value.items() if rng.random() > 0.08}
    if isinstance(value, list):
        return [mutilate(v, rng) for v in value]
    return value


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_objects_with_random_parts_missing_never_crash(scenario: str) -> None:
    rng = random.Random(scenario)
    for _t, objects in moments(scenario):
        raw = json.loads(json.dumps([objects.job, objects.podgroup, objects.pods, objects.events]))
        job, podgroup, pods, events = (mutilate(copy.deepcopy(part), rng) for part in raw)
        facts = Facts(
            JobObjects(job, podgroup, pods, events, now_s=rng.choice([None, 4e9])), queue=mutilate({"status": {"state": "Open"}}, rng),
            nodes=mutilate([node("a")], rng), node_pods=pods, verdict=mutilate({"code": 65, "rank": 1, "step": 2}, rng),
        )
        assert explain(facts).cause
