"""Faults of this kind of tool that people reported in public (torchx, Volcano, Kubeflow, SkyPilot and others), by our ids, and the tests that
hold the right behaviour. The ids without a test of their own elsewhere have one here.
"""

import datetime
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nanochat_npu.bundle import CONFIGMAPS, JOB
from nanochat_npu.errors import SpecConflictError
from nanochat_npu.load import load_text
from nanochat_npu.plan import Plan, make_plan
from nanochat_npu.render import render
from nanochat_npu.volcano_rules import proposed_name

TESTS = Path(__file__).parents[2]
HERE = "unit/cluster/test_bug_reports.py"
RULES, SPEC_RULES, OBJECTS = "unit/cluster/test_volcano_rules.py", "unit/spec/test_spec_rules.py", "golden/test_golden_objects.py"
SUBMIT, KUBE, WATCH, LIFE = "fake/test_submitting.py", "fake/test_kube_client.py", "fake/test_watching.py", "cluster/test_lifecycle.py"
WAITING, EXPLAIN, STATE, TROUBLE = "cluster/test_waiting.py", "unit/explain/test_explain.py", "unit/cluster/test_job_state.py", "cluster/test_trouble.py"

COVERED: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "B01": ("names that grow too long", [
        (RULES, "test_names_are_measured_with_the_largest_replica_index"), (RULES, "test_the_message_on_a_long_name_says_which_derived_name_and_by_how_much"),
        (WAITING, "test_a_name_that_fits_two_workers_but_not_a_thousand_is_refused_before_the_server_sees_it")]),
    "B02": ("HOSTNAME cut at 63", [(HERE, "test_nothing_of_ours_reads_the_hostname")]),
    "B03": ("dot in the name", [(RULES, "test_a_name_that_a_service_cannot_have_is_refused_with_one_that_it_can"), (SPEC_RULES, "test_names_that_kubernetes_or_volcano_refuses")]),
    "B04": ("name starts with a digit", [(RULES, "test_a_name_that_a_service_cannot_have_is_refused_with_one_that_it_can"), (HERE, "test_names_are_proposed_and_never_changed_silently")]),
    "B05": ("underscore, capitals, blanks", [(HERE, "test_names_are_proposed_and_never_changed_silently"), (SPEC_RULES, "test_names_that_kubernetes_or_volcano_refuses")]),
    "B07": ("labels from user text", [(HERE, "test_labels_are_held_to_kubernetes_rules")]),
    "B08": ("strings that YAML makes numbers", [("golden/test_golden_quoting.py", "test_any_value_reads_back_equal_in_value_and_type"), (OBJECTS, "test_horrors_arrive_as_they_were_written")]),
    "B09": ("quotes and newlines", [("golden/test_golden_quoting.py", "test_any_block_reads_back_equal"), (OBJECTS, "test_horrors_arrive_as_they_were_written")]),
    "B10": ("$(VAR) and $$", [(OBJECTS, "test_kubernetes_cannot_expand_what_a_person_wrote"), ("golden/test_golden_quoting.py", "test_kubernetes_gives_back_what_was_meant")]),
    "B11": ("field paths that lose letters", [(HERE, "test_field_references_are_whole"), (OBJECTS, "test_mindcluster_passes_the_schedulers_choice_on")]),
    "B14": ("duplicate environment", [(HERE, "test_no_variable_is_there_twice"), (SPEC_RULES, "test_variables_that_we_set_are_refused")]),
    "B15": ("units of memory", [(HERE, "test_memory_is_said_in_units_of_kubernetes"), (SPEC_RULES, "test_shared_memory_fits_into_memory")]),
    "B17": ("queue not open, closed, missing", [
        (RULES, "test_the_queue_that_is_not_open_yet_is_told_from_one_that_is_closed"), (SUBMIT, "test_a_queue_that_was_made_a_moment_ago_is_waited_for"),
        (SUBMIT, "test_a_queue_that_is_closed_is_not_waited_for")]),
    "B18": ("parent queue", [(SUBMIT, "test_a_parent_queue_is_refused_with_the_names_of_its_children")]),
    "B19": ("no right to read queues", [
        (WAITING, "test_without_the_right_to_read_queues_and_nodes_advice_is_skipped_with_a_note"), (WAITING, "test_a_user_without_any_rights_gets_verb_resource_namespace_and_user"),
        ("unit/cluster/test_namespace.py", "test_the_contexts_namespace_is_used")]),
    "B20": ("no Volcano", [(KUBE, "test_a_cluster_without_volcano_is_told_as_that")]),
    "B21": ("unset fields sent as empty", [(OBJECTS, "test_nothing_unfilled_in_what_we_write")]),
    "B22": ("fields that are dropped", [
        (SUBMIT, "test_a_field_that_an_old_server_drops_is_refused"), (KUBE, "test_objects_are_created_strictly"), (KUBE, "test_warnings_of_the_server_are_kept_once_each"),
        (WAITING, "test_an_unknown_field_of_a_patch_is_refused_and_nothing_is_made")]),
    "B23": ("job larger than queue or cluster", [
        (WAITING, "test_a_queue_that_is_too_small_is_warned_about"), (WAITING, "test_five_nodes_of_four_are_warned_about_and_the_shortage_is_named"),
        (TROUBLE, "test_wait_timeout_leaves_with_124_and_the_job_goes_on")]),
    "B24": ("minAvailable left to defaults", [(HERE, "test_the_job_says_what_defaults_differ_in")]),
    "B25": ("gang text hides the cause", [
        (EXPLAIN, "test_messages_of_public_threads"), (STATE, "test_the_reason_for_waiting_is_the_cause_and_not_the_gang"),
        (WAITING, "test_a_wrong_accelerator_type_is_named_with_what_nodes_have")]),
    "B27": ("an earlier job holds the reservation", [(EXPLAIN, "test_free_nodes_behind_a_reservation_name_the_holders")]),
    "B28": ("gang against quota", [
        (WAITING, "test_a_quota_that_never_holds_the_gang_is_warned_about_with_numbers_and_doctor_says_the_same"), (WAITING, "test_a_quota_that_denies_a_pod_shows_the_denial"),
        ("unit/explain/test_quota.py", "test_every_way_to_limit_pods_is_counted")]),
    "B29": ("hidden container reasons", [(EXPLAIN, "test_containers_that_cannot_start_are_named_also_init_containers"), (STATE, "test_what_does_not_heal_is_told_to_whoever_follows")]),
    "B30": ("claims", [
        (WAITING, "test_a_missing_claim_is_warned_about_and_found_behind_the_gang_text"), (SPEC_RULES, "test_conflicts_are_refused_at_their_field"),
        ("unit/runtime/test_node_checks.py", "test_folders_that_this_user_may_not_use")]),
    "B31": ("image pull secret", [("cluster/test_explain_and_doctor.py", "test_doctor_looks_at_the_secret_that_images_are_pulled_with")]),
    "B32": ("names that resolve late", [("unit/runtime/test_node_checks.py", "test_names_that_resolve_late_are_waited_for_with_growing_pauses_and_named_each_minute"), (OBJECTS, "test_volcano_rules")]),
    "B33": ("port that opens late", [("e2e/test_launch.py", "test_a_first_node_that_opens_its_port_late_is_waited_for")]),
    "B34": ("first worker starts last, or never", [
        ("e2e/test_launch.py", "test_a_first_node_that_opens_its_port_late_is_waited_for"), ("e2e/test_launch.py", "test_a_missing_node_is_named_when_the_start_times_out")]),
    "B35": ("WORLD_SIZE counts something else", [(HERE, "test_sizes_come_from_the_spec"), ("unit/contract/test_ranktable.py", "test_unequal_servers_and_wrong_world_size")]),
    "B36": ("same index in two tasks", [(HERE, "test_sizes_come_from_the_spec")]),
    "B37": ("constant RANK", [(SPEC_RULES, "test_variables_that_we_set_are_refused")]),
    "B38": ("fixed port on a shared host", [(OBJECTS, "test_ports_of_jobs_on_one_host_differ_and_stay"), ("e2e/test_launch.py", "test_a_taken_port_is_75_at_once")]),
    "B40": ("NetworkPolicy of the svc plugin", [(HERE, "test_the_network_policy_of_volcano_can_be_left_out_by_a_patch")]),
    "B41": ("shared memory", [(HERE, "test_shared_memory_has_a_limit"), ("unit/runtime/test_node_checks.py", "test_shared_memory_of_64_mib")]),
    "B42": ("ssh keys, images without root", [(HERE, "test_no_ssh_and_any_user")]),
    "B43": ("stale rank table", [
        ("unit/contract/test_ranktable.py", "test_a_stale_table_is_refused"), ("unit/runtime/test_rank_table.py", "test_what_never_becomes_usable_ends_with_the_reason_and_the_known_causes"),
        ("unit/runtime/test_rank_table.py", "test_the_copy_is_a_regular_file_although_the_configmap_mounts_a_symlink")]),
    "B44": ("meaning of maxRetry", [(HERE, "test_the_job_says_what_defaults_differ_in"), (LIFE, "test_always_failing_takes_exactly_the_allowed_attempts"), (STATE, "test_attempt_counts_starts_and_not_decisions_to_restart")]),
    "B45": ("logs of the failed attempt", [("cluster/test_files.py", "test_logs_of_an_attempt_whose_pods_are_gone_come_from_the_volume"), (TROUBLE, "test_followed_logs_go_on_through_a_restart_and_end_with_the_job")]),
    "B46": ("restartPolicy", [(HERE, "test_the_job_says_what_defaults_differ_in"), (RULES, "test_what_the_server_accepts_although_it_cannot_work_is_refused_by_us")]),
    "B47": ("RestartTask, RestartPod", [(OBJECTS, "test_policies_do_what_the_exit_code_table_says"), (HERE, "test_the_job_says_what_defaults_differ_in")]),
    "B48": ("resume uses a retry", [(LIFE, "test_suspend_is_refused_where_resuming_would_find_no_attempt"), (LIFE, "test_suspend_frees_the_nodes_and_resume_goes_on")]),
    "B49": ("the same name again", [
        (LIFE, "test_submitting_while_the_old_job_is_being_deleted_waits_and_is_no_false_success"), (SUBMIT, "test_pods_of_the_old_job_are_waited_for_too"),
        (KUBE, "test_the_two_409s_are_told_apart"), (STATE, "test_pods_of_an_earlier_job_of_the_same_name_do_not_count")]),
    "B50": ("time to live", [(LIFE, "test_a_job_that_its_time_to_live_removes_keeps_its_result_for_who_follows")]),
    "B52": ("watch 410 and 504", [
        (WATCH, "test_a_version_that_is_of_no_use_leads_to_a_new_list_and_nothing_is_lost"), (KUBE, "test_504_of_a_watch_cache_that_is_behind_means_to_list_again"),
        (WATCH, "test_bookmarks_move_the_version_on"), (TROUBLE, "test_an_api_server_that_restarts_loses_no_final_phase")]),
    "B53": ("429", [(KUBE, "test_429_is_obeyed_for_as_long_as_it_says_and_then_works"), (KUBE, "test_patience_has_an_end")]),
    "B54": ("lost answer to a create", [(SUBMIT, "test_a_lost_answer_whose_job_was_stored_is_a_success_and_not_a_second_job"), (LIFE, "test_the_same_submission_twice_is_one_job")]),
    "B55": ("409 on update", [(LIFE, "test_suspend_frees_the_nodes_and_resume_goes_on"), (KUBE, "test_the_two_409s_are_told_apart")]),
    "B56": ("expired token", [(KUBE, "test_a_token_that_expires_in_the_middle_is_renewed_once"), (KUBE, "test_a_plugin_that_fails_is_told_with_what_it_said"), (KUBE, "test_a_token_file_that_was_rotated_is_read_again")]),
    "B59": ("objects too large", [
        (RULES, "test_what_is_too_large_is_refused_with_numbers_before_it_is_sent"), ("golden/test_rank_table_modes.py", "test_ten_thousand_ranks_fit_as_text_more_are_compressed_and_far_more_refused"),
        (KUBE, "test_an_object_that_is_too_large_is_told_as_that")]),
    "B60": ("autoscaling sees no pods", [(EXPLAIN, "test_a_job_that_waits_without_pods_says_that_no_autoscaler_sees_it")]),
}
MISSING_NUMBERS = {6, 12, 13, 16, 26, 39, 51, 57, 58}
"""Ids that were never given, or were found to be about something else."""


