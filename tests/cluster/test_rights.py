"""The accounts of k8s/rbac.yaml: each command with exactly the rights that it hands out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cases import SUCCEED, Cluster
from plane import Plane, PlaneError

from nanochat_npu.backends import JobState
from nanochat_npu.backends.volcano import VolcanoBackend
from nanochat_npu.cluster.capacity import read
from nanochat_npu.errors import ClusterForbidden
from nanochat_npu.resources import CONFIGMAPS, JOBS, NODES, PODS, SECRETS

pytestmark = pytest.mark.cluster

K8S = Path(__file__).parents[2] / "k8s"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def objects(name: str) -> list[dict[str, Any]]:
    """Objects of a file below k8s/."""
    return [document for document in yaml.safe_load_all((K8S / name).read_text()) if document]


def apply(plane: Plane, obj: dict[str, Any], namespace: str) -> None:
    """Create an object of rbac.yaml, with this namespace in place of ``train``."""
    kind = {"Role": "roles", "RoleBinding": "rolebindings", "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"}[obj["kind"]]
    inside = f"/namespaces/{namespace}" if "namespace" in obj["metadata"] else ""
    body = {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key != "namespace"}}
    try:
        plane.request("POST", f"{RBAC}{inside}/{kind}", body)
    except PlaneError as error:
        if "AlreadyExists" not in str(error):
            raise


@pytest.fixture
def tenant(cluster: Cluster) -> Iterator[VolcanoBackend]:
    """A person with the tenant role in the test's namespace, and nothing else."""
    for obj in objects("rbac.yaml"):
        if not obj["kind"].startswith("Cluster"):
            apply(cluster.plane, obj, cluster.namespace)
    yield Cluster.backend_of(cluster.plane, cluster.namespace, "tenant")


def test_a_tenant_can_do_everything_with_jobs(cluster: Cluster, tenant: VolcanoBackend) -> None:
    sent = tenant.submit(cluster.submission())
    assert "for lack of rights" in " ".join(sent.notes)
    source = tenant.events("train")
    try:
        cluster.until_phase("Running")
        assert tenant.get("train").state is JobState.RUNNING
        assert source.poll() == []
    finally:
        source.close()
    assert [view.name for view in tenant.jobs()] == ["train"]
    tenant.control.suspend("train")
    cluster.until_phase("Aborted")
    tenant.control.resume("train")
    cluster.until_phase("Running")
    assert tenant.control.stuck("train") == []
    tenant.cancel("train", now=True)
    cluster.until_phase("Terminated")
    tenant.submit(cluster.submission(SUCCEED, rerun=True))
    cluster.until("success", lambda view: view.state is JobState.SUCCEEDED)
    tenant.delete("train")


@pytest.mark.parametrize("ask", [
    lambda kube, other: kube.list(JOBS, other), lambda kube, other: kube.list(PODS, other), lambda kube, other: kube.list(CONFIGMAPS, other),
    lambda kube, other: kube.list(NODES), lambda kube, other: kube.list(JOBS),
])
def test_a_tenant_sees_nothing_of_other_namespaces(tenant: VolcanoBackend, ask: Any) -> None:
    with pytest.raises(ClusterForbidden, match='user "tenant" may not list'):
        ask(tenant.kube, "default")


def test_a_tenant_cannot_read_secrets_even_at_home(cluster: Cluster, tenant: VolcanoBackend) -> None:
    with pytest.raises(ClusterForbidden):
        tenant.kube.list(SECRETS, cluster.namespace)


def test_a_tenant_sees_of_the_capacity_what_is_his(cluster: Cluster, tenant: VolcanoBackend) -> None:
    tenant.submit(cluster.submission())
    cluster.until_phase("Running")
    found = read(tenant.kube, cluster.namespace)
    assert found.free is None
    assert [(holder.job, holder.owner, holder.npus) for holder in found.holders] == [("train", "li", 16)]
    assert len(found.unread) == 3


def test_the_reader_sees_nodes_and_queues_and_can_change_nothing(cluster: Cluster) -> None:
    for obj in objects("rbac.yaml"):
        if obj["kind"].startswith("Cluster"):
            apply(cluster.plane, obj, cluster.namespace)
    cluster.submit()
    cluster.until_phase("Running")
    reader = Cluster.backend_of(cluster.plane, cluster.namespace, "reader")
    found = read(reader.kube, cluster.namespace)
    assert found.unread == ()
    assert (found.total, found.free, found.whole_nodes) == (32, 16, 2)
    assert ("default", "Open") in [(queue.name, queue.state) for queue in found.queues]
    assert [(holder.namespace, holder.job, holder.npus, holder.nodes) for holder in found.holders] == [(cluster.namespace, "train", 16, 2)]
    with pytest.raises(ClusterForbidden, match='user "reader" may not delete'):
        reader.kube.delete(JOBS, "train", cluster.namespace)
    with pytest.raises(ClusterForbidden, match='user "reader" may not create'):
        reader.submit(cluster.submission(name="other"))


@pytest.mark.parametrize("name", ["namespace.yaml", "queue.yaml", "rbac.yaml", "storage.yaml"])
def test_what_an_administrator_applies_is_accepted_strictly(plane: Plane, name: str) -> None:
    places = {
        "Namespace": "/api/v1/namespaces", "Queue": "/apis/scheduling.volcano.sh/v1beta1/queues", "Role": f"{RBAC}/namespaces/default/roles",
        "RoleBinding": f"{RBAC}/namespaces/default/rolebindings", "ClusterRole": f"{RBAC}/clusterroles", "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
        "PersistentVolumeClaim": "/api/v1/namespaces/default/persistentvolumeclaims",
    }
    for obj in objects(name):
        body = {**obj, "metadata": {**{k: v for k, v in obj["metadata"].items() if k != "namespace"}, "name": obj["metadata"]["name"] + "-check"}}
        plane.request("POST", places[obj["kind"]] + "?dryRun=All&fieldValidation=Strict", body)
