"""Every lint rule has a planted fault; a good job has no finding; fixes mend and change nothing else."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from nanochat_npu.errors import SpecSyntaxError
from nanochat_npu.lint import RULES, apply_fixes, lint_text, to_sarif
from nanochat_npu.main import main

GOOD = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: rings-config-llm
  labels:
    ring-controller.atlas: ascend-910b
data:
  hccl.json: '{"status":"initializing"}'
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata:
  name: llm
  labels:
    ring-controller.atlas: ascend-910b
spec:
  schedulerName: volcano
  queue: research
  minAvailable: 2
  maxRetry: 3
  plugins:
    env: []
    svc: ["--publish-not-ready-addresses"]
  policies:
    - exitCode: 78
      action: TerminateJob
    - event: PodFailed
      action: RestartJob
    - event: PodEvicted
      action: RestartJob
  tasks:
    - name: worker
      replicas: 2
      minAvailable: 2
      template:
        metadata:
          labels:
            ring-controller.atlas: ascend-910b
        spec:
          restartPolicy: Never
          terminationGracePeriodSeconds: 300
          nodeSelector:
            accelerator-type: module-910b-8
          containers:
            - name: trainer   # keep me
              image: registry.example.com/train:1
              command: ["/opt/run/entrypoint.sh"]
              env:
                - name: HCCL_CONNECT_TIMEOUT
                  value: "1200"
                - name: LEARNING_RATE
                  value: "6e-4"
              resources:
                requests:
                  huawei.com/Ascend910: 8
                  memory: 64Gi
                limits:
                  huawei.com/Ascend910: 8
                  memory: 64Gi
              volumeMounts:
                - name: shm
                  mountPath: /dev/shm
                - name: table
                  mountPath: /user/serverid/devindex/config
          volumes:
            - name: shm
              emptyDir:
                medium: Memory
                sizeLimit: 16Gi
            - name: table
              configMap:
                name: rings-config-llm
"""

