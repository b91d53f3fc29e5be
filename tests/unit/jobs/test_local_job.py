"""A local job from its start to its end: restarts by the exit-code table, cancel, kill, and nothing left behind."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from job_bench import Bench, wait_until

from nanochat_npu import supervisor
from nanochat_npu.backends import JobState, Outcome
from nanochat_npu.backends.local import LocalBackend
from nanochat_npu.backends.local_view import view_of
from nanochat_npu.errors import JobExists
from nanochat_npu.jobs import JobFolder
from nanochat_npu.restarts import Decision, Settings, Why


def test_a_job_that_does_its_work_succeeds_and_leaves_nothing_running(bench: Bench) -> None:
    view = bench.end(bench.start())
    assert (view.state, view.exit_code, view.attempt) == (JobState.SUCCEEDED, 0, 0)
    assert bench.processes() == []


def test_every_node_has_a_launcher_with_its_own_log(bench: Bench) -> None:
    bench.end(bench.start(spec={"resources": {"nodes": 3, "npus_per_node": 2}}))
    attempt = bench.store.folder("job").path / "attempts" / "0"
    assert [(attempt / f"launcher{k}.log").read_text() for k in range(3)] == [f"node {k} of attempt 0 started\n" for k in range(3)]


@pytest.mark.parametrize("code", [65, 70, 78, 80, 81, 83, 2])
def test_a_final_code_ends_the_job_at_once(bench: Bench, code: int) -> None:
    view = bench.end(bench.start(codes=[code]))
    assert (view.state, view.exit_code, view.attempt) == (JobState.FAILED, code, 0)


def test_a_tracker_that_the_environment_names_is_not_taken_twice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spec has it already, or ``--set`` has overruled it (calibrate does); the trainer would let the environment win."""
    monkeypatch.setenv("NANOCHAT_LOGGER", "swanlab")
    bench.end(bench.start())
    assert (bench.store.folder("job").path / "attempts" / "0" / "logger").read_text() == "not set"


@pytest.mark.parametrize("code", [69, 75, 82, 1, 137])
def test_a_code_that_allows_it_restarts_the_job(bench: Bench, code: int) -> None:
    view = bench.end(bench.start(codes=[code, 0]))
    assert (view.state, view.attempt) == (JobState.SUCCEEDED, 1)


def test_failures_and_preemptions_are_counted_apart(bench: Bench) -> None:
    view = bench.end(bench.start(codes=[82, 69, 82, 0], spec={"retries": {"failures": 1, "preemptions": 2}}))
    assert (view.state, view.failures, view.preemptions) == (JobState.SUCCEEDED, 1, 2)


def test_one_failure_more_than_allowed_ends_the_job(bench: Bench) -> None:
    view = bench.end(bench.start(codes=[69], spec={"retries": {"failures": 1}}))
    assert (view.state, view.exit_code, view.attempt, view.failures) == (JobState.FAILED, 69, 1, 2)
    assert "failures: 2, retries.failures allows 1" in view.reason


def test_the_verdict_of_the_first_failing_rank_is_the_code_of_the_job(bench: Bench) -> None:
    view = bench.end(bench.start(codes=[69], verdict=65))
    assert (view.state, view.exit_code, view.attempt) == (JobState.FAILED, 65, 0)
    assert "bees" in view.reason


def test_when_one_node_fails_the_others_are_stopped(bench: Bench) -> None:
    view = bench.end(bench.start(codes=[65], only_node=1, spec={"resources": {"nodes": 2, "npus_per_node": 2}}))
    assert (view.state, view.exit_code) == (JobState.FAILED, 65)
    assert [worker.exit_code for worker in view.workers] == [82, 65]


def test_cancel_lets_the_job_save_its_work(bench: Bench) -> None:
    backend = bench.start(wait=True)
    job = bench.ready()
    backend.cancel("job")
    view = bench.end(backend)
    assert (view.state, view.exit_code) == (JobState.CANCELLED, 82)
    assert (view.failures, view.preemptions) == (0, 0)
    assert (job / "saved0").exists()


def test_cancel_now_ends_a_job_that_does_not_listen(bench: Bench) -> None:
    backend = bench.start(deaf=True, wait=True, child=True)
    bench.ready()
    backend.cancel("job")
    wait_until(lambda: backend.get("job").reason.startswith("the ranks are writing"), "the job says that it stops")
    backend.cancel("job", now=True)
    view = bench.end(backend)
    assert (view.state, view.exit_code) == (JobState.CANCELLED, 137)
    assert (view.failures, view.preemptions) == (0, 0)
    assert bench.processes() == []


def test_what_a_launcher_leaves_behind_is_killed(bench: Bench) -> None:
    bench.end(bench.start(child=True))
    assert bench.processes() == []


def test_a_killed_supervisor_is_noticed_and_leaves_no_orphan(bench: Bench) -> None:
    backend = bench.start(wait=True, spec={"resources": {"nodes": 2}})
    job = bench.ready(nodes=2)
    pid = bench.store.folder("job").supervisor_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    view = bench.end(backend)
    assert view.state is JobState.UNKNOWN
    wait_until(lambda: not bench.processes(), "launchers leave")
    assert (job / "saved0").exists()
    assert "supervisor was killed" in backend.get("job").reason


def test_a_shutdown_suspends_the_job_and_submitting_again_continues_it(bench: Bench) -> None:
    backend = bench.start(wait=True)
    bench.ready()
    pid = bench.store.folder("job").supervisor_pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    assert bench.end(backend).state is JobState.SUSPENDED
    again = bench.backend(codes=[0]).submit(bench.submission())
    assert again.outcome is Outcome.RESTARTED  # it had saved nothing yet
    view = bench.end(backend)
    assert (view.state, view.attempt) == (JobState.SUCCEEDED, 1)


