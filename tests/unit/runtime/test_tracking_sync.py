"""Offline runs are uploaded later by the trackers' own libraries, here to loopback stand-ins of their services."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb

sys.path.insert(0, str(Path(__file__).parents[2]))
from fake_trackers import Arrived, services

from nanochat.contract import RunConfig, RunFile
from nanochat.errors import BadConfig, BadData, NotReady, UsageError
from nanochat.trackers import command, find_runs, read
from nanochat.trackers.runs import records
from nanochat.trackers.sync import SYNCED, Target, pending, sync
from nanochat.tracking import choose_backend

LOGGERS = ("swanlab", "wandb")
JOB, SUBMISSION = "tiny", "0123456789abcdef"
RUN = f"{JOB}-{SUBMISSION}"


def make_run(job: Path, logger: str, first: int, last: int) -> None:
    """One attempt, written by the tracker's own library."""
    run_file = RunFile(job=JOB, submission_id=SUBMISSION, run=RunConfig(tracking={"logger": logger, "mode": "offline", "project": "demo"}))
    job.mkdir(parents=True, exist_ok=True)
    (job / "run.json").write_text(run_file.model_dump_json())
    backend = choose_backend(run_file, job, {})
    assert backend is not None
    assert backend.open() is None
    for step in range(first, last + 1):
        backend.log("pretrain", step, {"loss": 1.0 / step, "tokens_per_s": 100.0 + step})
    backend.log("sft", last, {"pass@1": 0.5})
    backend.close()
    if logger == "wandb":  # its service writes the end of the file when the process ends, and attempts are processes
        wandb.teardown()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A job of two attempts for each tracker; the second begins where a checkpoint was, so step 3 is there twice."""
    home = os.environ.get("HOME")
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    try:
        folders = {}
        for logger in LOGGERS:
            folders[logger] = tmp_path_factory.mktemp(logger) / "job"
            make_run(folders[logger], logger, 1, 3)
            make_run(folders[logger], logger, 3, 5)
    finally:
        if home is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = home
    return folders


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arrived]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SWANLAB_API_KEY", "swan-key")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    with services() as (url, arrived):
        monkeypatch.setenv("SWANLAB_API_HOST", url)
        monkeypatch.setenv("WANDB_BASE_URL", url)
        yield arrived


@pytest.fixture(params=LOGGERS)
def logger(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def copy(job: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(job, tmp_path / "job", symlinks=True))


def test_all_attempts_arrive_as_one_run_and_are_sent_once(made, service, logger, tmp_path, monkeypatch, capsys):
    copy(made[logger], tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    job = Path("../job")
    assert command.main(["sync", "--job-dir", str(job)]) == 0
    assert "2 uploaded" in capsys.readouterr().out
    assert service.curve(logger, RUN, "pretrain/loss") == pytest.approx({step: 1.0 / step for step in range(1, 6)})
    assert service.curve(logger, RUN, "pretrain/tokens_per_s")[5] == 105.0
    assert {key for key in service.runs if key[0] == logger} == {(logger, RUN)}
    assert service.keys, "the key went along"
    assert service.unknown == [] or all("otel" in line for line in service.unknown)
    if logger == "wandb":  # nothing of the first attempt was written over by the second
        assert [row["step"] for row in service.rows[RUN]] == [1, 2, 3, 3, 3, 4, 5, 5]
        assert [row["_step"] for row in service.rows[RUN]] == list(range(8))
    before = len(service.log)
    assert command.main(["sync", "--job-dir", str(job)]) == 0
    assert "nothing to do: 2 of 2 uploaded before" in capsys.readouterr().out
    assert len(service.log) == before
    assert len(pending(job / "tracking", again=True)[0]) == 2
    noted = json.loads((job / "tracking" / SYNCED).read_text())
    noted[max(noted)]["bytes"] -= 10  # as if the run had gone on since
    (job / "tracking" / SYNCED).write_text(json.dumps(noted))
    assert [run.folder.name for run in pending(job / "tracking")[0]] == [max(noted)]
    assert list(Path().iterdir()) == [], "the trackers' programs leave nothing where the person stands"


def test_a_run_that_wandb_sent_while_it_was_written_is_left_alone(made, tmp_path):
    job = copy(made["wandb"], tmp_path)
    first = find_runs(job)[0].folder
    first.rename(first.with_name(first.name.removeprefix("offline-")))
    wanted, outcome = pending(job / "tracking")
    assert [run.folder.name.startswith("offline-") for run in wanted] == [True]
    assert outcome.kept == [first.name.removeprefix("offline-")]
    assert len(pending(job / "tracking", again=True)[0]) == 2


def test_an_endpoint_that_cannot_be_reached_is_said_and_nothing_is_lost(made, logger, tmp_path, monkeypatch, capsys):
    job = copy(made[logger], tmp_path)
    monkeypatch.setenv("SWANLAB_API_KEY", "k")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    for name in ("SWANLAB_API_HOST", "WANDB_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    before = sorted((path.relative_to(job).as_posix(), path.stat().st_size) for path in job.rglob("*"))
    assert command.main(["sync", "--job-dir", str(job)]) == 75
    said = capsys.readouterr().err
    assert f"{logger} cannot be reached" in said
    assert "http://127.0.0.1:9" in said
    assert "nothing is lost" in said
    assert "Traceback" not in said
    assert sorted((path.relative_to(job).as_posix(), path.stat().st_size) for path in job.rglob("*")) == before


def test_a_key_that_is_refused_is_an_error_and_the_run_stays_pending(made, service, tmp_path):
    service.refuse = "/api/login"
    job = copy(made["swanlab"], tmp_path)
    with pytest.raises(NotReady, match="did not take it"):
        sync(job / "tracking", Target(RUN), say=lambda _line: None)
    assert not (job / "tracking" / SYNCED).exists()
    assert len(pending(job / "tracking")[0]) == 2


def test_what_was_sent_and_cannot_be_noted_is_said(made, service, tmp_path, capsys):
    job = copy(made["swanlab"], tmp_path)
    (job / "tracking" / SYNCED).mkdir()
    assert command.main(["sync", "--job-dir", str(job)]) == 78
    assert capsys.readouterr().err == f"tracking sync: {job / 'tracking' / SYNCED}: Is a directory\n"
    assert service.curve("swanlab", RUN, "pretrain/loss")


def test_a_missing_key_is_named(made, logger, tmp_path, monkeypatch):
    name = {"swanlab": "SWANLAB_API_KEY", "wandb": "WANDB_API_KEY"}[logger]
    monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadConfig, match=name):
        sync(copy(made[logger], tmp_path) / "tracking", Target(RUN))


def test_a_missing_library_is_named_with_its_extra(made, logger, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, logger, None)
    with pytest.raises(UsageError, match=f"{logger} is not installed.*nanochat-npu"):
        sync(copy(made[logger], tmp_path) / "tracking", Target(RUN))


def test_a_folder_that_is_missing_or_holds_no_run_is_named(tmp_path, capsys):
    assert command.main(["sync", "--job-dir", str(tmp_path)]) == 65
    assert "nothing was tracked here" in capsys.readouterr().err
    (tmp_path / "tracking").mkdir()
    with pytest.raises(BadData, match="no run of SwanLab"):
        sync(tmp_path / "tracking", Target())


def test_files_of_both_trackers_give_the_same_curves(made):
    swanlab, wandb = (read.from_files(made[logger]) for logger in LOGGERS)
    assert {key: series.sorted() for key, series in swanlab.series.items()} == {key: series.sorted() for key, series in wandb.series.items()}
    assert swanlab.curve("pretrain", "loss") == [(step, 1.0 / step) for step in range(1, 6)]
    assert swanlab.curve("sft", "pass@1") == [(3, 0.5), (5, 0.5)]


def test_a_file_that_was_cut_off_is_read_up_to_there(made, logger, tmp_path):
    job = copy(made[logger], tmp_path)
    run = find_runs(job)[0]
    whole = list(records(run))
    content = run.file.read_bytes()
    for cut in range(7, len(content), 97):
        run.file.write_bytes(content[:cut])
        found = list(records(run))
        assert found == whole[: len(found)]
    run.file.write_bytes(b"")
    assert list(records(run)) == []
    run.file.write_bytes(b"GIF89a" + content)
    with pytest.raises(BadData, match="another version"):
        list(records(run))


def test_records_longer_than_a_block_are_put_together(tmp_path):
    """Written by SwanLab's own writer, whose framing W&B shares."""
    from swanlab.sdk.internal.core_python.store import DataStoreWriter

    from nanochat.trackers import OfflineRun, Tracker

    sent = [bytes([size % 251]) * size for size in (1, 32747, 32768, 5, 100_000, 32754, 0, 7)]
    writer = DataStoreWriter()
    writer.open(tmp_path / "run-x.swanlab")
    for raw in sent:
        writer.write(raw)
    writer.close()
    assert list(records(OfflineRun(Tracker.SWANLAB, tmp_path, tmp_path / "run-x.swanlab"))) == sent


