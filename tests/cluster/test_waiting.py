"""Jobs that cannot run as they stand: warned before, explained after (P6 to P8, P11 to P13)."""

import pytest
from cases import SUCCEED, Cluster
from plane import Plane

from nanochat_npu.backends import JobState
from nanochat_npu.cluster.advice import advise
from nanochat_npu.cluster.read import read_objects
from nanochat_npu.doctor import Level, check_cluster
from nanochat_npu.errors import ClusterForbidden, ClusterRejected, SpecConflictError
from nanochat_npu.volcano_rules import name_budget

pytestmark = pytest.mark.cluster


def test_five_nodes_of_four_are_warned_about_and_the_shortage_is_named(cluster: Cluster) -> None:
    sent = cluster.submit(resources={"nodes": 5})
    assert any("40 NPUs on 5 nodes" in note and "8 NPUs short" in note for note in sent.notes), sent.notes
    view = cluster.until("reason", lambda view: "overused" in view.reason)
    assert view.state is JobState.PENDING
    assert "gang unschedulable" not in view.reason
    assert cluster.pods() == []


def test_a_wrong_accelerator_type_is_named_with_what_nodes_have(cluster: Cluster) -> None:
    sent = cluster.submit(cluster={"node_selector": {"accelerator-type": "card-910b-2"}})
    assert any("accelerator-type=card-910b-2" in note and "module-910b-8 (4)" in note for note in sent.notes), sent.notes
    view = cluster.until("reason", lambda view: "affinity/selector" in view.reason)
    assert view.reason.startswith("train-worker-0: 0/4 nodes are unavailable")


def test_a_queue_that_is_too_small_is_warned_about(cluster: Cluster) -> None:
    queue = f"small-{cluster.namespace}"[:60]
    path = "/apis/scheduling.volcano.sh/v1beta1/queues"
    spec = {"weight": 1, "capability": {"huawei.com/Ascend910": "16", "cpu": "1000", "memory": "1000Gi"}}
    cluster.plane.request("POST", path, {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": queue}, "spec": spec})
    sent = cluster.submit(resources={"nodes": 4}, cluster={"queue": queue})
    assert any("never has more than 16" in note for note in sent.notes), sent.notes
    cluster.until("reason", lambda view: "queue resource quota insufficient" in view.reason)


def test_a_missing_claim_is_warned_about_and_found_behind_the_gang_text(cluster: Cluster) -> None:
    sent = cluster.submit(storage={"output": {"host_path": None, "claim": "nope"}})
    assert any("the claim nope does not exist" in note for note in sent.notes), sent.notes
    cluster.until("reason", lambda view: 'persistentvolumeclaim "nope" not found' in view.reason)


def test_a_quota_that_denies_a_pod_shows_the_denial(cluster: Cluster) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"requests.huawei.com/Ascend910": "8"}}}
    cluster.plane.request("POST", f"/api/v1/namespaces/{cluster.namespace}/resourcequotas", quota)
    cluster.plane.wait("quota", lambda: cluster.get("resourcequotas/q").get("status", {}).get("hard"))
    cluster.submit()
    cluster.until("denial", lambda view: any(
        "exceeded quota: q" in event.get("message", "") for event in read_objects(cluster.backend.kube, cluster.namespace, "train").events
    ))


def test_a_name_that_fits_two_workers_but_not_a_thousand_is_refused_before_the_server_sees_it(cluster: Cluster) -> None:
    name = "a" * (name_budget(1000) + 1)
    with pytest.raises(SpecConflictError, match="would have 64 characters"):
        cluster.submit(name=name, resources={"nodes": 1000})
    assert cluster.backend.kube.requests == {}


def test_the_servers_refusal_comes_back_as_a_field_of_the_spec(cluster: Cluster) -> None:
    with pytest.raises(ClusterRejected) as caught:
        cluster.submit(cluster={"queue": "nope"})
    assert caught.value.where == "cluster.queue"
    assert 'there is no queue "nope"' in str(caught.value.hint)
    assert caught.value.details["errors"][0]["rule"] == "V23"
    assert cluster.namespace_has_no_jobs()


