"""Trackers: real ones, offline and without an account; dead and slow ones, which must cost a warning and nothing else."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from nanochat import tracking
from nanochat.contract import RunConfig, RunFile
from nanochat.contract.events import parse_lines
from nanochat.errors import BadConfig
from nanochat.eventlog import EventLog
from nanochat.tracking import ENV_LOGGER, Tracker, choose_backend


def run_file(logger: str, mode: str = "offline") -> RunFile:
    return RunFile(job="tiny", submission_id="0123456789abcdef", run=RunConfig(tracking={"logger": logger, "mode": mode}))


class Recorder:
    def __init__(self) -> None:
        self.points: list[tuple[str, int, dict[str, float]]] = []

    def open(self) -> None: ...
    def close(self) -> None: ...
    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        self.points.append((stage, step, dict(values)))


class Dead(Recorder):
    def open(self) -> None:
        raise ConnectionRefusedError("no route to the tracker")


class Stuck(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def open(self) -> None:
        self.gate.wait()


@pytest.fixture
def events(tmp_path: Path) -> Iterator[EventLog]:
    log = EventLog(tmp_path / "events.jsonl")
    log.stage = "pretrain"
    yield log
    log.close()


def written(tmp_path: Path) -> list[dict]:
    return list(parse_lines((tmp_path / "events.jsonl").read_text().splitlines()))


def emit_steps(events: EventLog, count: int) -> None:
    for step in range(1, count + 1):
        events.emit("step", step=step, steps=count, loss=1.0 / step, mfu_frac=None)


def test_every_nth_step_and_the_last_and_all_evaluations_are_sent(events):
    recorder = Recorder()
    tracker = Tracker(recorder, events, every_steps=10)
    emit_steps(events, 25)
    events.emit("eval", step=25, name="bpb", value=0.5)
    tracker.close()
    assert [(stage, step) for stage, step, _ in recorder.points] == [("pretrain", s) for s in (10, 20, 25, 25)]
    assert recorder.points[0][2] == {"loss": 0.1}
    assert recorder.points[-1][2] == {"bpb": 0.5}


def test_what_stage_eval_measures_is_kept_by_the_model_it_measured(events):
    """Fine-tuning counts its steps anew: under one name the second value would lie before the first, where SwanLab leaves it out."""
    recorder = Recorder()
    tracker = Tracker(recorder, events)
    events.stage = "eval"
    events.emit("eval", step=150, name="bpb", value=0.5, model="pretrain")
    events.emit("eval", step=70, name="bpb", value=0.6, model="sft")
    tracker.close()
    assert recorder.points == [("eval-pretrain", 150, {"bpb": 0.5}), ("eval-sft", 70, {"bpb": 0.6})]


def test_a_dead_tracker_is_one_warning(events, tmp_path):
    tracker = Tracker(Dead(), events, every_steps=1)
    emit_steps(events, 50)
    tracker.close()
    warnings = [event for event in written(tmp_path) if event["event"] == "warning"]
    assert len(warnings) == 1
    assert warnings[0]["code"] == "tracker_failed"
    assert "no route to the tracker" in warnings[0]["message"]
    assert sum(event["event"] == "step" for event in written(tmp_path)) == 50


def test_a_stuck_tracker_never_holds_training_up(events, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "QUEUE_LENGTH", 20)
    stuck = Stuck()
    tracker = Tracker(stuck, events, every_steps=1)
    emit_steps(events, 100)
    assert sum(event["event"] == "step" for event in written(tmp_path)) == 100
    assert "does not keep up" in next(event["message"] for event in written(tmp_path) if event["event"] == "warning")
    stuck.gate.set()
    tracker.close()


def test_swanlab_offline_writes_a_run_without_an_account(events, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SWANLAB_API_KEY", raising=False)
    backend = choose_backend(run_file("swanlab"), tmp_path, {})
    tracker = Tracker(backend, events, every_steps=1)
    emit_steps(events, 5)
    tracker.close()
    assert not [event for event in written(tmp_path) if event["event"] == "warning"]
    assert list((tmp_path / "tracking").rglob("*.swanlab")), "swanlab sync needs this file"


def test_wandb_offline_writes_a_run_without_an_account(events, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    backend = choose_backend(run_file("wandb"), tmp_path, {})
    tracker = Tracker(backend, events, every_steps=1)
    emit_steps(events, 5)
    tracker.close()
    assert not [event for event in written(tmp_path) if event["event"] == "warning"]
    assert list((tmp_path / "tracking").rglob("*.wandb")), "wandb sync needs this file"


def test_the_environment_goes_before_the_spec(tmp_path):
    assert choose_backend(run_file("swanlab"), tmp_path, {ENV_LOGGER: "none"}) is None
    assert type(choose_backend(run_file("none"), tmp_path, {ENV_LOGGER: "wandb"})).__name__ == "WandB"


def test_an_unknown_tracker_is_named(tmp_path):
    with pytest.raises(BadConfig, match="tensorboard"):
        choose_backend(run_file("none"), tmp_path, {ENV_LOGGER: "tensorboard"})