def test_a_run_in_the_cloud_is_read_through_the_trackers_interface(service, logger, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    service.runs[(logger, "r1")] = 1
    if logger == "swanlab":
        service.points.update({(logger, "r1", "pretrain/loss", step): 2.0 / step for step in (1, 2, 3)})
        service.points[(logger, "r1", "sft/pass@1", 2)] = 0.25
    else:
        service.rows["r1"] = [{"step": step, "pretrain/loss": 2.0 / step} for step in (1, 2, 3)] + [{"step": 2, "sft/pass@1": 0.25}]
    report = read.from_cloud(f"{logger}:me/demo/r1")
    assert report.curve("pretrain", "loss") == [(1, 2.0), (2, 1.0), (3, pytest.approx(2 / 3))]
    assert report.curve("sft", "pass@1") == [(2, 0.25)]
    assert list(Path().iterdir()) == []


def test_a_run_that_the_cloud_does_not_have_is_an_error(service, logger):
    with pytest.raises((BadData, NotReady), match="me/demo/none"):
        read.from_cloud(f"{logger}:me/demo/none")


@pytest.mark.parametrize("address", ["swanlab:me/demo", "comet:me/demo/r1", "swanlab:", "wandb:a/b/c/d", "wandb:a//c"])
def test_an_address_that_names_no_run_is_refused(address):
    with pytest.raises(BadConfig, match="not a run in a cloud"):
        read.from_cloud(address)
