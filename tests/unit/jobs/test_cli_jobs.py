"""The job commands as a person runs them: real processes of the command line, real signals, a real terminal."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pexpect
import pytest
from job_bench import LAUNCHER, Bench, wait_until

from nanochat_npu import processes
from nanochat_npu.backends import ENDED, JobState, JobView
from nanochat_npu.views import next_command

CLI = [sys.executable, "-m", "nanochat_npu.main"]
STEPS = [
    {"event": "stage", "status": "start", "index": 0, "of": 1},
    {"event": "eval", "step": 0, "name": "bpb", "value": 3.25},
    {"event": "step", "step": 1, "steps": 2, "loss": 6.5, "tokens_per_s": 4000, "tokens": 2048, "dt_s": 0.5, "eta_s": 30},
    {"event": "step", "step": 2, "steps": 2, "loss": 1.25, "tokens_per_s": 4000, "tokens": 4096, "dt_s": 0.5, "eta_s": 0},
    {"event": "eval", "step": 2, "name": "bpb", "value": 1.5},
    {"event": "eval", "step": 2, "name": "sums", "value": 0.97, "correct": 97, "total": 100},
    {"event": "checkpoint", "step": 2, "path": "checkpoints/pretrain/step_000002", "size_bytes": 3200000},
    {"event": "stage", "status": "end", "index": 0, "of": 1, "took_s": 1.0},
    {"event": "done", "reason": "finished", "resumable": False, "step": 2},
]


class Shell:
    """The command line in a folder of its own, with a launcher that plays a part."""

    def __init__(self, tmp_path: Path, bench: Bench) -> None:
        self.bench = bench
        self.cwd = tmp_path
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {LAUNCHER} "$PLAY"\n')
        python.chmod(0o755)
        self.env = {**os.environ, "NANOCHAT_NPU_HOME": str(bench.store.home), "NANOCHAT_NPU_PYTHON": str(python), "COLUMNS": "100"}

    def play(self, **play: Any) -> None:
        self.env["PLAY"] = json.dumps(play)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*CLI, *arguments], env=self.env, cwd=self.cwd, capture_output=True, text=True, timeout=60, check=False)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen([*CLI, *arguments], env=self.env, cwd=self.cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def terminal(self, *arguments: str) -> "pexpect.spawn[str]":
        env = {**self.env, "TERM": "xterm", "NO_COLOR": "1"}
        env.pop("CI", None)
        return pexpect.spawn(CLI[0], [*CLI[1:], *arguments], env=env, cwd=str(self.cwd), encoding="utf-8", timeout=30, dimensions=(30, 100))

    def json(self, *arguments: str) -> dict[str, Any]:
        value = json.loads(self.run(*arguments, "-o", "json").stdout)
        assert isinstance(value, dict)
        return value


@pytest.fixture
def shell(tmp_path: Path, bench: Bench) -> Iterator[Shell]:
    shell = Shell(tmp_path, bench)
    shell.play()
    yield shell
    for name in bench.store.names():
        backend = bench.backend()
        if backend.get(name).state not in ENDED:
            backend.cancel(name, now=True)
        processes.kill_job(bench.store.folder(name).path)


def submit_waiting(shell: Shell, **play: Any) -> None:
    shell.play(wait=True, **play)
    assert shell.run("submit", "tiny").returncode == 0
    shell.bench.ready("tiny")


def test_submit_prints_the_name_alone_on_stdout(shell: Shell) -> None:
    done = shell.run("submit", "tiny")
    assert (done.returncode, done.stdout) == (0, "tiny\n")
    assert "next: nanochat-npu status tiny" in done.stderr


def test_following_ends_with_the_table_on_stdout_and_lines_on_stderr(shell: Shell) -> None:
    shell.play(events=STEPS)
    done = shell.run("submit", "tiny", "--follow")
    assert done.returncode == 0
    for text in ("4,096", "3.2500 → 1.5000", "97 of 100", "checkpoints/pretrain/step_000002", "nanochat-npu chat tiny"):
        assert text in done.stdout
    assert "pretrain 2/2  loss 1.2500" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_following_a_failure_leaves_with_7_and_json_has_the_ranks_code(shell: Shell) -> None:
    shell.play(codes=[1], verdict=65)
    done = shell.run("submit", "tiny", "--follow", "-o", "json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["exit_code"], answer["error"]["code"], answer["error"]["state"]) == (7, 7, 65, "FAILED")
    assert "bees" in answer["error"]["message"]


def test_after_a_failure_each_next_is_a_command_and_no_advice(shell: Shell) -> None:
    shell.play(codes=[1], verdict=65)  # whose advice is a sentence
    shell.run("submit", "tiny", "--follow")
    assert shell.run("status", "tiny").stderr == "next: nanochat-npu explain tiny\n"
    done = shell.run("explain", "tiny")
    assert "→ correct run.data in the spec" in done.stdout
    assert done.stderr == "next: nanochat-npu logs tiny --first-failure\n"
    assert shell.run("logs", "tiny", "--first-failure").returncode == 0


def test_following_goes_on_over_a_restart(shell: Shell) -> None:
    shell.play(codes=[82, 0])
    done = shell.run("submit", "tiny", "--follow")
    assert done.returncode == 0
    assert "RESTARTING" in done.stderr
    # A second attempt as short as this one may be over when it is first looked at.
    assert re.search(r"(RUNNING|SUCCEEDED), attempt 1", done.stderr)


def test_a_timeout_leaves_with_124_and_the_job_running(shell: Shell) -> None:
    shell.play(wait=True)
    done = shell.run("submit", "tiny", "--wait-timeout", "1s")
    assert done.returncode == 124
    assert shell.json("status", "tiny")["state"] == "RUNNING"


def test_ctrl_c_saves_the_job_and_leaves_with_130(shell: Shell) -> None:
    shell.play(wait=True)
    follower = shell.start("submit", "tiny", "--follow")
    job = shell.bench.ready("tiny")
    follower.send_signal(signal.SIGINT)
    _out, err = follower.communicate(timeout=30)
    assert follower.returncode == 130
    assert "a checkpoint is being written" in err
    assert (job / "saved0").exists()
    assert shell.json("status", "tiny")["state"] == "CANCELLED"
    assert shell.bench.processes("tiny") == []


def test_ctrl_c_twice_stops_a_deaf_job_now_and_leaves_no_process(shell: Shell) -> None:
    shell.play(wait=True, deaf=True, child=True)
    follower = shell.start("submit", "tiny", "--follow")
    shell.bench.ready("tiny")
    follower.send_signal(signal.SIGINT)
    wait_until(lambda: shell.bench.backend().get("tiny").phase == "stopping", "the first Ctrl-C arrives")
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=30)
    assert follower.returncode == 130
    assert shell.bench.processes("tiny") == []


def test_sigterm_to_the_follower_saves_the_job(shell: Shell) -> None:
    shell.play(wait=True)
    follower = shell.start("submit", "tiny", "--follow")
    job = shell.bench.ready("tiny")
    follower.terminate()
    follower.communicate(timeout=30)
    assert (job / "saved0").exists()


def test_a_follower_that_is_killed_leaves_the_job_running(shell: Shell) -> None:
    shell.play(wait=True)
    follower = shell.start("submit", "tiny", "--follow")
    shell.bench.ready("tiny")
    follower.kill()
    follower.communicate(timeout=30)
    assert shell.json("status", "tiny")["state"] == "RUNNING"


def test_ctrl_c_while_attached_to_anothers_job_only_stops_watching(shell: Shell) -> None:
    submit_waiting(shell)
    follower = shell.start("submit", "tiny", "--follow")
    assert follower.stderr is not None
    first = [follower.stderr.readline() for _line in range(3)]
    assert any("submitted before" in line for line in first), first
    follower.send_signal(signal.SIGINT)
    _out, err = follower.communicate(timeout=30)
    assert "goes on; stop it with: nanochat-npu cancel tiny" in err
    assert shell.json("status", "tiny")["state"] == "RUNNING"


def test_a_person_sees_a_picture_that_moves(shell: Shell) -> None:
    shell.play(events=STEPS[:-1], wait=True)
    terminal = shell.terminal("submit", "tiny", "--follow")
    terminal.expect(r"loss[^0-9\r]*(\x1b\[\d*m)*1\.2500")
    terminal.expect("97 of 100")
    terminal.sendintr()
    terminal.expect("a checkpoint is being written")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130


def test_watching_never_stops_a_job(shell: Shell) -> None:
    submit_waiting(shell, events=STEPS[:-1])
    terminal = shell.terminal("watch", "tiny")
    terminal.expect("┤")
    terminal.sendintr()
    terminal.expect("goes on; stop it with")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    assert shell.json("status", "tiny")["state"] == "RUNNING"


def test_watching_a_job_that_has_ended_shows_its_table(shell: Shell) -> None:
    shell.play(events=STEPS)
    shell.run("submit", "tiny", "--wait-timeout", "30s")
    done = shell.run("watch", "tiny")
    assert done.returncode == 0
    assert "3.2500 → 1.5000" in done.stdout


def test_submitting_something_else_under_the_name_leaves_with_6_and_names_rerun(shell: Shell) -> None:
    submit_waiting(shell)
    done = shell.run("submit", "tiny", "--set", "run.seed=7")
    assert done.returncode == 6
    assert "--rerun" in done.stderr
    assert done.stdout == ""


def test_rerun_says_where_the_earlier_run_is_kept(shell: Shell) -> None:
    shell.run("submit", "tiny", "--wait-timeout", "30s")
    done = shell.run("submit", "tiny", "--rerun", "--follow")
    assert done.returncode == 0
    assert "archive/tiny/1" in done.stderr


def test_a_dry_run_shows_everything_and_touches_nothing(shell: Shell) -> None:
    done = shell.run("submit", "tiny", "--dry-run", "--set", "resources.nodes=2")
    assert done.returncode == 0
    assert '"nodes": 2' in done.stdout
    assert done.stdout.count("-m nanochat launch") == 2
    assert not (shell.bench.store.home / "jobs").exists()


def test_a_dry_run_for_a_cluster_needs_no_cluster(shell: Shell) -> None:
    done = shell.run("submit", "d20", "--dry-run")
    assert done.returncode == 0
    assert 'kind: "Job"' in done.stdout


def test_the_kept_spec_is_the_same_submission(shell: Shell) -> None:
    shell.run("submit", "tiny", "--set", "run.seed=7", "--wait-timeout", "30s")
    done = shell.run("submit", str(shell.bench.store.folder("tiny").spec_file))
    assert "submitted before" in done.stderr


def test_a_job_in_a_folder_that_cannot_be_written_is_an_error_without_traceback(shell: Shell, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    shell.env["NANOCHAT_NPU_HOME"] = str(blocked)
    done = shell.run("submit", "tiny")
    assert done.returncode == 6
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["status", "logs", "cancel", "chat", "watch"])
def test_an_unknown_job_leaves_with_6_and_the_nearest_name(shell: Shell, command: str) -> None:
    shell.bench.store.create("tiny", {})
    done = shell.run(command, "tinny")
    assert done.returncode == 6
    assert "did you mean tiny" in done.stderr


def test_status_json_has_the_promised_keys_from_the_first_moment_on(shell: Shell) -> None:
    shell.bench.store.create("tiny", {})
    answer = shell.json("status", "tiny")
    assert {"job", "state", "stage", "step", "loss", "tokens_per_s", "attempt", "schema_version"} <= set(answer)


def test_status_shows_where_a_running_job_is(shell: Shell) -> None:
    submit_waiting(shell, events=STEPS[:4])
    wait_until(lambda: shell.json("status", "tiny")["step"] == 2, "the step is seen")
    answer = shell.json("status", "tiny")
    assert (answer["state"], answer["stage"], answer["loss"], answer["tokens_per_s"], answer["attempt"]) == ("RUNNING", "pretrain", 1.25, 4000, 0)


def test_list_shows_jobs_and_filters_by_state(shell: Shell) -> None:
    shell.run("submit", "tiny", "--wait-timeout", "30s")
    assert [job["job"] for job in shell.json("list")["jobs"]] == ["tiny"]
    assert shell.json("list", "--state", "failed")["jobs"] == []


def test_an_empty_list_names_the_first_step(shell: Shell) -> None:
    done = shell.run("list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "nanochat-npu submit" in done.stderr


def test_logs_show_events_as_sentences_and_raw_as_they_are(shell: Shell) -> None:
    folder = shell.bench.store.create("tiny", {})
    attempt = folder.path / "attempts" / "0"
    attempt.mkdir(parents=True)
    (attempt / "rank0.log").write_text(json.dumps({"v": 1, "stage": "pretrain", **STEPS[2]}) + "\nplain\n")
    assert shell.run("logs", "tiny").stdout == "rank 0 | pretrain 1/2  loss 6.5000  4,000 tokens/s  30 s left\nrank 0 | plain\n"
    assert shell.run("logs", "tiny", "--raw", "--rank", "0").stdout.startswith('{"v": 1')
    assert json.loads(shell.run("logs", "tiny", "-o", "json").stdout.splitlines()[1]) == {"source": "rank 0", "text": "plain"}


def test_following_a_log_ends_when_its_reader_has_left(shell: Shell) -> None:
    shell.play(wait=True, events=STEPS)
    shell.run("submit", "tiny")
    shell.bench.ready("tiny")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*CLI, "logs", "tiny", "--follow"], env=shell.env, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_cancel_waits_until_the_job_has_saved_its_work(shell: Shell) -> None:
    submit_waiting(shell)
    done = shell.run("cancel", "tiny")
    assert done.returncode == 0
    assert "CANCELLED" in done.stderr
    assert (shell.bench.store.folder("tiny").path / "saved0").exists()


def test_cancel_of_a_job_that_does_not_listen_times_out_and_names_now(shell: Shell) -> None:
    submit_waiting(shell, deaf=True)
    done = shell.run("cancel", "tiny", "--wait-timeout", "1s")
    assert done.returncode == 124
    assert "--now" in done.stderr
    assert shell.run("cancel", "tiny", "--now").returncode == 0
    assert shell.bench.processes("tiny") == []


@pytest.mark.parametrize(("play", "now"), [({}, []), ({"deaf": True}, ["--now"])])
def test_a_cancelled_job_is_not_explained_as_a_failure(shell: Shell, play: dict[str, Any], now: list[str]) -> None:
    submit_waiting(shell, **play)
    assert shell.run("cancel", "tiny", *now).returncode == 0
    done = shell.run("explain", "tiny")
    assert done.stdout.startswith("tiny was cancelled (by you); submit the same spec to go on from its newest checkpoint")
    assert "tiny/spec.yaml" in done.stderr
    assert not any(word in done.stdout for word in ("failed", "signal", "memory", "outside"))


def test_a_job_stopped_from_outside_is_explained_as_suspended(shell: Shell) -> None:
    submit_waiting(shell)
    pid = shell.bench.store.folder("tiny").supervisor_pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: shell.bench.backend().get("tiny").state in ENDED, "tiny ends")
    value = shell.json("explain", "tiny")
    assert (value["rule"], shell.bench.backend().get("tiny").state) == ("P04", JobState.SUSPENDED)
    assert "suspended" in value["cause"]


def test_deleting_needs_a_yes(shell: Shell) -> None:
    shell.run("submit", "tiny", "--wait-timeout", "30s")
    refused = shell.run("cancel", "tiny", "--delete")
    assert refused.returncode == 2
    assert shell.bench.store.names() == ["tiny"]
    assert shell.run("cancel", "tiny", "--delete", "--yes").returncode == 0
    assert shell.bench.store.names() == []


def test_a_person_is_asked_before_anything_is_deleted(shell: Shell) -> None:
    shell.bench.store.create("tiny", {})
    terminal = shell.terminal("cancel", "tiny", "--delete")
    terminal.expect(r"Delete tiny and everything in .*\?")
    terminal.sendline("n")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    assert shell.bench.store.names() == ["tiny"]


def test_job_names_complete(shell: Shell) -> None:
    for name in ("tiny", "tiny-2", "d20"):
        shell.bench.store.create(name, {})
    env = {**shell.env, "_NANOCHAT_NPU_COMPLETE": "complete_bash", "COMP_WORDS": "nanochat-npu status ti", "COMP_CWORD": "2"}
    script = "import sys; sys.argv = ['nanochat-npu']; from nanochat_npu.main import main; main()"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["tiny", "tiny-2"]


def test_a_supervisor_that_was_killed_shows_in_status_and_submitting_again_goes_on(shell: Shell) -> None:
    submit_waiting(shell)
    pid = shell.bench.store.folder("tiny").supervisor_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: shell.bench.backend().get("tiny").state is JobState.UNKNOWN, "the loss is noticed")
    wait_until(lambda: not shell.bench.processes("tiny"), "no orphan is left")
    saved = shell.bench.store.folder("tiny").path / "checkpoints" / "pretrain" / "step_000002" / "manifest.json"
    saved.parent.mkdir(parents=True)
    saved.touch()
    shell.play()
    done = shell.run("submit", "tiny", "--follow")
    assert done.returncode == 0
    assert "goes on from its newest checkpoint" in done.stderr


def test_a_job_that_had_saved_nothing_starts_again(shell: Shell) -> None:
    shell.play(codes=[65])
    shell.run("submit", "tiny", "--follow")
    assert "tiny starts again: it had no checkpoint yet" in shell.run("submit", "tiny", "--follow").stderr


def test_a_cluster_that_does_not_answer_hides_no_local_job(shell: Shell, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],"
        " clusters: [{name: k, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: u, user: {token: x}}]}"
    )
    shell.env["KUBECONFIG"] = str(kubeconfig)
    shell.bench.store.create("tiny", {})
    done = shell.run("list")
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].startswith("tiny")
    assert "127.0.0.1:9" in done.stderr
    unknown = shell.run("status", "tinny")
    assert unknown.returncode == 6
    assert "did you mean tiny" in unknown.stderr


def test_two_jobs_side_by_side_with_cost_page_and_picture(shell: Shell) -> None:
    shell.play(events=STEPS)
    for name in ("one", "two"):
        assert shell.run("submit", "tiny", "--set", f"name={name}", "--set", f"run.seed={len(name) + (name == 'two')}", "--follow").returncode == 0
    found = shell.json("compare", "one", "two", "--to", "both.html")
    assert [entry["job"] for entry in found["cost"]] == ["one", "two"]
    assert found["settings"] == {"seed": [3, 4]}
    assert "<polyline" in (shell.cwd / "both.html").read_text()
    assert shell.run("compare", "one", "two", "--to", "both.svg").returncode == 0
    assert (shell.cwd / "both.svg").read_text().startswith("<svg")
    refused = shell.run("compare", "one", "two", "--to", "both.png")
    assert (refused.returncode, "an .html or an .svg file" in refused.stderr) == (2, True)


def test_logs_of_what_a_job_never_had_are_a_usage_error_that_names_what_there_is(shell: Shell) -> None:
    shell.play(codes=[82, 0])
    assert shell.run("submit", "tiny", "--set", "resources.npus_per_node=2", "--follow").returncode == 0
    rank = shell.run("logs", "tiny", "--rank", "99")
    assert (rank.returncode, rank.stdout, rank.stderr) == (2, "", "error: --rank: tiny has no rank 99\nhint: there are 0 to 1\n")
    attempt = shell.run("logs", "tiny", "--attempt", "5", "--follow")
    assert (attempt.returncode, attempt.stdout, attempt.stderr) == (2, "", "error: --attempt: tiny has no attempt 5\nhint: there are 0 to 1\n")
    assert shell.run("logs", "tiny", "--rank", "1", "--attempt", "1").returncode == 0
    nothing = shell.run("logs", "tiny", "--tail", "0")
    assert (nothing.returncode, nothing.stderr) == (0, "tiny has left no such output\nnext: nanochat-npu chat tiny\n")


def test_logs_of_a_running_job_may_still_come(shell: Shell) -> None:
    submit_waiting(shell)
    assert shell.run("logs", "tiny", "--tail", "0").stderr == "tiny has no such output yet\nnext: nanochat-npu status tiny\n"


SERVER = """#!/bin/sh
trap 'echo TERM > ended; exit 0' TERM
trap 'echo HUP > ended; exit 0' HUP
echo $$ > pid.part && mv pid.part pid
n=0
while [ $n -lt 1200 ]; do sleep 0.05; n=$((n + 1)); done
"""


def plant_server(shell: Shell) -> None:
    """The trainer's interpreter is a server of ours that tells what ended it, and there is a model to serve."""
    python = shell.cwd / "server"
    python.write_text(SERVER)
    python.chmod(0o755)
    shell.env["NANOCHAT_NPU_PYTHON"] = str(python)
    shell.bench.store.folder("tiny").path.joinpath("checkpoints/sft/step_000001").mkdir(parents=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_server_stops_with_the_command_that_started_it(shell: Shell, number: signal.Signals) -> None:
    """Else it goes on without anybody knowing, and keeps its port."""
    plant_server(shell)
    within = ["env", "--default-signal=HUP"]  # where the tests themselves run under nohup, SIGHUP would be ignored by right
    server = subprocess.Popen([*within, *CLI, "serve", "tiny", "--port", "0"], env=shell.env, cwd=shell.cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until((shell.cwd / "pid").exists, "the server runs")
    server.send_signal(number)
    server.communicate(timeout=30)
    assert server.returncode == 0
    assert (shell.cwd / "ended").read_text() == f"{number.name.removeprefix('SIG')}\n"
    assert not Path(f"/proc/{(shell.cwd / 'pid').read_text().strip()}").exists()


def test_a_server_stops_when_its_command_is_killed(shell: Shell) -> None:
    """SIGKILL leaves no time to hand anything on: the kernel tells the server."""
    plant_server(shell)
    command = shell.start("serve", "tiny", "--port", "0")
    wait_until((shell.cwd / "pid").exists, "the server runs")
    command.kill()
    command.communicate(timeout=30)
    wait_until((shell.cwd / "ended").exists, "the server ends")
    wait_until(lambda: (shell.cwd / "ended").read_text() == "TERM\n", "the server was asked to leave in good order")


def test_a_server_under_nohup_lives_on_when_the_terminal_is_closed(shell: Shell) -> None:
    plant_server(shell)
    server = subprocess.Popen(["nohup", *CLI, "serve", "tiny"], env=shell.env, cwd=shell.cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until((shell.cwd / "pid").exists, "the server runs")
    server.send_signal(signal.SIGHUP)
    server.terminate()
    assert server.wait(timeout=30) == 0
    assert (shell.cwd / "ended").read_text() == "TERM\n"


def test_each_command_about_jobs_ends_by_naming_the_next(shell: Shell) -> None:
    shell.play(events=STEPS)
    shell.run("submit", "tiny", "--wait-timeout", "30s")
    for words, following in (
        (("list",), "status tiny"), (("logs", "tiny"), "chat tiny"), (("cancel", "tiny"), "chat tiny"), (("render", "tiny"), "submit tiny"),
        (("submit", "tiny", "--dry-run", "--set", "run.seed=7", "--rerun"), "submit tiny --set run.seed=7 --rerun"), (("cancel", "tiny", "--delete", "--yes"), "list"),
    ):
        done = shell.run(*words)
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines()[-1] == f"next: nanochat-npu {following}"


def test_the_logs_of_a_failed_job_lead_to_why_it_failed(shell: Shell) -> None:
    shell.play(codes=[1], verdict=65)
    shell.run("submit", "tiny", "--follow")
    assert shell.run("logs", "tiny").stderr.splitlines()[-1] == "next: nanochat-npu explain tiny"
    assert shell.run("logs", "tiny", "-o", "json").stderr == ""


def test_the_next_command_can_be_copied_and_does_what_it_says() -> None:
    here = JobView("x", "local", JobState.CANCELLED, where="/home/li's jobs/x")
    assert next_command(here) == """nanochat-npu submit '/home/li'"'"'s jobs/x/spec.yaml'"""
    assert next_command(replace(here, state=JobState.SUCCEEDED, extra={"stages": ["data", "tokenizer"]})) == "nanochat-npu report x"
    assert next_command(replace(here, state=JobState.SUCCEEDED, extra={"stages": ["tokenizer", "sft"]})) == "nanochat-npu chat x"
    assert next_command(JobView("x", "volcano", JobState.SUSPENDED)) == "nanochat-npu resume x"
    assert {next_command(replace(here, state=state)).split()[0] for state in JobState} == {"nanochat-npu"}


def test_colour_is_for_a_person_who_wants_it(shell: Shell) -> None:
    env = {key: value for key, value in shell.env.items() if key not in ("CI", "NO_COLOR")}
    shown = {}
    for name, more in (("plain", {"NO_COLOR": "1"}), ("coloured", {})):
        terminal = pexpect.spawn(CLI[0], [*CLI[1:], "validate", "nothing.yaml"], env={**env, "TERM": "xterm", **more}, cwd=str(shell.cwd), encoding="utf-8", timeout=30)
        terminal.expect(pexpect.EOF)
        terminal.close()
        shown[name] = terminal.before
    assert "\x1b[1;31m" in shown["coloured"]
    assert "\x1b" not in shown["plain"]
    assert "\x1b" not in shell.run("validate", "nothing.yaml").stderr


def test_training_text_that_is_not_there_is_refused_before_anything_starts(shell: Shell) -> None:
    shell.play(codes=[0])
    assert shell.run("init", "tiny", "--name", "mine", "--set", "run.data={source: folder, dir: txt}", "--to", "mine.yaml").returncode == 0
    done = shell.run("submit", "mine.yaml")
    hint = "hint: name the folder of your training text: --set run.data.dir=PATH\n"
    assert (done.returncode, done.stdout) == (7, "")
    assert re.search(rf"\nerror: mine\.yaml:\d+:\d+: run\.data\.dir: there is no folder '{shell.cwd}/txt'\n{re.escape(hint)}$", done.stderr), done.stderr
    assert not shell.bench.store.folder("mine").path.exists()
    (shell.cwd / "file").touch()
    done = shell.run("submit", "mine.yaml", "--set", "run.data.dir=file", "-o", "json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"], error["code"], error["where"]) == (7, "job", 65, "--set: run.data.dir")
    assert error["message"] == f"'{shell.cwd}/file' is no folder"
    done = shell.run("submit", "mine.yaml", "--set", f"run.data.dir={'x' * 300}")
    assert (done.returncode, "there is no folder" in done.stderr) == (7, True)
    (shell.cwd / "txt").mkdir()
    assert shell.run("submit", "mine.yaml", "--wait-timeout", "30s").returncode == 0
    (shell.cwd / "txt").rmdir()
    assert "nothing was started" in shell.run("submit", "mine.yaml").stderr, "attaching to what has ended well needs no text"
    again = shell.run("submit", "mine.yaml", "--rerun")
    assert (again.returncode, shell.run("status", "mine").returncode) == (7, 0), "the earlier run is not put aside for nothing"


@pytest.mark.parametrize("words", [("chat", "tiny", "-p", "x"), ("serve", "tiny"), ("export", "tiny", "--to", "out")], ids=" ".join)
def test_a_stage_that_left_no_model_is_named_beside_those_that_did(shell: Shell, words: tuple[str, ...]) -> None:
    checkpoint = shell.bench.store.folder("tiny").path / "checkpoints" / "sft" / "step_000070"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    done = shell.run(*words, "--stage", "rl")
    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr == "error: tiny: there is no model of stage rl\nhint: it has: sft\n"