def test_every_report_has_a_test_that_exists() -> None:
    assert list(COVERED) == [f"B{number:02d}" for number in range(1, 61) if number not in MISSING_NUMBERS]
    texts = {file: (TESTS / file).read_text(encoding="utf-8") for _what, tests in COVERED.values() for file, _name in tests}
    gone = [f"{bug}: {file}::{name}" for bug, (_what, tests) in COVERED.items() for file, name in tests if not re.search(rf"^def {name}\(", texts[file], re.M)]
    assert gone == []


SPEC: dict[str, Any] = {
    "spec_version": 1, "name": "d20", "owner": "li", "backend": "volcano", "run": {"stages": ["pretrain"], "model": {"depth": 12}, "pretrain": {"device_batch": 8}},
    "resources": {"nodes": 3, "npus_per_node": 8, "npu": "910B3", "memory": "512Gi", "shm": "64Gi"}, "image": {"ref": "registry.example.com/train/nanochat:1"},
    "cluster": {"platform": "mindcluster"}, "storage": {"output": {"claim": "output", "path": "/output"}},
}


def plan(**change: Any) -> Plan:
    spec = {key: {**value, **change.get(key, {})} if isinstance(value, dict) else change.get(key, value) for key, value in SPEC.items()}
    spec |= {key: value for key, value in change.items() if key not in SPEC}
    return make_plan(load_text(yaml.safe_dump(spec).encode(), "case.yaml", environ={}).spec, datetime.date(2026, 11, 30))