def test_a_session_limit_suspends_the_job(bench: Bench) -> None:
    view = bench.end(bench.start(events=[{"event": "done", "reason": "session_limit", "resumable": True, "step": 5}]))
    assert (view.state, view.exit_code) == (JobState.SUSPENDED, 0)


def test_the_same_submission_attaches_to_a_running_job(bench: Bench) -> None:
    backend = bench.start(wait=True)
    bench.ready()
    assert backend.submit(bench.submission()).outcome is Outcome.ATTACHED
    assert bench.store.folder("job").attempts == [0]


def test_the_same_submission_attaches_to_a_job_that_succeeded(bench: Bench) -> None:
    backend = bench.start()
    bench.end(backend)
    assert backend.submit(bench.submission()).outcome is Outcome.ATTACHED


def test_another_submission_of_that_name_is_refused_and_changes_nothing(bench: Bench) -> None:
    backend = bench.start()
    bench.end(backend)
    before = (bench.store.folder("job").path / "run.json").read_text()
    with pytest.raises(JobExists, match="another submission") as caught:
        backend.submit(bench.submission(retries={"failures": 7}))
    assert "--rerun" in str(caught.value.hint)
    assert (bench.store.folder("job").path / "run.json").read_text() == before


def test_rerun_keeps_the_earlier_run_aside(bench: Bench) -> None:
    backend = bench.start(codes=[65])
    bench.end(backend)
    done = bench.backend().submit(bench.submission(rerun=True))
    assert done.outcome is Outcome.STARTED
    assert (bench.store.home / "archive" / "job" / "1" / "attempts" / "0").is_dir()
    assert bench.end(backend).state is JobState.SUCCEEDED


def test_rerun_refuses_while_the_job_runs(bench: Bench) -> None:
    backend = bench.start(wait=True)
    bench.ready()
    with pytest.raises(JobExists, match="running"):
        backend.submit(bench.submission(rerun=True))


def test_a_launcher_that_does_not_exist_fails_the_job_with_a_word(bench: Bench) -> None:
    backend = bench.backend()
    backend._command = ["/nonexistent/python"]
    backend.submit(bench.submission())
    view = bench.end(backend)
    assert view.state is JobState.FAILED
    assert "cannot be started" in view.reason


def test_another_nanochat_in_the_folder_where_one_stands_is_not_run(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nanochat", "nanochat_npu"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert bench.end(bench.start()).state is JobState.SUCCEEDED
    assert bench.backend().command[0] == sys.executable
    assert LocalBackend(bench.store).command[1:] == ["-P", "-m", "nanochat", "launch"]


def test_a_state_that_cannot_be_written_does_not_stop_the_job(bench: Bench) -> None:
    backend = bench.start(wait=True)
    job = bench.ready()
    state = job / "state.json"
    wait_until(lambda: '"pid"' in state.read_text(), "the launcher is noted")
    aside = job / "state.aside"
    state.rename(aside)
    state.mkdir()  # a folder in its place cannot be replaced by a file
    pid = bench.store.folder("job").supervisor_pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: (job / "saved0").exists(), "the job saves its work")
    wait_until(lambda: "cannot be written" in (job / "supervisor.log").read_text(), "the trouble is noted")
    state.rmdir()
    assert bench.end(backend).state is JobState.SUSPENDED


def test_the_last_state_stands_in_the_old_file_where_no_new_one_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the job must not read as if its supervisor had been killed."""
    folder = JobFolder(tmp_path)
    folder.state_file.write_text(json.dumps({"state": "RUNNING", "why": "running", "launchers": [{"node": 0, "pid": 17, "exit_code": None}] * 40}, indent=2))

    def full(path: Path, value: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(supervisor, "write_json", full)
    job = supervisor.Supervisor(folder, Settings(command=["x"], cwd="/"))
    assert job._end(Decision(JobState.FAILED, Why.FINAL_CODE), 78) is JobState.FAILED
    state = json.loads(folder.state_file.read_text())
    assert (state["state"], state["exit_code"]) == ("FAILED", 78)
    assert "No space left on device" in view_of(folder).reason


@pytest.mark.parametrize(("checkpoint", "says"), [
    (True, "stopped at once; submit the same spec again to go on from its newest checkpoint"),
    (False, "stopped at once, before its first checkpoint; submit the same spec again to begin anew"),
])
def test_a_job_that_was_stopped_at_once_says_what_there_is_to_go_on_from(tmp_path: Path, checkpoint: bool, says: str) -> None:
    """The first of two Ctrl-C may have written its checkpoint before the second one came."""
    folder = JobFolder(tmp_path)
    folder.state_file.write_text(json.dumps({"state": JobState.CANCELLED, "why": Why.CANCELLED_NOW, "exit_code": 82}))
    if checkpoint:
        step = tmp_path / "checkpoints" / "pretrain" / "step_000004"
        step.mkdir(parents=True)
        (step / "manifest.json").write_text("{}")
    assert view_of(folder).reason == says


def test_a_shell_with_the_jobs_variables_is_not_taken_for_the_job(bench: Bench) -> None:
    folder = bench.store.create("job", {})
    script = f"from pathlib import Path; from nanochat_npu import processes; print(processes.job_processes(Path({str(folder.path)!r})))"
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "NANOCHAT_JOB_DIR": str(folder.path)}, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
