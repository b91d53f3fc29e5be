"""The rendered objects parsed again: the spec's values, Volcano's rules, the platforms' marks."""

import json
import re
from typing import Any

import pytest
import yaml
from golden_support import CLUSTER_SPECS, HERE, plan_of

from nanochat.contract import ExitCode, RunFile, may_restart
from nanochat_npu import marks
from nanochat_npu.bundle import CONFIGMAPS, DOCKERFILE, JOB, RUN_JSON
from nanochat_npu.errors import RenderError, SpecError
from nanochat_npu.render import render

FIELDS: dict[str, Any] = yaml.safe_load((HERE / "volcano_1_9_fields.yaml").read_text())


def job_of(name: str, *overrides: str) -> dict[str, Any]:
    return yaml.safe_load(render(plan_of(name, *overrides)).files[JOB])


def maps_of(name: str, *overrides: str) -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all(render(plan_of(name, *overrides)).files[CONFIGMAPS])
    return {document["metadata"]["name"]: document for document in documents}


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    return job["spec"]["tasks"][0]["template"]["spec"]


def env_of(job: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in pod_of(job)["containers"][0]["env"]}


def unknown_fields(value: Any, allowed: Any, path: str) -> list[str]:
    """Paths in `value` that the field list does not know; ``any`` allows everything below."""
    if allowed == "any" or not isinstance(value, dict | list):
        return []
    if isinstance(value, list):
        return [found for item in value for found in unknown_fields(item, allowed, path)]
    found = [f"{path}.{key}" for key in value if key not in allowed]
    return found + [deep for key in value if key in allowed for deep in unknown_fields(value[key], allowed[key], f"{path}.{key}")]


@pytest.mark.parametrize("name", CLUSTER_SPECS)
def test_no_field_that_volcano_1_9_would_drop(name: str) -> None:
    assert unknown_fields(job_of(name), FIELDS, "Job") == []


def test_field_list_finds_a_newer_field() -> None:
    job = job_of("one-server")
    job["spec"]["tasks"][0]["partitionPolicy"] = {"totalPartitions": 2}
    job["spec"]["networkTopology"] = {"mode": "hard"}
    assert unknown_fields(job, FIELDS, "Job") == ["Job.spec.networkTopology", "Job.spec.tasks.partitionPolicy"]


@pytest.mark.parametrize("name", CLUSTER_SPECS)
def test_nothing_unfilled_in_what_we_write(name: str) -> None:
    text = render(plan_of(name)).files[JOB]
    assert not re.search(r"\bNone\b", text)
    if name != "horrors":
        assert "{{" not in text


@pytest.mark.parametrize("name", CLUSTER_SPECS)
def test_volcano_rules(name: str) -> None:
    job, plan = job_of(name), plan_of(name)
    (task,) = job["spec"]["tasks"]
    assert task["name"] == "worker"
    assert job["spec"]["minAvailable"] == task["replicas"] == task["minAvailable"] == plan.spec.resources.nodes
    assert job["spec"]["maxRetry"] == plan.spec.retries.failures + plan.spec.retries.preemptions + 1 >= 1
    assert job["spec"]["schedulerName"] == "volcano"
    assert job["spec"]["queue"] == plan.spec.cluster.queue
    assert job["spec"]["plugins"]["svc"] == ["--publish-not-ready-addresses"]
    assert job["spec"]["plugins"]["env"] == []
    assert pod_of(job)["restartPolicy"] == "Never"
    names = [entry["name"] for entry in pod_of(job)["containers"][0]["env"]]
    assert len(names) == len(set(names)), "Volcano's CRD refuses a variable that is there twice"


def test_policies_do_what_the_exit_code_table_says() -> None:
    policies = job_of("one-server")["spec"]["policies"]
    by_code = {policy["exitCode"]: policy["action"] for policy in policies if "exitCode" in policy}
    assert set(by_code) == {int(code) for code in ExitCode} - {0}
    assert {code: action == "RestartJob" for code, action in by_code.items()} == {code: may_restart(code) for code in by_code}
    events = {policy["event"]: policy["action"] for policy in policies if "event" in policy}
    assert events == {"PodEvicted": "RestartJob", "PodFailed": "RestartJob", "TaskCompleted": "CompleteJob"}
    assert {policy["action"] for policy in policies} <= {"RestartJob", "TerminateJob", "CompleteJob"}


def test_codes_stand_before_events() -> None:
    kinds = ["exitCode" in policy for policy in job_of("one-server")["spec"]["policies"]]
    assert kinds == sorted(kinds, reverse=True)