# rule: (text of the good file, what to write instead)
FAULTS: dict[str, list[tuple[str, str]]] = {
    "NV001": [("  name: llm\n", "  name: 7b-llm\n"), ("  name: llm\n", "  name: qwen2.5\n"), ("  name: llm\n", f"  name: {'a' * 60}\n")],
    "NV002": [("restartPolicy: Never", "restartPolicy: OnFailure"), ("          restartPolicy: Never\n", "")],
    "NV003": [("  minAvailable: 2\n  maxRetry", "  minAvailable: 1\n  maxRetry"), ("  minAvailable: 2\n  maxRetry", "  maxRetry"), ("      minAvailable: 2", "      minAvailable: 1")],
    "NV004": [("    - event: PodFailed\n      action: RestartJob\n", "")],
    "NV005": [("    - event: PodEvicted\n      action: RestartJob\n", "")],
    "NV006": [("    - exitCode: 78\n      action: TerminateJob\n", "    - event: PodFailed\n      action: RestartJob\n    - exitCode: 78\n      action: TerminateJob\n"), ("action: TerminateJob", "action: KillJob"), ("exitCode: 78", "exitCode: 0")],
    "NV007": [("    - event: PodFailed\n      action: RestartJob", "    - event: PodFailed\n      action: RestartPod")],
    "NV008": [("    - event: PodFailed", "    - event: '*'")],
    "NV009": [("maxRetry: 3", "maxRetry: 0"), ("  maxRetry: 3\n", "")],
    "NV010": [('svc: ["--publish-not-ready-addresses"]', "svc: []")],
    "NV011": [("    env: []", "    hccl: []"), ('["--publish-not-ready-addresses"]', '["--publish-not-ready"]')],
    "NV012": [("  queue: research\n", "")],
    "NV013": [("schedulerName: volcano", "schedulerName: default-scheduler"), ("  schedulerName: volcano\n", "")],
    "NV014": [("                - name: LEARNING_RATE", "                - name: HCCL_CONNECT_TIMEOUT")],
    "NV015": [("restartPolicy: Never", "restartpolicy: Never"), ("  maxRetry: 3", "  maxRetries: 3"), ("image:", "Image:")],
    "NV016": [("      replicas: 2\n", ""), ("replicas: 2", "replicas: 0")],
    "NV017": [("  tasks:\n", "  tasks:\n    - name: worker\n      replicas: 1\n      template: {spec: {restartPolicy: Never, containers: []}}\n")],
    "NV018": [("                - name: LEARNING_RATE\n", "                - name: RANK\n")],
    "NV019": [("  maxRetry: 3", "  maxRetry: 3\n  ttlSecondsAfterFinished: 10")],
    "NV020": [("limits:\n                  huawei.com/Ascend910: 8\n                  memory: 64Gi", "limits:\n                  huawei.com/Ascend910: 8\n                  memory: 64GB"), ("memory: 64Gi", "memory: 64m")],
    "NV021": [('value: "6e-4"', "value: 6e-4"), ('value: "6e-4"', "value: true"), ('value: "6e-4"', "value: 3")],
    "NV022": [("terminationGracePeriodSeconds: 300", "terminationGracePeriodSeconds: 30"), ("          terminationGracePeriodSeconds: 300\n", "")],
    "NV023": [("name: LEARNING_RATE", "name: SWANLAB_API_KEY")],
    "NV024": [('command: ["/opt/run/entrypoint.sh"]', 'command: ["bash", "-c", "bash run.sh 2>&1 | tee log"]')],
    "NV025": [("            - name: trainer", "            - name: sidecar\n              image: x\n            - name: trainer")],
    "NV026": [("      replicas: 2", "      dependsOn: {name: [init]}\n      replicas: 2")],
    "NA001": [("requests:\n                  huawei.com/Ascend910: 8", "requests:\n                  huawei.com/Ascend910: 4"), ("limits:\n                  huawei.com/Ascend910: 8\n", "limits:\n")],
    "NA002": [("huawei.com/Ascend910: 8", "huawei.com/Ascend910: 9")],
    "NA003": [("ring-controller.atlas: ascend-910b", "ring-controller.atlas: ascend-910")],
    "NA004": [("    ring-controller.atlas: ascend-910b\nspec", "    other: x\nspec"), ("          labels:\n            ring-controller.atlas: ascend-910b\n", "          labels: {}\n"), ("  labels:\n    ring-controller.atlas: ascend-910b\ndata", "  labels: {}\ndata")],
    "NA005": [("          nodeSelector:\n            accelerator-type: module-910b-8\n", "")],
    "NA006": [("          restartPolicy: Never\n", "          restartPolicy: Never\n          hostNetwork: true\n")],
    "NA007": [("name: LEARNING_RATE", "name: HCCL_IF_IP")],
    "NA008": [("name: LEARNING_RATE", "name: ASCEND_RT_VISIBLE_DEVICES")],
    "NA009": [("                  mountPath: /user/serverid/devindex/config\n", "                  mountPath: /user/serverid/devindex/config/hccl.json\n                  subPath: hccl.json\n")],
    "NA010": [("                - name: LEARNING_RATE\n                  value: \"6e-4\"", "                - name: RANK_TABLE_FILE\n                  value: /user/serverid/devindex/config/hccl.json")],
    "NA011": [('value: "1200"', 'value: "60"'), ('value: "1200"', 'value: "soon"')],
    "NA012": [('value: "1200"', 'value: "120"'), ("HCCL_CONNECT_TIMEOUT", "OTHER")],
    "NA013": [("                sizeLimit: 16Gi\n", ""), ("mountPath: /dev/shm", "mountPath: /shm")],
    "NA014": [('command: ["/opt/run/entrypoint.sh"]', 'command: ["torchrun", "train.py"]')],
    "NA016": [("          restartPolicy: Never\n", "          restartPolicy: Never\n          hostNetwork: true\n")],
    "NA017": [("          restartPolicy: Never\n", "          restartPolicy: Never\n          securityContext: {runAsUser: 1001}\n")],
    "NA018": [("huawei.com/Ascend910: 8", "huawei.com/Ascend910: 4")],
}
CASES = [(rule, old, new) for rule, changes in FAULTS.items() for old, new in changes]


