"""The launcher with real ranks: exit codes, verdicts, signals, and nothing left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanochat.contract import ExitCode, RunConfig, RunFile, World, layout
from nanochat.contract.events import parse_lines

STAND_IN = Path(__file__).parent / "stand_in_stage.py"
SECONDS = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Nodes:
    """The launchers of one job on this computer."""

    def __init__(self, job: Path, nodes: int, per_node: int, asked: str, **run: object) -> None:
        self.job, self.size = job, nodes * per_node
        job.mkdir(exist_ok=True)
        config = RunFile(
            job="t", run=RunConfig(stages=["pretrain"]), world=World(nodes=nodes, ranks_per_node=per_node, device="cpu"), **run
        )
        layout.run_file(job).write_text(config.model_dump_json())
        port = str(free_port())
        self.processes = [self._start(node, port, asked) for node in range(nodes)]

    def _start(self, node: int, port: str, asked: str) -> subprocess.Popen[bytes]:
        env = {
            **os.environ, layout.ENV_JOB_DIR: str(self.job), layout.ENV_NODE_RANK: str(node), layout.ENV_MASTER_PORT: port,
            "STAND_IN": asked, "OMP_NUM_THREADS": "1", "RANK": "17", "WORLD_SIZE": "99",  # as a platform might set them
        }
        with (self.job / f"launcher{node}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, str(STAND_IN), "launch"], env=env, stdout=log, stderr=log)

    def wait(self) -> list[int]:
        return [process.wait(timeout=SECONDS) for process in self.processes]

    def wait_for_step(self) -> list[int]:
        """Pids of the ranks, once all are in the middle of their loop."""
        deadline = time.monotonic() + SECONDS
        files = [self.job / f"pid{rank}" for rank in range(self.size)]
        while not all(file.exists() and file.read_text() for file in files):
            assert time.monotonic() < deadline, self.output()
            assert all(process.poll() is None for process in self.processes), self.output()
            time.sleep(0.05)
        return [int(file.read_text()) for file in files]

    def output(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.job.rglob("*.log")))

    def verdict(self, attempt: int = 0) -> dict[str, object]:
        return json.loads(layout.verdict_file(self.job, attempt).read_text())

    def events(self, attempt: int = 0) -> list[dict[str, object]]:
        return list(parse_lines(layout.events_file(self.job, attempt).read_text().splitlines()))

    def ledger(self) -> dict[str, object]:
        return json.loads(layout.ledger_file(self.job).read_text())

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    started: list[Nodes] = []

    def _start(nodes: int, per_node: int, asked: str, **run: object) -> Nodes:
        started.append(Nodes(tmp_path / "job", nodes, per_node, asked, **run))
        return started[-1]

    yield _start
    for nodes in started:
        nodes.end()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


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
    nodes.wait_for_step()
    nodes.processes[0].send_signal(number)
    assert nodes.wait() == [ExitCode.INTERRUPTED], nodes.output()
    steps = {file.read_text() for file in nodes.job.glob("saved*")}
    assert len(list(nodes.job.glob("saved*"))) == per_node
    assert len(steps) == 1, "all ranks stop after the same step"
    assert nodes.ledger()["failures"] == 0


def test_a_stop_of_one_node_stops_the_other_in_good_order(start):
    nodes = start(2, 1, "loop")
    nodes.wait_for_step()
    nodes.processes[1].send_signal(signal.SIGTERM)
    assert nodes.wait() == [ExitCode.INTERRUPTED, ExitCode.INTERRUPTED], nodes.output()
    assert len(list(nodes.job.glob("saved*"))) == 2


def test_ctrl_c_twice_stops_now(start):
    nodes = start(1, 2, "1:hang")
    pids = nodes.wait_for_step()
    nodes.processes[0].send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert nodes.processes[0].poll() is None, "a rank hangs, so the first Ctrl-C cannot end it"
    nodes.processes[0].send_signal(signal.SIGINT)
    assert nodes.wait() == [ExitCode.INTERRUPTED]
    assert not any(alive(pid) for pid in pids)


def test_a_killed_launcher_leaves_no_orphans(start):
    nodes = start(1, 2, "loop")
    pids = nodes.wait_for_step()
    nodes.processes[0].kill()
    nodes.wait()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def test_a_rank_that_does_not_save_in_time_is_killed_within_the_grace_period(start):
    nodes = start(1, 2, "1:hang", grace_period_s=2)
    pids = nodes.wait_for_step()
    nodes.processes[0].send_signal(signal.SIGTERM)
    assert nodes.wait() == [ExitCode.INTERRUPTED]
    assert "grace period" in nodes.verdict()["message"]
    assert not any(alive(pid) for pid in pids)


def test_spent_retries_end_with_83_and_the_ledger_knows_the_real_code(start, tmp_path):
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


def test_a_missing_node_is_named_when_the_start_times_out(start, tmp_path):
    nodes = start(2, 1, "done", start_timeout_s=3)
    nodes.processes[1].kill()
    assert nodes.processes[0].wait(timeout=SECONDS) == ExitCode.NOT_READY
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