@pytest.mark.parametrize("name", CLUSTER_SPECS)
def test_requests_equal_limits(name: str) -> None:
    resources = pod_of(job_of(name))["containers"][0].get("resources", {})
    assert resources.get("requests") == resources.get("limits")


def test_run_json_in_the_map_is_the_file_and_reads_back_as_the_plan() -> None:
    plan = plan_of("horrors")
    bundle = render(plan)
    in_map = maps_of("horrors")["horrors-run"]["data"]["run.json"]
    assert in_map == bundle.files[RUN_JSON]
    assert RunFile.model_validate_json(in_map) == plan.run_file


def test_horrors_arrive_as_they_were_written() -> None:
    spec, job = plan_of("horrors").spec, job_of("horrors")
    expand = re.compile(r"\$\$")
    assert {name: expand.sub("$", value) for name, value in env_of(job).items() if name in spec.env} == spec.env
    assert spec.cluster.labels.items() <= job["metadata"]["labels"].items()
    assert spec.cluster.annotations.items() <= job["metadata"]["annotations"].items()
    assert spec.cluster.node_selector.items() <= pod_of(job)["nodeSelector"].items()
    assert yaml.safe_load(job["metadata"]["annotations"][marks.ANNOTATION_SPEC])["env"] == spec.env


def test_kubernetes_cannot_expand_what_a_person_wrote() -> None:
    values = [value for value in env_of(job_of("horrors")).values() if isinstance(value, str)]
    assert not [value for value in values if re.search(r"(?<!\$)(\$\$)*\$\(", value)]


def test_annotations_hold_spec_plan_and_identity() -> None:
    plan = plan_of("one-server")
    annotations = job_of("one-server")["metadata"]["annotations"]
    assert annotations[marks.ANNOTATION_SUBMISSION] == plan.submission_id
    assert annotations[marks.ANNOTATION_INTENT] == "run"
    summary = json.loads(annotations[marks.ANNOTATION_PLAN])
    assert (summary["owner"], summary["nodes"], summary["npus_per_node"], summary["job_dir"]) == ("li", 1, 8, "/output/jobs/one-server")
    assert type(plan.spec).model_validate(yaml.safe_load(annotations[marks.ANNOTATION_SPEC])) == plan.spec


def test_secrets_are_references_only() -> None:
    assert env_of(job_of("one-server"))["SWANLAB_API_KEY"] == {"secretKeyRef": {"name": "tracking", "key": "swanlab"}}


def test_mindcluster_marks_job_pods_and_map_alike() -> None:
    job, table = job_of("two-servers-operator"), maps_of("two-servers-operator")["rings-config-two-servers"]
    for labels in (job["metadata"]["labels"], job["spec"]["tasks"][0]["template"]["metadata"]["labels"], table["metadata"]["labels"]):
        assert labels["ring-controller.atlas"] == "ascend-910b"
    assert json.loads(table["data"]["hccl.json"]) == {"status": "initializing"}
    assert pod_of(job)["nodeSelector"]["accelerator-type"] == "module-910b-8"


def test_operators_table_is_mounted_as_a_folder_and_named_to_the_launcher() -> None:
    job = job_of("two-servers-operator")
    mounts = {mount["name"]: mount for mount in pod_of(job)["containers"][0]["volumeMounts"]}
    assert "subPath" not in mounts["rank-table"]
    assert env_of(job)["NANOCHAT_RANK_TABLE"] == mounts["rank-table"]["mountPath"] + "/hccl.json"
    assert "RANK_TABLE_FILE" not in env_of(job)
    assert {"name": "rank-table", "configMap": {"name": "rings-config-two-servers"}} in pod_of(job)["volumes"]


def test_negotiate_renders_no_table() -> None:
    assert list(maps_of("one-server")) == ["one-server-run"]
    assert "NANOCHAT_RANK_TABLE" not in env_of(job_of("one-server"))


