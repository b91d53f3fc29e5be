"""Files of a job through a helper pod: the real exec protocol of an API server; the commands run in a folder that plays the claim."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import Cluster
from plane import Plane

from nanochat_npu import local_logs
from nanochat_npu.backends import LogQuery
from nanochat_npu.cluster.fetching import bring, for_report, for_tracking
from nanochat_npu.cluster.files import Remote, push_folder
from nanochat_npu.cluster.helper import helper_pod, opened
from nanochat_npu.cluster.logs import fetch_attempts
from nanochat_npu.errors import ClusterError
from nanochat_npu.jobs import JobFolder

pytestmark = pytest.mark.cluster


@pytest.fixture
def remote(cluster: Cluster) -> Iterator[Remote]:
    """A job's folder, open through a helper pod; afterwards the pod must be gone or going."""
    folder = cluster.plane.claim / cluster.namespace
    folder.mkdir()
    cluster.submit()
    mounted = cluster.backend.mounted("train")
    assert mounted.root == "/output/jobs/train"
    with opened(cluster.backend.kube, cluster.namespace, mounted) as pod:
        yield Remote(cluster.backend.kube, cluster.namespace, pod, str(folder))
    assert [name for name in cluster.pods() if "files" in name] == [] or all(
        cluster.get(f"pods/{name}")["metadata"].get("deletionTimestamp") for name in cluster.pods() if "files" in name
    )


def test_a_folder_is_listed_read_and_written(remote: Remote, tmp_path: Path) -> None:
    root = Path(remote.root)
    (root / "attempts" / "0").mkdir(parents=True)
    payload = bytes(range(256)) * 4096  # a megabyte of every byte there is, newlines and zeros among them
    (root / "attempts" / "0" / "rank0.log").write_bytes(payload)
    assert [(e.path, e.kind) for e in remote.entries(".")] == [("attempts", "dir")]
    assert ("attempts/0/rank0.log", "file", len(payload)) in [(e.path, e.kind, e.size) for e in remote.entries(".", recursive=True)]
    remote.fetch("attempts/0/rank0.log", tmp_path / "got.log")
    assert (tmp_path / "got.log").read_bytes() == payload
    (tmp_path / "new.bin").write_bytes(payload[::-1])
    remote.send(tmp_path / "new.bin", "checkpoints/new.bin")
    assert (root / "checkpoints" / "new.bin").read_bytes() == payload[::-1]


