"""explain and doctor on a real API server: as an administrator, and as somebody with hardly any rights."""

import json

import pytest
from cases import SPEC, SUCCEED, Cluster, fails, merged
from plane import Plane

from nanochat_npu.cluster.gather import gather
from nanochat_npu.doctor import Check, Level, check_cluster
from nanochat_npu.explain import Explanation, explain
from nanochat_npu.load import load_text

pytestmark = pytest.mark.cluster


def why(cluster: Cluster, name: str = "train") -> Explanation:
    return explain(gather(cluster.backend.kube, cluster.namespace, name).facts)


def test_a_gang_that_is_too_large_is_explained_with_numbers(cluster: Cluster) -> None:
    cluster.submit(resources={"nodes": 5})
    answer = why(cluster)
    assert answer.rule == "W11"
    assert "40 NPUs on 5 nodes" in answer.cause
    assert "resources.nodes=4" in answer.action


def test_a_wrong_label_is_compared_with_the_nodes(cluster: Cluster) -> None:
    cluster.submit(cluster={"node_selector": {"accelerator-type": "card-910b-2"}})
    answer = why(cluster)
    assert answer.rule == "W10"
    assert answer.values["have"] == {"module-910b-8": 4}


def test_a_missing_claim_is_found_behind_the_gang_text(cluster: Cluster) -> None:
    cluster.submit(storage={"output": {"host_path": None, "claim": "nope"}})
    cluster.until("reason", lambda view: "not found" in view.reason)
    answer = why(cluster)
    assert answer.rule == "W07"
    assert "claim nope" in answer.cause


def test_a_quota_is_named_with_what_the_gang_needs(cluster: Cluster) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"requests.huawei.com/Ascend910": "8"}}}
    cluster.plane.request("POST", f"/api/v1/namespaces/{cluster.namespace}/resourcequotas", quota)
    cluster.plane.wait("quota", lambda: cluster.get("resourcequotas/q").get("status", {}).get("hard"))
    cluster.submit()
    cluster.plane.wait("denial", lambda: why(cluster).rule == "W05")
    answer = why(cluster)
    assert "quota q" in answer.cause
    assert "2 x 8 = 16" in answer.cause


def test_a_failure_names_the_code_and_its_meaning(cluster: Cluster) -> None:
    cluster.submit(fails(78, worker=1))
    cluster.until("end", lambda view: view.exit_code == 78 and view.phase == "Terminated")
    answer = why(cluster)
    assert answer.rule == "E78"
    assert "configuration" in answer.cause


def test_a_job_that_runs_or_has_finished_says_so(cluster: Cluster) -> None:
    cluster.submit(SUCCEED)
    cluster.until_phase("Completed")
    assert why(cluster).rule == "E00"


def test_without_rights_explain_still_answers_and_names_what_it_did_not_see(cluster: Cluster, plane: Plane) -> None:
    role = {"metadata": {"name": "look"}, "rules": [
        {"apiGroups": ["batch.volcano.sh"], "resources": ["jobs"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    ]}
    binding = {"metadata": {"name": "look"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "look"},
               "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "weak"}]}
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}"
    plane.request("POST", f"{rbac}/roles", role)
    plane.request("POST", f"{rbac}/rolebindings", binding)
    cluster.submit(resources={"nodes": 5})
    weak = Cluster.backend_of(plane, cluster.namespace, "weak")
    plane.wait("role", lambda: gather(weak.kube, cluster.namespace, "train"))
    found = gather(weak.kube, cluster.namespace, "train")
    assert explain(found.facts).cause
    assert {"nodes", "the queue"} <= set(found.unread)


def by_id(checks: list[Check]) -> dict[str, Check]:
    return {check.id: check for check in checks}


def test_doctor_finds_everything_in_order_for_an_administrator(cluster: Cluster) -> None:
    checks = by_id(check_cluster(cluster.backend.kube, cluster.namespace))
    for name in ("context", "api", "volcano", "namespace", "rights", "queue", "nodes"):
        assert checks[name].level is Level.OK, checks[name]
    assert "huawei.com/Ascend910: 4" in checks["nodes"].finding


def test_doctor_names_the_missing_queue_claim_and_nodes_of_a_spec(cluster: Cluster) -> None:
    change = {
        "cluster": {"namespace": cluster.namespace, "queue": "nowhere"}, "resources": {"nodes": 9},
        "storage": {"output": {"host_path": None, "claim": "nope", "path": "/output"}},
    }
    spec = load_text(json.dumps(merged(SPEC, change)).encode(), "case.yaml", environ={}).spec
    checks = by_id(check_cluster(cluster.backend.kube, cluster.namespace, spec))
    assert checks["queue"].level is Level.FAILED
    assert "nowhere does not exist" in checks["queue"].finding
    assert checks["claim.output"].level is Level.FAILED
    assert checks["fit"].level is Level.FAILED
    assert "9 are needed" in checks["fit"].finding


@pytest.mark.parametrize(("kind", "level", "words"), [
    (None, Level.FAILED, "login does not exist"), ("Opaque", Level.FAILED, "login is of type Opaque"), ("kubernetes.io/dockerconfigjson", Level.OK, "login"),
])
def test_doctor_looks_at_the_secret_that_images_are_pulled_with(cluster: Cluster, kind: str | None, level: Level, words: str) -> None:
    if kind:
        data = {".dockerconfigjson": "e30="} if "docker" in kind else {}
        cluster.plane.request("POST", f"/api/v1/namespaces/{cluster.namespace}/secrets", {"metadata": {"name": "login"}, "type": kind, "data": data})
    check = by_id(check_cluster(cluster.backend.kube, cluster.namespace, cluster.submission(image={"pull_secrets": ["login"]}).plan.spec))["pull_secret.login"]
    assert (check.level, check.finding.startswith(words)) == (level, True), check


def test_doctor_names_each_right_that_is_missing_and_for_which_command(cluster: Cluster, plane: Plane) -> None:
    weak = Cluster.backend_of(plane, cluster.namespace, "weak")
    checks = check_cluster(weak.kube, cluster.namespace)
    denied = [check for check in checks if check.id.startswith("rights.") and check.level is Level.FAILED]
    assert any("may not create jobs.batch.volcano.sh" in check.finding and "submit" in check.finding for check in denied)
    assert by_id(checks)["nodes"].level is Level.SKIPPED
    assert all(check.remedy for check in denied)


def test_doctor_stops_early_where_there_is_no_server(cluster: Cluster) -> None:
    kube = Cluster.backend_of(cluster.plane, cluster.namespace).kube
    kube.patience_s = 0.0
    kube.raw = lambda path: cluster.backend.kube.raw("/nothing-here")  # type: ignore[method-assign]
    checks = check_cluster(kube, cluster.namespace)
    assert checks[-1].id == "api"
    assert checks[-1].level is Level.FAILED