def job(**change: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(render(plan(**change)).files[JOB])
    return found


def container(**change: Any) -> dict[str, Any]:
    found: dict[str, Any] = job(**change)["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    return found


def test_nothing_of_ours_reads_the_hostname() -> None:
    bundle = render(plan())
    names = {entry["name"]: entry for entry in container(rank_table={"mode": "operator"})["env"]}
    assert names["NANOCHAT_POD_UID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"
    assert not [name for name, text in bundle.files.items() if "HOSTNAME" in text]
    root = TESTS.parent
    sources = [*root.glob("nanochat/launch/**/*.py"), *root.glob("nanochat/*.py"), root / "templates" / "entrypoint.sh"]
    assert not [path.name for path in sources if re.search(r"\bHOSTNAME\b", path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", ["qwen2.5-7b", "7b-sft", "0", "1.5b", "my_run", "MyRun", "my run", "run#3", "Ünï", "a..b", "-a", "a-"])
def test_names_are_proposed_and_never_changed_silently(name: str) -> None:
    proposal = proposed_name(name)
    assert plan(name=proposal).name == proposal
    with pytest.raises(SpecConflictError):
        plan(name=name)


def test_two_names_that_would_read_alike_never_meet() -> None:
    assert plan(name="a-b").name == "a-b"
    with pytest.raises(SpecConflictError):  # not taken for a-b: only a person can say which is meant
        plan(name="a_b")


@pytest.mark.parametrize(("key", "value", "good"), [
    ("team", "", True), ("team", "v1.2_x", True), ("team", "x" * 63, True), ("example.com/team", "a", True), ("a_b.C-d", "a", True),
    ("team", "a/b", False), ("team", "v1+cu12", False), ("team", "x" * 64, False), ("a/b/c", "a", False), ("-team", "a", False), ("x" * 64, "a", False),
    ("UPPER.com/team", "a", False), ("example.com/", "a", False), ("/team", "a", False), ("a..b/team", "a", False), ("x" * 254 + "/team", "a", False),
])
@pytest.mark.parametrize("field", ["labels", "node_selector"])
def test_labels_are_held_to_kubernetes_rules(field: str, key: str, value: str, good: bool) -> None:
    if good:
        assert plan(cluster={field: {key: value}}).spec.cluster.model_dump()[field] == {key: value}
    else:
        with pytest.raises(SpecConflictError, match=f"cluster.{field}"):
            plan(cluster={field: {key: value}})


def test_a_wrong_key_of_an_annotation_is_refused_too_but_any_text_may_be_its_value() -> None:
    assert plan(cluster={"annotations": {"example.com/note": "see: runbook #7 / Ünï"}})
    with pytest.raises(SpecConflictError, match=r"cluster\.annotations"):
        plan(cluster={"annotations": {"a/b/c": "x"}})


def test_field_references_are_whole() -> None:
    paths = {entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in container(rank_table={"mode": "operator"})["env"] if "fieldRef" in entry.get("valueFrom", {})}
    assert paths["NANOCHAT_HOST_IP"] == "status.hostIP"
    assert paths["ASCEND_VISIBLE_DEVICES"] == "metadata.annotations['huawei.com/Ascend910']"


def test_no_variable_is_there_twice() -> None:
    names = [entry["name"] for entry in container(env={"OMP_NUM_THREADS": "4", "HF_ENDPOINT": "https://hf.example.com"})["env"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("text", ["512Gi", "0.5Ti", "512G", "600000000000"])
def test_memory_is_said_in_units_of_kubernetes(text: str) -> None:
    assert container(resources={"memory": text})["resources"]["limits"]["memory"] == text
    for wrong in ("64g", "64GB", "64 Gi", "1e3", "128974848000m", "-1", "64m"):
        with pytest.raises(SpecConflictError, match=r"resources\.memory"):
            plan(resources={"memory": wrong})


def test_the_job_says_what_defaults_differ_in() -> None:
    made = job(retries={"failures": 0, "preemptions": 0})["spec"]
    task = made["tasks"][0]
    assert (made["minAvailable"], task["minAvailable"], task["replicas"]) == (3, 3, 3)
    assert made["maxRetry"] == 1
    assert job(retries={"failures": 2, "preemptions": 3})["spec"]["maxRetry"] == 6
    assert task["template"]["spec"]["restartPolicy"] == "Never"
    assert {policy["action"] for policy in made["policies"]} <= {"RestartJob", "TerminateJob", "CompleteJob"}


def test_sizes_come_from_the_spec() -> None:
    made = job()["spec"]
    assert [task["name"] for task in made["tasks"]] == ["worker"]
    env = {entry["name"]: entry.get("value") for entry in container()["env"]}
    assert env["NANOCHAT_NODES"] == "3"
    assert not {"RANK", "WORLD_SIZE"} & env.keys()
    assert "pytorch" not in made["plugins"]


def test_the_network_policy_of_volcano_can_be_left_out_by_a_patch() -> None:
    flags = ["--publish-not-ready-addresses", "--disable-network-policy=true"]
    assert job(cluster={"patch": {"spec": {"plugins": {"svc": flags}}}})["spec"]["plugins"]["svc"] == flags


def test_shared_memory_has_a_limit() -> None:
    volumes = {volume["name"]: volume for volume in job()["spec"]["tasks"][0]["template"]["spec"]["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}


def test_no_ssh_and_any_user() -> None:
    made = job(security={"run_as_user": 1000, "run_as_group": 1000, "fs_group": 1000})
    assert "ssh" not in made["spec"]["plugins"]
    assert made["spec"]["tasks"][0]["template"]["spec"]["securityContext"] == {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
    assert "ownerReferences" not in render(plan()).files[CONFIGMAPS]
