"""The state folder: shared without harm, read without trust."""

import json
import os
import threading
from pathlib import Path

import pytest
from job_bench import Bench, wait_until

from nanochat_npu import jobs
from nanochat_npu.backends import JobState, Outcome, Submitted
from nanochat_npu.errors import ClusterError, JobExists, JobNotFound, NanochatNpuError
from nanochat_npu.jobs import Receipt, Store


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"NANOCHAT_NPU_HOME": "/srv/jobs", "XDG_STATE_HOME": "/x"}, "/srv/jobs"),
        ({"XDG_STATE_HOME": "/x"}, "/x/nanochat-npu"),
    ],
)
def test_the_state_folder_follows_the_environment(environ: dict[str, str], home: str) -> None:
    assert jobs.home_dir(environ) == Path(home)


def test_the_default_state_folder_is_in_the_home_folder() -> None:
    assert jobs.home_dir({}) == Path.home() / ".local" / "state" / "nanochat-npu"


def test_an_unknown_name_gets_the_nearest_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.create("d20-baseline", {})
    with pytest.raises(JobNotFound) as caught:
        store.existing("d20-basline")
    assert "d20-baseline" in str(caught.value.hint)
    assert caught.value.details == {"did_you_mean": "d20-baseline"}


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", ".", "-x", "A", "a\n"])
def test_a_name_that_no_job_can_have_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(JobNotFound):
        Store(tmp_path).existing(name)


def test_a_lock_is_free_again_when_its_holder_is_gone(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    held = jobs.take_lock(lock)
    assert held is not None
    assert jobs.is_locked(lock)
    assert jobs.take_lock(lock) is None
    os.close(held)
    assert not jobs.is_locked(lock)


def test_a_state_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ClusterError, match="cannot write") as caught, Store(blocked).lock("job"):
        pass
    assert "NANOCHAT_NPU_HOME" in str(caught.value.hint)


def test_creating_a_folder_that_exists_leaves_it_and_no_trace(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.create("job", {"run.json": "first"})
    with pytest.raises(ClusterError):
        store.create("job", {"run.json": "second"})
    assert (tmp_path / "jobs" / "job" / "run.json").read_text() == "first"
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["job"]


def test_archives_are_numbered_one_after_the_other(tmp_path: Path) -> None:
    store = Store(tmp_path)
    kept = [store.archive(store.create("job", {"n": str(number)})) for number in range(2)]
    assert [(path.name, (path / "n").read_text()) for path in kept] == [("1", "0"), ("2", "1")]


def test_a_receipt_survives_its_own_json() -> None:
    receipt = Receipt(job="a", submission_id="b", submitted_s=3.0, origin=["submit", "x"], versions={"nanochat-npu": "1"})
    assert Receipt.of(json.loads(json.dumps(receipt.as_json()))) == receipt


@pytest.mark.parametrize("value", [{}, {"job": 3, "versions": [], "submitted_s": "x", "novel": 1}, {"details": None}])
def test_a_receipt_is_read_from_anything(value: dict[str, object]) -> None:
    assert Receipt.of(value) == Receipt()


GARBAGE = [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe\x00", b'{"state": ["RUNNING"], "attempt": "x", "launchers": {"a": 1}, "attempts": 3}', b'"' * 10_000]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", ["state.json", "receipt.json", "run.json", "supervisor.json", "intent.json", "supervisor.lock"])
def test_a_job_whose_files_are_damaged_is_still_shown(bench: Bench, name: str, garbage: bytes) -> None:
    folder = bench.store.create("job", {"state.json": '{"state": "SUCCEEDED", "why": "finished"}'})
    (folder.path / name).write_bytes(garbage)
    view = bench.backend().get("job")
    assert view.name == "job"
    assert view.state in (JobState.SUCCEEDED, JobState.UNKNOWN)


def test_an_empty_folder_is_a_job_of_which_nothing_is_known(bench: Bench) -> None:
    bench.store.create("job", {})
    assert [(view.name, view.state) for view in bench.backend().jobs()] == [("job", JobState.UNKNOWN)]


def _submit_at_once(bench: Bench, changes: list[dict[str, object]]) -> list[Submitted | NanochatNpuError]:
    """What each of several submissions of one name came to, all sent at the same moment."""
    answers: list[Submitted | NanochatNpuError] = []
    gate = threading.Barrier(len(changes))

    def submit(change: dict[str, object]) -> None:
        backend, submission = bench.backend(wait=True), bench.submission(**change)
        gate.wait()
        try:
            answers.append(backend.submit(submission))
        except NanochatNpuError as error:
            answers.append(error)

    threads = [threading.Thread(target=submit, args=(change,)) for change in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_of_two_equal_submissions_at_once_one_starts_and_one_attaches(bench: Bench) -> None:
    answers = _submit_at_once(bench, [{}, {}])
    assert sorted(answer.outcome for answer in answers if isinstance(answer, Submitted)) == [Outcome.ATTACHED, Outcome.STARTED]
    bench.ready()
    wait_until(lambda: len(bench.processes()) == 1, "exactly one launcher runs")


def test_of_two_different_submissions_at_once_one_wins_and_one_says_so(bench: Bench) -> None:
    answers = _submit_at_once(bench, [{"retries": {"failures": 1}}, {"retries": {"failures": 2}}])
    assert [type(answer) for answer in sorted(answers, key=lambda each: isinstance(each, JobExists))] == [Submitted, JobExists]


@pytest.mark.parametrize("kind", ["file", "loop"])
def test_a_folder_of_jobs_that_cannot_be_read_is_not_empty(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from nanochat_npu.locate import job_names
    from nanochat_npu.main import main

    monkeypatch.setenv("NANOCHAT_NPU_HOME", str(tmp_path))
    assert Store(tmp_path).names() == []
    assert Store(tmp_path / "jobs" / "below").names() == []
    if kind == "file":
        (tmp_path / "jobs").touch()
    else:
        (tmp_path / "jobs").symlink_to("jobs")
    with pytest.raises(ClusterError, match="the folder of jobs cannot be read") as caught:
        Store(tmp_path).names()
    assert caught.value.where == str(tmp_path / "jobs")
    assert job_names("") == [], "completion says nothing"
    with pytest.raises(SystemExit) as end:
        main(["list"])
    assert end.value.code == 6
    assert "no jobs" not in capsys.readouterr().err


def test_a_job_that_the_ledger_lacks_is_not_said_to_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from nanochat_npu.main import main

    monkeypatch.setenv("NANOCHAT_NPU_HOME", str(tmp_path))
    (tmp_path / "jobs" / "old").mkdir(parents=True)
    with pytest.raises(SystemExit) as end:
        main(["cost", "report", "--job", "old"])
    assert end.value.code == 6
    assert "old: this job is not in the ledger" in capsys.readouterr().err
    (tmp_path / "ledger.db").symlink_to("ledger.db")
    with pytest.raises(SystemExit) as end:
        main(["cost", "report"])
    assert end.value.code == 6
    assert "the ledger cannot be used" in capsys.readouterr().err
