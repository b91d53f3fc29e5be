"""``list`` and ``status`` over clusters that are away, forbidden or full of odd objects."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedServer, listing, ok, status

from nanochat_npu import marks
from nanochat_npu.jobs import Receipt, Store, write_json
from nanochat_npu.main import main

LABELS = {marks.LABEL_MANAGED_BY: marks.MANAGED_BY}


def job(name: str, phase: Any = "Running", **metadata: Any) -> dict[str, Any]:
    """A job as the server lists it."""
    return {"metadata": {"name": name, "namespace": "train", "labels": LABELS, **metadata}, "status": {"state": {"phase": phase}}}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as left:
        main(list(words))
    shown = capsys.readouterr()
    return int(left.value.code or 0), shown.out, shown.err


@pytest.fixture
def person(server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedServer:
    """A person whose kubeconfig points to the server."""
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    return server


def test_list_asks_for_one_namespace_and_only_for_our_jobs(person: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    person.on("GET", "/namespaces/train/jobs", ok(listing([job("a"), job("b", "Completed")])))
    code, out, _err = run(capsys, "list", "-o", "json")
    assert code == 0
    assert {(row["job"], row["state"]) for row in json.loads(out)["jobs"]} == {("a", "RUNNING"), ("b", "SUCCEEDED")}
    assert len(person.requests) == 1
    assert "managed-by%3Dnanochat-npu" in person.asked("GET")[0]


def test_list_survives_objects_of_which_parts_are_missing(person: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    odd: list[dict[str, Any]] = [{}, {"metadata": None}, {"metadata": {"name": "x"}}, {"metadata": {"name": 7}, "status": []}, job("y", None), job("z", "Dreaming")]
    person.on("GET", "/namespaces/train/jobs", ok(listing(odd)))
    code, out, _err = run(capsys, "list", "-o", "json")
    assert code == 0
    assert len(json.loads(out)["jobs"]) == len(odd)


def test_a_cluster_that_refuses_does_not_hide_what_is_here(person: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'jobs.batch.volcano.sh is forbidden: User "li" cannot list resource "jobs" in API group "batch.volcano.sh" in the namespace "train"'
    person.on("GET", "/jobs", status(403, text, "Forbidden"))
    code, _out, err = run(capsys, "list")
    assert code == 0
    assert 'user "li" may not list jobs.batch.volcano.sh in namespace "train"' in err


def test_namespaces_of_our_receipts_are_looked_into_as_well(person: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.default()
    folder = store.create("far", {"spec.yaml": ""})
    write_json(folder.receipt_file, Receipt(job="far", backend="volcano", details={"namespace": "elsewhere", "context": "c"}).as_json())
    person.on("GET", "/namespaces/train/jobs", ok(listing([]))).on("GET", "/namespaces/elsewhere/jobs", ok(listing([job("far")])))
    code, out, _err = run(capsys, "list", "-o", "json", "--backend", "volcano")
    assert code == 0
    assert [row["job"] for row in json.loads(out)["jobs"]] == ["far"]


def test_a_job_that_does_not_exist_is_told_with_the_nearest_name(person: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    person.on("GET", "/jobs/d21", status(404, "", "NotFound", name="d21", kind="jobs")).on("GET", r"/jobs\?", ok(listing([job("d20")])))
    code, _out, err = run(capsys, "status", "d21", "--backend", "volcano")
    assert code == 6
    assert "did you mean d20?" in err


def test_help_and_a_local_list_need_no_kubernetes_client() -> None:
    code = "import sys; from nanochat_npu.main import main\ntry: main(['list'])\nexcept SystemExit: pass\nprint('kubernetes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={"HOME": "/nonexistent", "NANOCHAT_NPU_HOME": "/nonexistent"})
    assert done.stdout.strip().endswith("False"), done.stderr


@pytest.mark.parametrize("words", [("--backend", "volcano"), ("-n", "train")], ids=" ".join)
def test_a_cluster_that_was_asked_for_and_is_not_configured_is_no_empty_list(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    code, out, err = run(capsys, "list", *words)
    assert (code, out) == (6, "")
    assert "no kubeconfig" in err
    code, out, _err = run(capsys, "list", *words, "-o", "json")
    assert (code, json.loads(out)["exit_code"]) == (6, 6)


@pytest.mark.parametrize(("words", "phase", "following"), [
    (("list",), "Running", "status train-1"), (("status", "train-1"), "Running", "logs train-1 --follow"), (("status", "train-1"), "Failed", "explain train-1"),
    (("status", "train-1"), "Aborted", "resume train-1"), (("recover", "train-1"), "Running", "explain train-1"),
], ids=str)
def test_the_next_command_looks_where_the_last_one_did(
    words: tuple[str, ...], phase: str, following: str, person: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A colleague's job in another namespace is not found without it."""
    theirs = job("train-1", phase, namespace="theirs")
    person.on("GET", "/namespaces/theirs/", ok(listing([]))).on("GET", "/namespaces/theirs/jobs", ok(listing([theirs])))
    person.on("GET", "/namespaces/theirs/jobs/train-1", ok(theirs)).on("GET", "/namespaces/theirs/podgroups/", status(404, "", "NotFound"))
    code, _out, err = run(capsys, *words, "-n", "theirs")
    assert code == 0, err
    assert err.splitlines()[-1] == f"next: nanochat-npu {following} --namespace theirs"
