"""cluster.patch and the comparison of what was rendered with what was planned."""

import dataclasses

import pytest
import yaml
from golden_support import plan_of

from nanochat_npu.bundle import CONFIGMAPS, ENTRYPOINT, JOB, RUN_JSON
from nanochat_npu.errors import RenderError
from nanochat_npu.manifest import manifest_of
from nanochat_npu.patch import dump_patched, merge
from nanochat_npu.render import render
from nanochat_npu.verify import parse_documents, verify_configmaps, verify_job


def test_maps_merge_null_deletes_lists_merge_by_name() -> None:
    target = {"a": {"x": 1, "y": 2}, "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "args": ["launch"]}
    patch = {"a": {"y": None, "z": 3}, "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}], "args": ["other"]}
    changed: set[tuple[str, ...]] = set()
    assert merge(target, patch, changed=changed) == {
        "a": {"x": 1, "z": 3}, "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}], "args": ["other"],
    }
    assert {("a", "z"), ("env", "name=B", "value"), ("args",)} <= changed
    assert target["a"] == {"x": 1, "y": 2}, "what was there is not touched"


def test_map_over_a_scalar_is_refused_with_its_path() -> None:
    with pytest.raises(RenderError, match=r"spec\.queue"):
        merge({"spec": {"queue": "q"}}, {"spec": {"queue": {"a": 1}}})


def test_patched_values_are_marked_and_the_patch_stands_in_the_header() -> None:
    text = render(plan_of("plain-volcano")).files[JOB]
    marked = [line.strip() for line in text.splitlines() if line.endswith("# cluster.patch")]
    assert marked == ["privileged: true  # cluster.patch", "hostIPC: true  # cluster.patch"]
    assert "#     - name: worker" in text
    container = yaml.safe_load(text)["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    assert container["securityContext"] == {"privileged": True}
    assert container["env"], "what the patch does not name stays"


@pytest.mark.parametrize(
    "patch", ["{spec: {minAvailable: 1}}", "{metadata: {name: other}}", "{spec: {tasks: [{name: worker, replicas: 3}]}}", "{spec: {tasks: [{name: second}]}}",
              "{spec: {tasks: [{name: worker, template: {spec: {restartPolicy: Always}}}]}}"],
)
def test_patch_may_not_change_what_the_launcher_counts_on(patch: str) -> None:
    if "second" in patch:
        assert "second" in render(plan_of("two-servers-operator", f"cluster.patch={patch}")).files[JOB]
        return
    with pytest.raises(RenderError, match="must stay"):
        render(plan_of("two-servers-operator", f"cluster.patch={patch}"))


def test_dump_reads_back_equal() -> None:
    value = {"a": [], "b": {}, "c": [[1, 2], {"x": "on", "y": [{"name": "n", "0123": "a\nb\n"}]}], "true": "y", "d": 6e-7, "e": "x\n\ny\n"}
    assert yaml.safe_load(dump_patched(value, set())) == value


@pytest.mark.parametrize(
    ("old", "new"),
    [("minAvailable: 2\n  #", "minAvailable: 1\n  #"), ('"wang"', '"li"'), ("replicas: 2", 'replicas: "2"'), ('value: "1200"', "value: 1200"),
     ('restartPolicy: "Never"', 'restartPolicy: "Always"'), ('"huawei.com/Ascend910": "8"', '"huawei.com/Ascend910": "7"'),
     ('"zone": "yes"', '"zone": yes'), ("hostNetwork: true", "hostNetwork: false"), ("exitCode: 65", "exitCode: 66"), ('subPath: "wang"', 'subPath: "li"')],
)
def test_a_template_that_says_something_else_is_found_out(old: str, new: str) -> None:
    plan = plan_of("two-servers-operator")
    text = render(plan).files[JOB]
    assert old in text
    (job,) = parse_documents(text.replace(old, new, 1), JOB)
    with pytest.raises(RenderError, match="the plan says"):
        verify_job(job, manifest_of(plan, plan.spec.image.ref or ""), JOB)


def test_config_maps_must_hold_exactly_the_files() -> None:
    plan = plan_of("two-servers-operator")
    bundle, manifest = render(plan), manifest_of(plan, "image")
    documents = parse_documents(bundle.files[CONFIGMAPS], CONFIGMAPS)
    files = {name: bundle.files[name] for name in (RUN_JSON, ENTRYPOINT)}
    verify_configmaps(documents, manifest, files, "", CONFIGMAPS)
    with pytest.raises(RenderError):
        verify_configmaps(documents, manifest, {**files, RUN_JSON: bundle.files[RUN_JSON] + " "}, "", CONFIGMAPS)
    with pytest.raises(RenderError):
        verify_configmaps(documents, dataclasses.replace(manifest, rank_table_map=None), files, "", CONFIGMAPS)


@pytest.mark.parametrize("text", ["a: [", "- 1", "just text", "a: 1\n---\n- b"])
def test_what_is_not_an_object_is_refused(text: str) -> None:
    with pytest.raises(RenderError):
        parse_documents(text, "x.yaml")
