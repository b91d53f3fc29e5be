"""The launcher with real ranks: exit codes, verdicts, signals, and nothing left behind."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launchers import SECONDS, Nodes, alive

from nanochat.contract import ExitCode, RunConfig, RunFile, World, layout
from nanochat.contract.events import parse_lines
from nanochat.errors import BadConfig
from nanochat.launch.checks import output_folder
from nanochat.launch.settings import LaunchSettings


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    """Starts the launchers of a job whose ranks do what is asked, see stand_in_stage.py."""
    started: list[Nodes] = []

    def _start(nodes: int, per_node: int, asked: str, **fields: Any) -> Nodes:
        run = RunConfig(stages=["pretrain"])
        started.append(Nodes(tmp_path / "job", run, nodes, per_node, {"STAND_IN": asked}, **fields))
        return started[-1]

    yield _start
    for nodes in started:
        nodes.end()


def pids(nodes: Nodes) -> list[int]:
    """Process ids of the ranks, once all are in the middle of their loop."""
    return [int(text) for text in nodes.wait_for(*(f"pid{rank}" for rank in range(nodes.size)))]


def test_a_rank_with_bad_data_decides_the_code_of_all_nodes(start):
    nodes = start(2, 2, "3:bad-data")
    assert nodes.wait() == [ExitCode.BAD_DATA, ExitCode.BAD_DATA], nodes.output()
    verdict = nodes.verdict()
    assert (verdict["code"], verdict["rank"], verdict["step"], verdict["stage"]) == (65, 3, 3, "pretrain")
    assert (verdict["where"], verdict["hint"]) == ("data/shard7", "fetch it again")
    error = nodes.events()[-1]
    assert (error["event"], error["code"], error["failed_rank"]) == ("error", 65, 3)
    assert not any(alive(int(file.read_text())) for file in nodes.job.glob("pid*"))


def test_a_killed_rank_ends_the_job_within_seconds_with_its_signal(start):
    nodes = start(1, 4, "2:kill")
    assert nodes.wait() == [128 + signal.SIGKILL], nodes.output()
    assert (nodes.verdict()["rank"], nodes.verdict()["code"]) == (2, 137)
    assert "SIGKILL" in nodes.verdict()["message"]
    assert nodes.ledger()["failures"] == 1


def test_a_bug_is_70_and_its_traceback_is_in_the_ranks_log(start):
    nodes = start(1, 2, "1:bug")
    assert nodes.wait() == [ExitCode.BUG]
    assert "ZeroDivisionError: a planted bug" in layout.rank_log(nodes.job, 0, 1).read_text()


def test_a_rank_that_leaves_without_a_word_is_named_by_the_launcher(start):
    nodes = start(1, 2, "1:exit3")
    assert nodes.wait() == [3]
    assert "without a verdict" in nodes.verdict()["message"]


@pytest.mark.parametrize("per_node", [1, 4])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_all_ranks_save_and_leaves_with_82(start, per_node, number):
    nodes = start(1, per_node, "loop")
    pids(nodes)
    nodes.send(number)
    assert nodes.wait() == [ExitCode.INTERRUPTED], nodes.output()
    steps = {file.read_text() for file in nodes.job.glob("saved*")}
    assert len(list(nodes.job.glob("saved*"))) == per_node
    assert len(steps) == 1, "all ranks stop after the same step"
    assert nodes.ledger()["failures"] == 0


def test_a_stop_of_one_node_stops_the_other_in_good_order(start):
    nodes = start(2, 1, "loop")
    pids(nodes)
    nodes.send(signal.SIGTERM, node=1)
    assert nodes.wait() == [ExitCode.INTERRUPTED, ExitCode.INTERRUPTED], nodes.output()
    assert len(list(nodes.job.glob("saved*"))) == 2


def test_ctrl_c_twice_stops_now(start):
    nodes = start(1, 2, "1:hang")
    ranks = pids(nodes)
    nodes.send(signal.SIGINT)
    time.sleep(0.3)
    assert nodes.processes[0].is_alive(), "a rank hangs, so the first Ctrl-C cannot end it"
    nodes.send(signal.SIGINT)
    assert nodes.wait() == [ExitCode.INTERRUPTED]
    assert not any(alive(pid) for pid in ranks)


def test_a_killed_launcher_leaves_no_orphans(start):
    nodes = start(1, 2, "loop")
    ranks = pids(nodes)
    nodes.processes[0].kill()
    nodes.wait()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in ranks)


def test_a_rank_that_does_not_save_in_time_is_killed_within_the_grace_period(start):
    nodes = start(1, 2, "1:hang", grace_period_s=2)
    ranks = pids(nodes)
    nodes.send(signal.SIGTERM)
    assert nodes.wait() == [ExitCode.INTERRUPTED]
    assert "grace period" in nodes.verdict()["message"]
    assert not any(alive(pid) for pid in ranks)


def test_spent_retries_end_with_83_and_the_ledger_knows_the_real_code(start):
    nodes = start(1, 1, "0:kill", retries_failures=0)
    assert nodes.wait() == [ExitCode.RETRIES_SPENT]
    assert nodes.ledger()["attempts"][0]["code"] == 137
    again = start(1, 1, "done", retries_failures=0)
    assert again.wait() == [ExitCode.RETRIES_SPENT], "no further attempt is made"


def test_every_start_is_an_attempt_of_its_own_and_finished_stages_are_skipped(start):
    assert start(1, 2, "done").wait() == [0]
    second = start(1, 2, "1:bug")
    assert second.wait() == [0]
    assert [event["status"] for event in second.events(0) if event["event"] == "stage"] == ["start", "end"]
    assert [event["status"] for event in second.events(1) if event["event"] == "stage"] == ["skip"]
    assert json.loads((layout.attempt_dir(second.job, 1) / "run.json").read_text())["attempt"] == 1


def test_events_reach_the_launchers_stdout(start):
    nodes = start(1, 2, "done")
    nodes.wait()
    printed = list(parse_lines((nodes.job / "launcher0.log").read_text().splitlines()))
    assert [event["event"] for event in printed] == ["stage", "stage", "done"]


def test_a_first_node_that_opens_its_port_late_is_waited_for(start):
    nodes = start(2, 1, "done", first_late_s=3.0)
    assert nodes.wait() == [ExitCode.DONE] * 2, nodes.output()
    assert layout.verdict_file(nodes.job, 1).exists() is False  # no attempt was spent on it


def test_a_missing_node_is_named_when_the_start_times_out(start):
    nodes = start(2, 1, "done", start_timeout_s=3)
    nodes.processes[1].kill()
    assert nodes.wait()[0] == ExitCode.NOT_READY
    assert "rank 1 of 2" in nodes.verdict()["message"]
    assert "node 1" in nodes.verdict()["message"]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (layout.ENV_NODE_RANK, "5", "nodes count from 0"),
        (layout.ENV_NODES, "two", "not a whole number"),
        (layout.ENV_MASTER_PORT, "99999", "not a port"),
        (layout.ENV_JOB_DIR, "", "names the job's folder"),
    ],
)
def test_a_wrong_environment_is_78_with_its_name(tmp_path, name, value, says):
    layout.run_file(tmp_path).write_text(RunFile(job="t", run=RunConfig()).model_dump_json())
    env = {**os.environ, layout.ENV_JOB_DIR: str(tmp_path), name: value}
    ended = subprocess.run([sys.executable, "-m", "nanochat", "launch"], env=env, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == ExitCode.BAD_CONFIG
    assert name in ended.stderr
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("stage", "fields", "code"), [
    ("data", {}, ExitCode.BAD_DATA), ("report", {}, ExitCode.DONE), ("report", {"budget": {"deadline_s": 1.0}}, ExitCode.BUDGET),
])
def test_a_launcher_whose_output_goes_nowhere_leaves_with_its_code(tmp_path, stage, fields, code):
    """A traceback of its own instead, that nobody can read either, would be code 1, and so another attempt."""
    run = RunConfig.model_validate({"stages": [stage], "data": {"source": "folder", "dir": str(tmp_path / "none")}})
    layout.run_file(tmp_path).write_text(RunFile(job="t", run=run, world=World(device="cpu"), **fields).model_dump_json())
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "nanochat", "launch"], env={**os.environ, layout.ENV_JOB_DIR: str(tmp_path)}, stdout=full, stderr=full,
            timeout=SECONDS, check=False,
        )
    assert ended.returncode == code


def test_a_probe_of_a_full_folder_is_not_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: self.touch() or (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(BadConfig, match="No space left"):
        output_folder.check(LaunchSettings(tmp_path, tmp_path / "run.json", 1, 0, 1, "127.0.0.1", 0, None), RunFile(job="t", run=RunConfig()))
    assert list(tmp_path.iterdir()) == []


def test_a_silent_rank_is_named_and_its_stack_is_in_its_log(start):
    nodes = start(2, 2, "2:hang", silence_timeout_s=2)
    assert nodes.wait() == [ExitCode.DEVICE_LOST, ExitCode.DEVICE_LOST], nodes.output()
    verdict = nodes.verdict()
    assert (verdict["rank"], verdict["step"], verdict["stage"]) == (2, 3, "pretrain")
    assert "rank 2 silent" in verdict["message"]
    assert 'stand_in_stage.py", line' in layout.rank_log(nodes.job, 0, 2).read_text()


def test_a_taken_port_is_75_at_once(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nodes = start(1, 1, "done", port=taken.getsockname()[1])
        assert nodes.wait() == [ExitCode.NOT_READY]
    assert "cannot listen" in nodes.verdict()["message"]
