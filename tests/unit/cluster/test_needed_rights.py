"""doctor asks for exactly the rights that the tenant role gives, and for what advice reads of the whole cluster."""

from pathlib import Path

import yaml

from nanochat_npu.doctor.cluster import NEEDED

RBAC = Path(__file__).parents[3] / "k8s" / "rbac.yaml"


def test_doctor_and_the_tenant_role_name_the_same_rights() -> None:
    role = next(d for d in yaml.safe_load_all(RBAC.read_text(encoding="utf-8")) if d["kind"] == "Role")
    given = {(verb, group, resource) for rule in role["rules"] for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]}
    asked = {(verb, group, resource) for verb, group, resource, _use in NEEDED}
    assert given - asked == set()
    assert asked - given == {("list", "scheduling.volcano.sh", "queues"), ("list", "", "nodes")}
    assert len(asked) == len(NEEDED)