def rules_of(text: str) -> set[str]:
    return {finding.rule for finding in lint_text(text, "x.yaml")[0]}


def with_second_task(text: str) -> str:
    other = text[text.index("    - name: worker") :].replace("name: worker", "name: extra", 1).replace("module-910b-8", "module-910b-16")
    return text + other


def test_a_good_job_has_no_finding() -> None:
    findings, jobs = lint_text(GOOD, "x.yaml")
    assert (findings, jobs) == ([], 1)


@pytest.mark.parametrize(("rule", "old", "new"), CASES, ids=[f"{rule}-{i}" for i, (rule, _o, _n) in enumerate(CASES)])
def test_each_planted_fault_is_found_at_a_line_that_exists(rule: str, old: str, new: str) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new)
    if rule == "NA016":
        text = text.replace("name: LEARNING_RATE\n                  value: \"6e-4\"", "name: MASTER_PORT\n                  value: \"29500\"")
    findings = [f for f in lint_text(text, "x.yaml")[0] if f.rule == rule]
    assert findings
    assert all(1 <= f.line <= text.count("\n") + 1 for f in findings)


def test_different_node_selectors_of_two_tasks() -> None:
    assert "NA015" in rules_of(with_second_task(GOOD))


def test_every_rule_has_a_planted_fault() -> None:
    assert set(RULES) == {*FAULTS, "NA015"}


def test_fixes_mend_what_they_claim_and_keep_everything_else() -> None:
    text = GOOD
    for old, new in (
        ("restartPolicy: Never", "restartPolicy: Always"), ("  minAvailable: 2\n  maxRetry: 3\n", "  maxRetry: 0\n"), ("ascend-910b", "ascend-910"),
        ('svc: ["--publish-not-ready-addresses"]', "svc: []"), ('value: "6e-4"', "value: 6e-4"), ("          terminationGracePeriodSeconds: 300\n", ""),
        ("                sizeLimit: 16Gi\n", ""), ("  schedulerName: volcano\n", ""),
    ):
        text = text.replace(old, new)
    mended, done = apply_fixes(text, "x.yaml")
    assert {f.rule for f in done} >= {"NV002", "NV003", "NV009", "NV010", "NV013", "NV021", "NV022", "NA003", "NA013"}
    assert not any(f.fix for f in lint_text(mended, "x.yaml")[0])
    assert "# keep me" in mended
    assert list(yaml.safe_load_all(mended))[1]["spec"]["tasks"][0]["template"]["spec"]["restartPolicy"] == "Never"
    kept = [line for line in GOOD.splitlines() if line in text.splitlines()]
    assert all(line in mended.splitlines() for line in kept if "ascend-910" not in line)


@pytest.mark.parametrize("written", ["on", "y", "6e-4", "1E5", "0o17", "12345e7", "1_000", "3.0", "2026-01-01"])
def test_a_fix_puts_quotes_around_what_was_written(written: str) -> None:
    text = GOOD.replace('value: "6e-4"', f"value: {written}")
    assert "NV021" in rules_of(text)
    assert f'value: "{written}"' in apply_fixes(text, "x.yaml")[0]


@pytest.mark.parametrize(
    "text",
    ["a: [", "\t- x", "a: &a [1]\nb: *c", "a: 1\na: 2\n", "x: \x00", "{" * 3000, "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8))],
    ids=["torn", "tab", "alias", "twice", "nul", "deep", "bomb"],
)
def test_broken_yaml_is_one_clear_error(text: str) -> None:
    with pytest.raises(SpecSyntaxError):
        lint_text(text, "x.yaml")


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "3\n", "kind: Job\n", "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\n", "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec: 3\n",
                                  "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec: {tasks: [1, {template: 4}], policies: {a: 1}, plugins: [x]}\n"])