def test_an_unknown_field_of_a_patch_is_refused_and_nothing_is_made(cluster: Cluster) -> None:
    with pytest.raises(ClusterRejected, match="restartpolicy"):
        cluster.submit(cluster={"patch": {"spec": {"tasks": [{"name": "worker", "template": {"spec": {"restartpolicy": "Never"}}}]}}})
    assert cluster.namespace_has_no_jobs()
    assert [m["metadata"]["name"] for m in cluster.get("configmaps")["items"]] == ["kube-root-ca.crt"]


def limit(cluster: Cluster, **hard: str) -> None:
    """A quota of the namespace, once the server counts by it."""
    spec = {"hard": {key.replace("_", "."): value for key, value in hard.items()}}
    spec["hard"] = {key.replace("npus", "requests.huawei.com/Ascend910"): value for key, value in spec["hard"].items()}
    cluster.plane.request("POST", f"/api/v1/namespaces/{cluster.namespace}/resourcequotas", {"metadata": {"name": "q"}, "spec": spec})
    cluster.plane.wait("quota", lambda: cluster.get("resourcequotas/q").get("status", {}).get("hard"))


def test_a_quota_that_never_holds_the_gang_is_warned_about_with_numbers_and_doctor_says_the_same(cluster: Cluster) -> None:
    limit(cluster, npus="8", limits_memory="256Gi")
    submission = cluster.submission()
    doctor = {check.id: check for check in check_cluster(cluster.backend.kube, cluster.namespace, submission.plan.spec)}
    sent = cluster.backend.submit(submission)
    note = next(note for note in sent.notes if "quota q" in note)
    assert "allows 8 requests.huawei.com/Ascend910, the gang of 2 pods needs 16" in note
    assert "resources.nodes=1" in note
    assert doctor["quota"].level is Level.FAILED
    assert doctor["quota"].finding in note


def test_a_quota_that_others_use_is_warned_about(cluster: Cluster) -> None:
    limit(cluster, npus="24")
    cluster.submit(name="first")
    cluster.until("running", lambda view: view.state is JobState.RUNNING, "first")
    cluster.plane.wait("counted", lambda: cluster.get("resourcequotas/q")["status"]["used"].get("requests.huawei.com/Ascend910") == "16")
    sent = cluster.submit(name="second")
    assert any("16 of 24 requests.huawei.com/Ascend910 are used" in note and "need 16 more" in note for note in sent.notes), sent.notes


def test_without_the_right_to_read_queues_and_nodes_advice_is_skipped_with_a_note(plane: Plane, cluster: Cluster) -> None:
    rules = [
        {"apiGroups": ["batch.volcano.sh"], "resources": ["jobs"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["configmaps", "pods"], "verbs": ["*"]},
    ]
    base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}"
    plane.request("POST", f"{base}/roles", {"metadata": {"name": "few"}, "rules": rules})
    plane.request("POST", f"{base}/rolebindings", {
        "metadata": {"name": "few"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "few"},
        "subjects": [{"kind": "User", "name": "weak", "apiGroup": "rbac.authorization.k8s.io"}],
    })
    weak = Cluster.backend_of(plane, cluster.namespace, "weak")
    sent = weak.submit(cluster.submission(SUCCEED))
    assert [note for note in sent.notes if "for lack of rights" in note] == ["not looked at, for lack of rights: the queue, the nodes, quotas, the storage claims"]
    cluster.until("end", lambda view: view.state is JobState.SUCCEEDED)


def test_a_user_without_any_rights_gets_verb_resource_namespace_and_user(plane: Plane, cluster: Cluster) -> None:
    weak = Cluster.backend_of(plane, cluster.namespace, "weak")
    with pytest.raises(ClusterForbidden) as caught:
        weak.submit(cluster.submission())
    assert caught.value.message == f'user "weak" may not create jobs.batch.volcano.sh in namespace "{cluster.namespace}"'


def test_advice_is_silent_where_everything_fits(cluster: Cluster) -> None:
    cluster.submit()
    assert advise(cluster.backend.kube, cluster.namespace, cluster.job()) == []
