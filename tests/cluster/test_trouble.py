"""A cluster in trouble: servers that go away, nodes that die, tables that are too large, and the same from the command line (P14, P15)."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cases import SUCCEED, Cluster, Seen, fails
from plane import Plane

from nanochat_npu.backends import ENDED, JobState, LogQuery
from nanochat_npu.errors import ClusterRejected, JobExists
from nanochat_npu.resources import CONFIGMAPS

pytestmark = pytest.mark.cluster


def ended(view: Any) -> bool:
    """True once a job has ended."""
    return view.state in ENDED


def test_an_api_server_that_restarts_loses_no_final_phase(cluster: Cluster, plane: Plane) -> None:
    cluster.submit(SUCCEED)
    seen = Seen(cluster.backend)
    follower = seen.in_background(ended, seconds=90)
    cluster.until_phase("Running")
    plane.stop_apiserver()
    plane.start_apiserver()
    follower.join(100)
    assert seen.error is None
    assert seen.states[-1] == "SUCCEEDED"


def test_a_dead_node_is_named_and_recovering_restarts_the_job_elsewhere(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.submit({"t/stuck": "yes"}, lifecycle={"grace_period_s": 1})
    cluster.until_phase("Running")
    cluster.plane.request("DELETE", f"/api/v1/namespaces/{cluster.namespace}/pods/train-worker-0")
    assert cluster.backend.get("train").phase == "Running"
    assert cluster.backend.control.stuck("train") == []  # it may still be writing its checkpoint
    later = time.time() + 120
    monkeypatch.setattr(time, "time", lambda: later)
    stuck = cluster.backend.control.stuck("train")
    monkeypatch.undo()
    assert [pod["metadata"]["name"] for pod in stuck] == ["train-worker-0"]
    cluster.backend.control.force(stuck)
    cluster.until("restart", lambda view: view.attempt == 1)


def test_a_table_of_10000_ranks_fits_a_config_map_and_one_beyond_a_mebibyte_is_refused_with_numbers(cluster: Cluster) -> None:
    def table(ranks: int) -> str:
        servers = [
            {"server_id": f"10.{s // 250}.{s % 250}.1", "device": [
                {"device_id": str(d), "device_ip": f"29.{s // 250}.{s % 250}.{d + 1}", "rank_id": str(8 * s + d)} for d in range(8)
            ]} for s in range(ranks // 8)
        ]
        return json.dumps({"status": "completed", "version": "1.0", "server_count": str(len(servers)), "server_list": servers}, separators=(",", ":"))

    kube = cluster.backend.kube
    kube.create(CONFIGMAPS, {"metadata": {"name": "rings-config-a"}, "data": {"hccl.json": table(10_000)}}, cluster.namespace)
    with pytest.raises(ClusterRejected, match="1048576"):
        kube.create(CONFIGMAPS, {"metadata": {"name": "rings-config-b"}, "data": {"hccl.json": table(20_000)}}, cluster.namespace)


# ---- logs and events -------------------------------------------------------------------------------------------------------

def event(step: int) -> str:
    """A step event as the trainer writes it."""
    return json.dumps({"v": 1, "event": "step", "stage": "pretrain", "t": 1.0 + step, "rank": 0, "attempt": 0, "step": step, "loss": 3.0})


def test_the_trainers_events_arrive_once_each_and_in_order(cluster: Cluster, plane: Plane) -> None:
    plane.write_log("logs-worker-0", "launch: 2 nodes", event(1), "text", event(2))
    cluster.submit(name="logs")
    source = cluster.backend.events("logs")
    found: list[int] = []
    try:
        cluster.until_phase("Running", "logs")
        plane.wait("two events", lambda: found.extend(e["step"] for e in source.poll()) or len(found) >= 2)
        plane.write_log("logs-worker-0", event(3), event(4))
        plane.wait("four events", lambda: found.extend(e["step"] for e in source.poll()) or len(found) >= 4)
        plane.write_log("logs-worker-0", event(5))
        plane.wait("five events", lambda: found.extend(e["step"] for e in source.poll()) or len(found) >= 5)
    finally:
        source.close()
        (plane.folder / "logs" / "logs-worker-0").unlink()
    assert found == [1, 2, 3, 4, 5]


def test_logs_name_the_rank_of_every_line_and_can_be_narrowed(cluster: Cluster, plane: Plane) -> None:
    plane.write_log("logs-worker-0", "hello of rank zero", "[rank 3] hello of rank three")
    plane.write_log("logs-worker-1", "launch: node 1", "[rank 8] hello of rank eight", "[rank 9] hello of rank nine")
    try:
        cluster.submit(name="logs")
        cluster.until_phase("Running", "logs")
        lines = [(line.source, line.text) for line in cluster.backend.logs("logs", LogQuery())]
        assert ("rank 0", "hello of rank zero") in lines
        assert ("rank 3", "hello of rank three") in lines
        assert ("worker 1", "launch: node 1") in lines
        assert [line.text for line in cluster.backend.logs("logs", LogQuery(rank=9))] == ["hello of rank nine"]
        assert [line.text for line in cluster.backend.logs("logs", LogQuery(rank=8, tail=1))] == []
    finally:
        for number in range(2):
            (plane.folder / "logs" / f"logs-worker-{number}").unlink()


def test_followed_logs_go_on_through_a_restart_and_end_with_the_job(cluster: Cluster, plane: Plane) -> None:
    plane.write_log("logs-worker-0", "of rank zero")
    plane.write_log("logs-worker-1", "[rank 8] of rank eight")
    try:
        cluster.submit(fails(69, worker=1, attempt="0"), name="logs")
        lines = [line.text for line in cluster.backend.logs("logs", LogQuery(follow=True))]
        assert cluster.backend.get("logs").state is JobState.SUCCEEDED
        assert cluster.backend.get("logs").attempt == 1
        assert lines.count("of rank zero") == 2  # kwok gives both attempts the same file: once for each
        assert lines.count("of rank eight") == 2
        assert cluster.backend.kube.requests["watch"] <= 6
    finally:
        for number in range(2):
            (plane.folder / "logs" / f"logs-worker-{number}").unlink()


# ---- the command line ------------------------------------------------------------------------------------------------------

def command_line(cluster: Cluster, *words: str) -> list[str]:
    """A command line of the installed program."""
    return [sys.executable, "-m", "nanochat_npu.main", *words]


def environment(cluster: Cluster, folder: Path) -> dict[str, str]:
    """Environment of a person who has this cluster in his kubeconfig."""
    return {**os.environ, "KUBECONFIG": str(cluster.plane.kubeconfig()), "NANOCHAT_NPU_HOME": str(folder / "home"), "NO_COLOR": "1", "USER": "li"}


def spec_file(at: Cluster, folder: Path, behaviour: dict[str, str], /, **change: Any) -> Path:
    """The spec of a job as a file."""
    path = folder / "job.yaml"
    path.write_text(at.submission(behaviour, **change).spec_text)
    return path


@pytest.mark.parametrize(("behaviour", "code"), [(SUCCEED, 0), (fails(78), 7)])
def test_submit_follow_leaves_with_the_jobs_result(cluster: Cluster, tmp_path: Path, behaviour: dict[str, str], code: int) -> None:
    spec = spec_file(cluster, tmp_path, behaviour)
    done = subprocess.run(command_line(cluster, "submit", str(spec), "--follow", "--yes"), env=environment(cluster, tmp_path), capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    receipt = json.loads((tmp_path / "home" / "jobs" / "train" / "receipt.json").read_text())
    assert (receipt["backend"], receipt["details"]["namespace"]) == ("volcano", cluster.namespace)
    shown = subprocess.run(command_line(cluster, "status", "train", "-o", "json"), env=environment(cluster, tmp_path), capture_output=True, text=True, timeout=60)
    assert json.loads(shown.stdout)["state"] == ("SUCCEEDED" if code == 0 else "FAILED"), shown.stdout


def test_wait_timeout_leaves_with_124_and_the_job_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    spec = spec_file(cluster, tmp_path, {})
    done = subprocess.run(command_line(cluster, "submit", str(spec), "--wait-timeout", "1s", "--yes"), env=environment(cluster, tmp_path), capture_output=True, text=True, timeout=120)
    assert done.returncode == 124, done.stderr
    cluster.until_phase("Running")


def test_ctrl_c_while_following_leaves_with_130_and_the_job_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    spec = spec_file(cluster, tmp_path, {})
    process = subprocess.Popen(command_line(cluster, "submit", str(spec), "--follow", "--yes"), env=environment(cluster, tmp_path), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    cluster.plane.wait("the job", lambda: not cluster.namespace_has_no_jobs())
    cluster.until_phase("Running")
    assert process.stderr is not None
    threading.Timer(1.0, lambda: process.send_signal(signal.SIGINT)).start()
    assert process.wait(60) == 130, process.stderr.read()
    process.stderr.close()
    assert cluster.backend.get("train").state is JobState.RUNNING


def test_a_missing_namespace_is_one_clear_sentence_with_exit_code_6(cluster: Cluster, tmp_path: Path) -> None:
    spec = spec_file(cluster, tmp_path, {})
    done = subprocess.run(command_line(cluster, "submit", str(spec), "--yes", "--set", "cluster.namespace=nowhere"), env=environment(cluster, tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 6
    assert 'namespace "nowhere" does not exist' in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "home" / "jobs" / "train").exists()


def test_what_the_cluster_refuses_is_told_with_the_line_of_the_spec(cluster: Cluster, tmp_path: Path) -> None:
    spec = spec_file(cluster, tmp_path, {}, cluster={"queue": "nope"})
    line = 1 + [row.strip() for row in spec.read_text().splitlines()].index("queue: nope")
    done = subprocess.run(command_line(cluster, "submit", str(spec), "--yes"), env=environment(cluster, tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 6
    assert f"{spec}:{line}:" in done.stderr
    assert "cluster.queue: unable to find job queue" in done.stderr


def test_a_name_that_belongs_to_a_job_on_this_computer_is_refused_before_anything_is_sent(cluster: Cluster) -> None:
    cluster.backend.store.create("train", {"spec.yaml": ""})
    with pytest.raises(JobExists, match="on this computer"):
        cluster.submit()
    assert cluster.backend.kube.requests == {}
