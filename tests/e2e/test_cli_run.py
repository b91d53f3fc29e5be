"""The job commands over the real trainer: two nodes, a killed rank, Ctrl-C and going on, resuming elsewhere, exit codes."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_shell import CliShell

from nanochat_npu import processes

PATIENCE_S = 240.0


def wait_until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.05)


def kill_a_rank(job: Path, node: int) -> None:
    """SIGKILL one rank of a node: a child of the launcher that supervisor's state names."""
    launcher = json.loads((job / "state.json").read_text())["launchers"][node]["pid"]
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliShell]:
    shell = CliShell(tmp_path_factory.mktemp("cli"))
    try:
        shell.run("submit", shell.spec("two"), "--follow", check=True)
        yield shell
    finally:
        for job in (shell.folder / "home" / "jobs").iterdir():
            shell.run("cancel", job.name, "--now")
            assert processes.job_processes(job) == []


def test_two_nodes_train_to_the_end_and_every_rank_has_its_log(shell: CliShell) -> None:
    answer = shell.json("status", "two")
    assert (answer["state"], answer["step"], answer["world_size"], answer["exit_code"]) == ("SUCCEEDED", 12, 4, 0)
    assert [worker["state"] for worker in answer["workers"]] == ["Succeeded", "Succeeded"]
    attempt = shell.job("two") / "attempts" / "0"
    assert sorted(path.name for path in attempt.glob("rank*.log")) == [f"rank{rank}.log" for rank in range(4)]


def test_a_report_is_there_when_a_job_has_ended_and_names_what_it_ran_with(shell: CliShell) -> None:
    folder = shell.job("two")
    text = (folder / "report.md").read_text()
    assert "- **ended**: finished" in text
    assert "2 nodes × 2 ranks" in text
    assert re.search(r"\*\*ran with\*\*: nanochat \S+, python \S+, torch 2\.", text)
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    done = shell.run("report", "two", check=True)
    assert str(folder / "report.html") in done.stdout
    assert "**estimated**" in (folder / "report.md").read_text()  # from the ledger that submit has begun


def test_logs_have_each_line_once_with_its_rank(shell: CliShell) -> None:
    lines = shell.run("logs", "two", check=True).stdout.splitlines()
    steps = [line for line in lines if "pretrain 12/12" in line]
    assert len(steps) == 1
    assert steps[0].startswith("rank 0 | ")


def test_a_killed_rank_restarts_the_job_from_its_checkpoint_and_leaves_no_process(shell: CliShell) -> None:
    follower = shell.start("submit", shell.spec("killed"), "--follow", "--set", "run.pretrain.steps=60", "-o", "json")
    wait_until(lambda: 6 in shell.steps("killed"), "some steps are done")
    kill_a_rank(shell.job("killed"), node=1)
    out, err = follower.communicate(timeout=PATIENCE_S)
    answer = json.loads(out)
    assert (follower.returncode, answer["state"], answer["attempt"], answer["failures"], answer["step"]) == (0, "SUCCEEDED", 1, 1, 60), err
    assert shell.steps("killed", attempt=1)[0] > 4
    assert processes.job_processes(shell.job("killed")) == []


def test_ctrl_c_saves_the_run_and_submitting_again_finishes_it(shell: CliShell) -> None:
    arguments = ("submit", shell.spec("stopped"), "--follow", "--set", "run.pretrain.steps=60")
    follower = shell.start(*arguments)
    wait_until(lambda: 2 in shell.steps("stopped"), "some steps are done")
    follower.send_signal(signal.SIGINT)
    _out, err = follower.communicate(timeout=PATIENCE_S)
    assert follower.returncode == 130, err
    last = shell.steps("stopped")[-1]
    assert shell.json("status", "stopped")["state"] == "CANCELLED"
    assert processes.job_processes(shell.job("stopped")) == []
    again = shell.run(*arguments, check=True)
    assert "goes on from its newest checkpoint" in again.stderr
    assert shell.steps("stopped", attempt=1)[0] == last + 1


def test_a_new_job_begins_with_anothers_checkpoint_and_keeps_its_horizon(shell: CliShell) -> None:
    done = shell.run("submit", shell.spec("next"), "--resume-from", "two@8", "--follow", "--set", "resources.nodes=1")
    assert done.returncode == 0, done.stderr
    run = json.loads((shell.job("next") / "run.json").read_text())["run"]
    assert (run["resume"], run["pretrain"]["steps"], run["pretrain"]["tokens_per_step"]) == ("two@8", 12, 128)
    assert shell.steps("next")[0] == 9


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(shell: CliShell) -> None:
    done = shell.run("submit", shell.spec("next-2"), "--resume-from", "two@5")
    assert done.returncode == 6
    assert "pretrain 8, 12" in done.stderr
    assert not shell.job("next-2").exists()


def test_a_rank_that_finds_no_data_ends_the_job_with_65_and_the_command_with_7(shell: CliShell) -> None:
    empty = shell.folder / "empty"
    empty.mkdir()
    where = ("--set", "run.data.source=folder", "--set", f"run.data.dir={empty}", "--set", "resources.nodes=1", "--set", "resources.npus_per_node=1")
    done = shell.run("submit", shell.spec("no-data"), "--follow", *where, "-o", "json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["error"]["code"], answer["error"]["job"]["attempt"]) == (7, 65, 0), done.stderr
    assert str(empty) in answer["error"]["message"]