def test_other_documents_and_half_jobs_never_crash(text: str) -> None:
    lint_text(text, "x.yaml")


def test_items_of_a_list_are_looked_at() -> None:
    job = GOOD.split("---\n")[1].replace("restartPolicy: Never", "restartPolicy: Always")
    wrapped = "apiVersion: v1\nkind: List\nitems:\n- " + job.replace("\n", "\n  ")
    findings = [f for f in lint_text(wrapped, "x.yaml")[0] if f.rule == "NV002"]
    assert [wrapped.splitlines()[f.line - 1].strip() for f in findings] == ["restartPolicy: Always"]


def test_our_own_output_passes() -> None:
    expected = Path(__file__).parents[2] / "golden" / "expected"
    files = sorted(expected.glob("*/volcano-job.yaml"))
    assert len(files) >= 5
    for file in files:
        text = "\n---\n".join(f.read_text() for f in (file, file.with_name("configmaps.yaml")))
        assert rules_of(text) == set(), file.parent.name


def test_the_command_gives_json_sarif_and_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(GOOD.replace("restartPolicy: Never", "restartPolicy: Always"))
    for form in ("json", "sarif", "text"):
        with pytest.raises(SystemExit) as left:
            main(["lint", str(file), "-o", form])
        assert left.value.code == 3
        out = capsys.readouterr().out
        if form == "sarif":
            log = json.loads(out)
            assert (log["version"], log["runs"][0]["results"][0]["ruleId"]) == ("2.1.0", "NV002")
        elif form == "json":
            assert json.loads(out)["findings"][0]["line"] == 40
        else:
            assert re.search(r"job\.yaml:40:\d+: error NV002", out)
    with pytest.raises(SystemExit) as left:
        main(["lint", "--fix", str(file)])
    assert left.value.code == 0
    assert file.read_text() == GOOD.replace("restartPolicy: Never", 'restartPolicy: "Never"')


def lint_json(capsys: pytest.CaptureFixture[str], *args: Path) -> tuple[int, dict[str, Any], str]:
    with pytest.raises(SystemExit) as left:
        main(["lint", *map(str, args), "-o", "json"])
    captured = capsys.readouterr()
    return int(left.value.code or 0), json.loads(captured.out), captured.err


def test_a_folder_and_its_files_one_by_one_give_the_same_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = GOOD.replace("restartPolicy: Never", "restartPolicy: Always")
    for name, text in {"a.yaml": bad, "b.yml": bad, "Dockerfile": "FROM scratch\n", "build.sh": "a: [\n", "plan.json": "{}", "deeper": None}.items():
        (tmp_path / name).write_text(text) if text is not None else (tmp_path / name).mkdir()
    code, folder, err = lint_json(capsys, tmp_path)
    assert (code, folder["jobs"], [Path(f["file"]).name for f in folder["findings"]]) == (3, 2, ["a.yaml", "b.yml"])
    assert "left out" not in err
    code, files, err = lint_json(capsys, *sorted(tmp_path.iterdir()))
    assert (code, files) == (3, folder)
    assert [name for name in ("Dockerfile", "build.sh", "plan.json") if f"{tmp_path / name} is left out" in err] == ["Dockerfile", "build.sh", "plan.json"]


def test_a_file_that_was_named_alone_is_read_whatever_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.txt").write_text(GOOD)
    code, found, _err = lint_json(capsys, tmp_path / "job.txt")
    assert (code, found["jobs"]) == (0, 1)


def test_a_folder_without_yaml_is_an_error_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["lint", str(tmp_path)])
    assert left.value.code == 2
    assert "no YAML file" in capsys.readouterr().err


def test_sarif_names_only_rules_that_exist() -> None:
    findings, _jobs = lint_text(GOOD.replace("restartPolicy: Never", "restartPolicy: Always"), "x.yaml")
    log = to_sarif({"x.yaml": findings})
    rules = [rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in log["runs"][0]["results"])