def test_hccl_address_if_and_only_if_host_network() -> None:
    host, pod = env_of(job_of("two-servers-operator")), env_of(job_of("one-server"))
    assert host["HCCL_IF_IP"] == {"fieldRef": {"fieldPath": "status.hostIP"}}
    assert "HCCL_SOCKET_IFNAME" not in host
    assert pod_of(job_of("two-servers-operator"))["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert "HCCL_IF_IP" not in pod
    assert pod["HCCL_SOCKET_IFNAME"] == "=eth0"
    assert host["HCCL_CONNECT_TIMEOUT"] == pod["HCCL_CONNECT_TIMEOUT"] == "1200"


def test_ports_of_jobs_on_one_host_differ_and_stay() -> None:
    first = env_of(job_of("two-servers-operator"))
    again = env_of(job_of("two-servers-operator", "owner=someone"))
    other = env_of(job_of("two-servers-operator", "name=another"))
    for port in ("NANOCHAT_MASTER_PORT", "HCCL_IF_BASE_PORT"):
        assert first[port] == again[port] != other[port]
    assert 20_000 <= int(first["NANOCHAT_MASTER_PORT"]) < 29_000
    assert 61_000 <= int(first["HCCL_IF_BASE_PORT"]) <= 65_520 - 32


def test_plain_volcano_reads_no_annotation_that_nobody_writes() -> None:
    job = job_of("plain-volcano")
    assert "ASCEND_VISIBLE_DEVICES" not in env_of(job)
    assert "ring-controller.atlas" not in job["metadata"]["labels"]
    assert pod_of(job)["containers"][0]["resources"]["limits"]["huawei.com/Ascend910"] == "2"
    assert {volume["name"] for volume in pod_of(job)["volumes"]} >= {"ascend-driver", "hccn-conf", "npu-smi"}


def test_mindcluster_passes_the_schedulers_choice_on() -> None:
    assert env_of(job_of("one-server"))["ASCEND_VISIBLE_DEVICES"] == {"fieldRef": {"fieldPath": "metadata.annotations['huawei.com/Ascend910']"}}


def test_hami_names_the_chip_and_its_runtime_class() -> None:
    pod = pod_of(job_of("hami"))
    assert pod["containers"][0]["resources"]["limits"]["huawei.com/Ascend910B4-1"] == "4"
    assert pod["runtimeClassName"] == "ascend"


def test_cce_has_its_plugin_label_and_table() -> None:
    job = job_of("cce")
    assert job["spec"]["plugins"]["configmap1980"] == ["--rank-table-version=v2"]
    assert job["metadata"]["labels"]["ring-controller.cce"] == "ascend-1980"
    assert "jobstart_hccl.json" in maps_of("cce")["configmap1980-cce-job"]["data"]


def test_cpu_job_has_nothing_of_ascend() -> None:
    bundle = render(plan_of("data-only"))
    for word in ("huawei.com", "ring-controller", "HCCL", "ASCEND", "accelerator-type", "fault-scheduling"):
        assert word not in bundle.files[JOB]
        assert word not in bundle.files[CONFIGMAPS].split('"entrypoint.sh"')[0]
    assert DOCKERFILE not in bundle.files


def test_sidecars_are_kept_out() -> None:
    metadata = job_of("one-server")["spec"]["tasks"][0]["template"]["metadata"]
    assert metadata["labels"]["sidecar.istio.io/inject"] == metadata["annotations"]["sidecar.istio.io/inject"] == "false"


def test_object_stays_small_however_many_nodes() -> None:
    small, large = (render(plan_of("one-server", f"resources.nodes={nodes}")).files[JOB] for nodes in (1, 1250))
    assert len(large) - len(small) < 100


def test_host_names_that_linux_would_refuse_are_refused_here() -> None:
    with pytest.raises(RenderError, match="VC_WORKER_HOSTS"):
        render(plan_of("one-server", "resources.nodes=6000", "name=" + "a" * 40))


def test_resolved_digest_goes_into_the_job() -> None:
    reference = "registry.example.com/train/nanochat-npu@sha256:" + "2" * 64
    job = yaml.safe_load(render(plan_of("one-server"), image=reference).files[JOB])
    assert pod_of(job)["containers"][0]["image"] == reference
    assert json.loads(job["metadata"]["annotations"][marks.ANNOTATION_PLAN])["image"] == reference


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("env.NANOCHAT_NODES='1'", "NANOCHAT_NODES"), ("env.RANK='1'", "RANK"), ("env.HCCL_IF_IP='1'", "HCCL_IF_IP"),
        ("cluster.platform=volcano", "operator|rank tables"), ("storage.data.path=/output/", "/output"), ("storage.output=null", "checkpoints would be lost"),
    ],
)
def test_what_cannot_work_is_refused_before_it_is_sent(override: str, message: str) -> None:
    with pytest.raises((SpecError, RenderError), match=message):
        render(plan_of("two-servers-operator", override))