def test_an_empty_file_goes_both_ways(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    remote.send(tmp_path / "empty", "empty")
    remote.fetch("empty", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b""


@pytest.mark.parametrize("path", ["../outside", "/../outside", "link/secret", "link"])
def test_nothing_outside_of_the_jobs_folder_can_be_reached(remote: Remote, tmp_path: Path, path: str) -> None:
    secret = Path(remote.root).parent / "secret-place"
    secret.mkdir(exist_ok=True)
    (secret / "secret").write_text("x")
    (Path(remote.root).parent / "outside").write_text("x")
    (Path(remote.root) / "link").symlink_to(secret)
    with pytest.raises(ClusterError, match="leads out of"):
        remote.fetch(path, tmp_path / "stolen")
    assert not (tmp_path / "stolen").exists()


def test_what_does_not_exist_is_said_by_name(remote: Remote, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="does not exist"):
        remote.fetch("nope.log", tmp_path / "x")
    assert list(tmp_path.glob("*x*")) == []


def test_a_folder_is_pushed_once_and_gone_on_with_where_it_broke_off(remote: Remote, tmp_path: Path) -> None:
    source = tmp_path / "corpus"
    (source / "sub").mkdir(parents=True)
    (source / "a.txt").write_text("a" * 1000)
    (source / "sub" / "b ü.txt").write_text("b" * 100_000)
    said: list[str] = []
    assert push_folder(remote, source, "data", lambda path, _size: said.append(path)) == (2, 0)
    assert push_folder(remote, source, "data", lambda path, _size: said.append(path)) == (0, 2)
    assert said == ["a.txt", "sub/b ü.txt"]
    there = Path(remote.root) / "data"
    (there / "sub" / "b ü.txt").rename(there / "sub" / "b ü.txt.nanochat-part")
    (there / "sub" / "b ü.txt.nanochat-part").write_text("b" * 60_000)  # an upload that was cut off
    assert push_folder(remote, source, "data", lambda path, _size: None) == (1, 1)
    assert (there / "sub" / "b ü.txt").read_text() == "b" * 100_000
    assert not (there / "sub" / "b ü.txt.nanochat-part").exists()


def test_a_file_that_was_changed_is_sent_again_and_a_wrong_beginning_is_noticed(remote: Remote, tmp_path: Path) -> None:
    source = tmp_path / "corpus"
    source.mkdir()
    (source / "a.txt").write_text("a" * 1000)
    push_folder(remote, source, "data", lambda path, _size: None)
    (source / "a.txt").write_text("c" * 1000)
    there = Path(remote.root) / "data"
    (there / "a.txt.nanochat-part").write_text("a" * 500)  # the beginning of the old one
    with pytest.raises(ClusterError, match="sha256 is"):
        push_folder(remote, source, "data", lambda path, _size: None)
    assert push_folder(remote, source, "data", lambda path, _size: None) == (1, 0)
    assert (there / "a.txt").read_text() == "c" * 1000


def test_logs_of_an_attempt_whose_pods_are_gone_come_from_the_volume(remote: Remote, tmp_path: Path) -> None:
    attempt = Path(remote.root) / "attempts" / "0"
    attempt.mkdir(parents=True)
    (attempt / "rank0.log").write_text("fine\n")
    (attempt / "rank9.log").write_text("EI0006: socket timed out\n")
    (attempt / "verdict.json").write_text(json.dumps({"code": 69, "rank": 9}))
    (attempt / "events.jsonl").write_text("")
    fetch_attempts(remote, tmp_path / "train", 0)
    folder = JobFolder(tmp_path / "train")
    found = [line.text for line in local_logs.read(folder, LogQuery(first_failure=True), still_running=lambda: False)]
    assert found == ["EI0006: socket timed out"]
    with pytest.raises(ClusterError, match="attempt 7 has left no files"):
        fetch_attempts(remote, tmp_path / "train", 7)


def test_rerun_puts_the_files_of_the_earlier_run_aside(cluster: Cluster) -> None:
    volume = cluster.plane.claim / cluster.namespace
    (volume / "jobs" / "train" / "checkpoints").mkdir(parents=True)
    storage = {"output": {"host_path": str(volume), "path": str(volume)}}  # a path that is the same inside of a pod and here
    cluster.submit(storage=storage)
    sent = cluster.submit(rerun=True, storage=storage)
    assert [note for note in sent.notes if "put aside" in note] == [f"the files of the earlier run were put aside: {volume}/archive/train/1"]
    assert (volume / "archive" / "train" / "1" / "checkpoints").is_dir()
    assert not (volume / "jobs" / "train").exists()


def test_a_helper_pod_asks_for_no_npu_and_belongs_to_the_job(cluster: Cluster, plane: Plane) -> None:
    cluster.submit()
    made = helper_pod(cluster.backend.mounted("train"), "x")
    assert "huawei" not in json.dumps(made)
    assert made["metadata"]["ownerReferences"][0]["uid"] == cluster.job()["metadata"]["uid"]
    assert made["spec"]["activeDeadlineSeconds"] > 0
    plane.request("POST", f"/api/v1/namespaces/{cluster.namespace}/pods?dryRun=All&fieldValidation=Strict", made)


def test_what_a_report_and_a_tracker_need_is_fetched_and_nothing_else(remote: Remote, tmp_path: Path) -> None:
    root, here = Path(remote.root), tmp_path / "here"
    ours = {
        "run.json": "{}", "attempts/0/events.jsonl": "one\n", "attempts/1/events.jsonl": "two\n", "attempts/0/verdict.json": "{}", "results/eval.json": "{}",
        "tracking/run-1/run-1.swanlab": "swan", "tracking/wandb/offline-run-1/run-1.wandb": "w",
    }
    others = {"attempts/0/rank0.log": "log", "checkpoints/sft/step_000001/model.pt": "weights", "tokenizer/tokenizer.json": "{}", "tracking/synced.json": "{}"}
    for name, text in {**ours, **others}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    assert sorted(bring(remote, here, lambda path: for_report(path) or for_tracking(path))) == sorted(ours)
    assert {path.relative_to(here).as_posix(): path.read_text() for path in here.rglob("*") if path.is_file()} == ours
    seen = (here / "run.json").stat()
    (here / "run.json").write_text("[]")
    os.utime(here / "run.json", ns=(seen.st_atime_ns, seen.st_mtime_ns))  # same size and time: taken as the same, so it is not asked for again
    (root / "attempts/1/events.jsonl").write_text("two\nthree\n")
    bring(remote, here, for_report)
    assert (here / "run.json").read_text() == "[]"
    assert (here / "attempts/1/events.jsonl").read_text() == "two\nthree\n"
