"""What `calibrate` makes of a job that ran, wherever it ran."""

import datetime
import json
from dataclasses import replace
from pathlib import Path

import pytest

from nanochat_npu import calibration
from nanochat_npu.backends import JobState, JobView, WorkerView
from nanochat_npu.commands.calibrate import Seen, _enough_steps, record_of, short_run
from nanochat_npu.errors import UsageError
from nanochat_npu.estimate.actual import StepTimes
from nanochat_npu.estimating import job_versions, this_host
from nanochat_npu.jobs import home_dir
from nanochat_npu.load import load_spec
from nanochat_npu.main import main
from nanochat_npu.plan import Plan, make_plan

TODAY = datetime.date(2026, 11, 30)


def plan_of(source: str, *overrides: str) -> Plan:
    return make_plan(load_spec(source, overrides).spec, TODAY)


def times(plan: Plan, **more: float) -> StepTimes:
    return StepTimes(5.0, 5.1, 30, int(more.pop("tokens", plan.horizon.tokens_per_step)), 40e9)


EVENTS = [
    {"event": "stage", "stage": "tokenizer", "t": 130.0, "status": "start"},
    {"event": "stage", "stage": "pretrain", "t": 200.0, "status": "start"},
    {"event": "eval", "stage": "pretrain", "t": 250.0, "name": "bpb", "step": 0},
    {"event": "step", "stage": "pretrain", "t": 260.0, "step": 1, "dt_s": 10.0},
    {"event": "checkpoint", "stage": "pretrain", "t": 262.0, "save_s": 2.0, "size_bytes": 8e9, "step": 1},
    {"event": "eval", "stage": "pretrain", "t": 282.0, "name": "bpb", "step": 1},
]


def cluster_job() -> Seen:
    workers = (WorkerView(0, "d20-worker-0", "Succeeded", where="node-a"),)
    return Seen(JobView("calibrate-d20", "volcano", JobState.SUCCEEDED, started_s=100.0, workers=workers), EVENTS)


def test_a_job_on_a_cluster_is_kept_with_its_shape_its_node_and_its_versions() -> None:
    plan = plan_of("d20")
    record = record_of(plan, times(plan), cluster_job())
    assert (record.chip, record.stack, record.depth, record.world_size, record.nodes) == ("910B3", "eager", 20, 8, 1)
    assert record.versions == {"cann": plan.spec.image.cann, "torch_npu": plan.spec.image.torch_npu}
    assert record.host == "node-a"
    assert record.peak_bytes == 40e9


def test_what_a_run_spends_beside_its_steps_is_measured_too() -> None:
    plan = plan_of("d20")
    record = record_of(plan, times(plan), cluster_job())
    assert record.eval_tokens_per_s == pytest.approx(plan.run.pretrain.eval_tokens / 20.0)
    assert record.save_bytes_per_s == pytest.approx(4e9)
    assert record.start_s == pytest.approx(30.0 + (50.0 - 20.0))  # the first evaluation's own 20 s are no start-up


def test_the_time_until_the_processes_are_gone_is_kept_too() -> None:
    plan = plan_of("d20")
    seen = cluster_job()
    record = record_of(plan, times(plan), replace(seen, job=replace(seen.job, ended_s=285.0), load_others=1.5))
    assert (record.end_s, record.ended_s, record.ran_s, record.load_others) == (3.0, 285.0, 185.0, 1.5)


def test_a_run_that_says_little_is_kept_all_the_same() -> None:
    plan = plan_of("d20")
    record = record_of(plan, times(plan), Seen(JobView("x", "volcano", JobState.SUCCEEDED), []))
    assert (record.start_s, record.eval_tokens_per_s, record.save_bytes_per_s) == (None, None, None)


def test_a_job_of_another_batch_is_refused() -> None:
    plan = plan_of("d20")
    with pytest.raises(UsageError, match="tokens per step"):
        record_of(plan, times(plan, tokens=12_345), cluster_job())


def test_the_short_run_is_the_same_job_in_everything_that_decides_its_speed() -> None:
    plan = plan_of("d20")
    short = plan_of("d20", *short_run(plan, 40))
    assert (short.shape, short.horizon, short.world_size) == (plan.shape, plan.horizon, plan.world_size)
    assert short.run.pretrain.stop_at_step == 40
    assert short.name == "calibrate-d20"
    assert short.run.resume == "never"


def test_steps_that_are_over_in_a_blink_are_run_for_a_minute() -> None:
    assert _enough_steps(plan_of("d20"), 10) == (40, None)  # eight seconds each: 40 are plenty
    steps, session_s = _enough_steps(plan_of("tiny"), 10)
    assert steps > 40
    assert session_s == 150
    assert plan_of("tiny", *short_run(plan_of("tiny"), steps, session_s)).run.pretrain.max_session_s == 150


def test_nothing_would_be_left_of_too_few_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["calibrate", "tiny", "--steps", "10", "--drop", "9"])
    assert left.value.code == 2
    assert "--drop" in capsys.readouterr().err


def test_a_local_jobs_versions_are_those_that_are_installed_here() -> None:
    from importlib import metadata

    found = job_versions(plan_of("tiny"))
    assert found["torch"] == metadata.version("torch")
    assert found["processor"].endswith(f" x {this_host().cores}")
    assert set(found) == {"torch", "processor"}
    assert "processor" not in job_versions(plan_of("d20"))


def test_the_file_has_every_key_that_a_person_looks_for(tmp_path: Path) -> None:
    plan = plan_of("d20")
    value = json.loads(calibration.save(tmp_path, record_of(plan, times(plan), cluster_job())).read_text())
    assert value["tokens_per_s"] == pytest.approx(plan.horizon.tokens_per_step / 5.0)
    assert set(value) >= {"chip", "versions", "stack", "depth", "device_batch", "world_size", "tokens_per_s", "peak_bytes", "measured_on"}


def test_a_job_that_is_shorter_than_what_does_not_count_is_refused_before_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["calibrate", "tiny", "--yes", "--set", "run.pretrain.steps=8"])
    assert left.value.code == 2
    assert "of 8 steps, 10 do not count" in capsys.readouterr().err
    assert not (home_dir() / "jobs").exists()
