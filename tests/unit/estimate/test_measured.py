"""Calibrations and past jobs: which one serves a plan, what tier it gives, and how far one outlier reaches."""

import datetime
import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from estimate_jobs import job

from nanochat_npu import calibration
from nanochat_npu.errors import UsageError
from nanochat_npu.estimate import Calibration, Inputs, Knowledge, estimate, history, match
from nanochat_npu.estimate.contention import contention
from nanochat_npu.estimating import Host, others_load


def record_for(inputs: Inputs, step_s: float = 5.0, **more: object) -> Calibration:
    base = Calibration(
        chip=inputs.chip, stack=str(inputs.stack), depth=inputs.shape.depth, width=inputs.shape.width, device_batch=inputs.run.pretrain.device_batch,
        tokens_per_step=inputs.horizon.tokens_per_step, sequence_len=inputs.shape.sequence_len, vocab=inputs.shape.padded_vocab,
        world_size=inputs.world_size, nodes=inputs.nodes, window_pattern=inputs.run.model.window_pattern, step_s=step_s, mean_step_s=step_s, steps=30,
        measured_on="2026-11-30", versions={"torch_npu": "2.12.0"}, host="node-a",
    )
    return replace(base, **more)  # type: ignore[arg-type]


def known(*records: Calibration, **more: object) -> Knowledge:
    return Knowledge(calibrations=records, **more)  # type: ignore[arg-type]


def test_the_same_shape_is_tier_a_and_takes_what_was_measured() -> None:
    found = estimate(job(), known(record_for(job(), 5.0)))
    assert found.tier == "A"
    assert found.rates.step_s == pytest.approx(5.0)
    assert found.hours.p50 is not None
    assert found.hours.p90 / found.hours.p50 < 1.12


def test_another_depth_is_tier_b_and_keeps_the_ratio() -> None:
    plain_d20, plain_d26 = (estimate(job(depth)).rates.step_s for depth in (20, 26))
    found = estimate(job(26), known(record_for(job(20), 1.5 * plain_d20)))
    assert found.tier == "B"
    assert found.rates.step_s == pytest.approx(1.5 * plain_d26)


def test_the_tiers_get_wider_as_less_is_known() -> None:
    widths = []
    for knowledge in (known(record_for(job(26))), known(record_for(job(20))), Knowledge()):
        hours = estimate(job(26), knowledge).hours
        widths.append(math.log(hours.p90 / hours.p10))
    assert widths == sorted(widths)
    assert widths[0] < 0.5 * widths[2]


@pytest.mark.parametrize("change", [{"device_batch": 4}, {"world_size": 16, "nodes": 2}, {"window_pattern": "SSSL"}, {"tokens_per_step": 2**19}])
def test_whatever_changes_the_step_leaves_tier_a(change: dict[str, object]) -> None:
    assert match(job(), [record_for(job(), **change)]).tier == "B"


@pytest.mark.parametrize(("change", "reason"), [({"chip": "910B2"}, "chip:910B2"), ({"stack": "fused"}, "stack:fused")])
def test_a_calibration_of_another_chip_or_stack_is_passed_over_by_name(change: dict[str, object], reason: str) -> None:
    found = match(job(), [record_for(job(), **change)])
    assert (found.tier, found.calibration, found.passed_over) == ("C", None, (reason,))


def test_a_calibration_of_another_version_is_passed_over_by_name() -> None:
    found = match(job(), [record_for(job())], {"torch_npu": "2.13.0"})
    assert (found.tier, found.passed_over) == ("C", ("torch_npu:2.12.0",))


def test_the_newest_of_two_equal_ones_counts() -> None:
    old, new = record_for(job(), 9.0, measured_on="2026-01-01"), record_for(job(), 5.0)
    assert match(job(), [new, old]).calibration == new


def test_the_nearest_depth_counts() -> None:
    near, far = record_for(job(24)), record_for(job(12))
    assert match(job(26), [far, near]).calibration == near


def test_host_stalls_make_the_mean_count() -> None:
    stalling = record_for(job(), 5.0, mean_step_s=6.0)
    assert stalling.stalls
    assert estimate(job(), known(stalling)).rates.step_s == pytest.approx(6.0)
    assert estimate(job(), known(replace(stalling, mean_step_s=5.1))).rates.step_s == pytest.approx(5.0)


def test_a_cheap_calibration_is_trusted_less() -> None:
    sure, cheap = (estimate(job(), known(record_for(job(), cheap=flag))).hours for flag in (False, True))
    assert cheap.p90 / cheap.p10 > sure.p90 / sure.p10


def test_a_computer_whose_speed_wanders_makes_a_forecast_unsure() -> None:
    quiet, shared = (estimate(job(), known(record_for(job(), drift_ln_sd=drift))).hours for drift in (0.005, 0.2))
    assert quiet.p90 / quiet.p10 < 1.12
    assert shared.p90 / shared.p10 > 1.5


def test_measured_memory_replaces_the_model() -> None:
    found = estimate(job(), known(record_for(job(), peak_bytes=60e9))).memory
    assert found.measured
    assert found.peak_bytes == pytest.approx(60e9)
    assert found.verdict == "tight"


@pytest.mark.parametrize("peak", [1e9, 30e9, 60e9])
def test_the_parts_of_a_measured_peak_sum_to_it(peak: float) -> None:
    found = estimate(job(), known(record_for(job(), peak_bytes=peak))).memory
    assert sum(found.parts.values()) == pytest.approx(peak)
    assert min(found.parts.values()) >= 0


def test_a_job_of_unknown_stack_gets_a_point_once_it_is_calibrated() -> None:
    from nanochat_npu.estimate import Stack

    graph = job(stack=Stack.GRAPH)
    found = estimate(graph, known(record_for(graph)))
    assert found.tier == "A"
    assert found.hours.p50 is not None


def test_ones_own_history_shifts_and_narrows() -> None:
    plain, taught = estimate(job()), estimate(job(), Knowledge(past={"C": [1.2] * 20}))
    assert plain.hours.p50 is not None
    assert taught.hours.p50 is not None
    assert 1.08 < taught.hours.p50 / plain.hours.p50 < 1.2
    assert taught.allowance_s == pytest.approx(plain.allowance_s or 0, rel=0.6)  # it is in the terms, not in the allowance
    assert taught.hours.p90 / taught.hours.p10 < plain.hours.p90 / plain.hours.p10


def test_one_outlier_moves_the_interval_little() -> None:
    steady = history([1.0, 1.02, 0.98, 1.01, 0.99, 1.0, 1.03, 0.97, 1.0, 1.0], 0.2)
    upset = history([1.0, 1.02, 0.98, 1.01, 0.99, 1.0, 1.03, 0.97, 1.0, 40.0], 0.2)
    assert abs(upset.bias - steady.bias) < 0.02
    assert upset.ln_sd < 1.1 * steady.ln_sd
    assert steady.ln_sd < 0.2


def test_no_history_changes_nothing() -> None:
    assert history([], 0.2).ln_sd == 0.2
    assert history([0.0, -1.0], 0.2).jobs == 0


def test_a_stored_calibration_comes_back(tmp_path: Path) -> None:
    record = record_for(job(), peak_bytes=1e9, start_s=30.0)
    path = calibration.save(tmp_path, record)
    assert calibration.read_file(path) == record
    assert calibration.load_all(tmp_path) == ([record], [])


def test_measuring_again_replaces_the_file(tmp_path: Path) -> None:
    paths = {calibration.save(tmp_path, record_for(job(), step_s)) for step_s in (4.0, 5.0)}
    assert len(paths) == 1
    assert calibration.load_all(tmp_path)[0][0].step_s == 5.0


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [("step_s", -1, "step_s"), ("step_s", "fast", "step_s"), ("depth", 0, "depth"), ("chip", "H100", "H100"), ("format", 9, "9"), ("host", None, "host"), ("peak_bytes", float("1e30"), "peak_bytes")],
)
def test_a_file_that_is_no_calibration_is_skipped_by_name(tmp_path: Path, field: str, value: object, named: str) -> None:
    folder = tmp_path / calibration.FOLDER
    folder.mkdir()
    wrong = {"format": 1, **asdict(record_for(job())), field: value}
    (folder / "wrong.json").write_text(json.dumps(wrong))
    records, problems = calibration.load_all(tmp_path)
    assert records == []
    assert "wrong.json" in problems[0]
    assert named in problems[0]


def test_a_calibration_file_that_is_named_must_be_one(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{ not json")
    with pytest.raises(UsageError, match="not a calibration"):
        calibration.read_file(path)


def on_cores(load: float | None, cores: float = 2.0) -> Inputs:
    return job(4, 1, 1, chip="cpu", cores_per_rank=cores, load_others=load, pretrain={"steps": 100, "tokens_per_step": 2048})


def shared_record(load: float = 4.0, **more: object) -> Calibration:
    """A calibration whose fastest steps took a second and whose mean was twice that."""
    return record_for(on_cores(load), 2.0, quick_step_s=1.0, load_others=load, **more)


def others_s(load: float | None, record: Calibration) -> float:
    return sum(term.seconds for term in estimate(on_cores(load), known(record)).terms if term.key == "load.others")


def test_more_load_than_at_the_calibration_takes_longer_and_less_takes_less() -> None:
    record = shared_record(4.0)
    assert others_s(0.0, record) < others_s(4.0, record) < others_s(20.0, record)
    assert others_s(0.0, record) < -10.0
    assert others_s(20.0, record) > 10.0


def test_the_speed_stays_what_was_measured_whatever_the_load_is_now() -> None:
    assert estimate(on_cores(12.0), known(shared_record())).rates.step_s == pytest.approx(2.0)


def test_a_calibration_among_others_is_less_sure_than_one_alone() -> None:
    alone = record_for(on_cores(0.0), 2.0, quick_step_s=1.95, load_others=0.0)
    quiet, busy = (estimate(on_cores(load), known(record)).hours for load, record in ((0.0, alone), (4.0, shared_record(4.0))))
    assert quiet.p90 / quiet.p10 < 1.4
    assert busy.p90 / busy.p10 > 2


def test_the_load_of_this_minute_counts_little_in_a_long_job() -> None:
    short, long = (contention(on_cores(8.0), shared_record(4.0), seconds) for seconds in (600.0, 86_400.0))
    assert short is not None
    assert long is not None
    assert short.factor < 0.95
    assert long.factor == pytest.approx(1.0, abs=0.02)


def test_the_load_is_a_named_input_of_the_estimate() -> None:
    (term,) = [term for term in estimate(on_cores(8.0), known(shared_record(4.0))).terms if term.key == "load.others"]
    assert (term.values["load_calibrated"], term.values["load_now"]) == (4.0, 8.0)
    uncalibrated = [term for term in estimate(on_cores(8.0)).terms if term.key == "load.others"]
    assert uncalibrated[0].values["load_now"] == 8.0


def test_nothing_is_said_of_others_on_npus_or_where_nobody_looked() -> None:
    assert estimate(job(load_others=8.0), known(record_for(job(), quick_step_s=1.0))).contention is None
    assert estimate(on_cores(None)).contention is None
    assert others_s(None, shared_record()) == 0.0


def test_our_own_job_that_has_just_ended_is_not_taken_for_others() -> None:
    host = Host(cores=2, load=4.0)
    assert others_load(host, [], 1000.0).load == 4.0
    assert others_load(host, [(995.0, 300.0)], 1000.0).load == pytest.approx(4.0 - 1.38, abs=0.02)
    assert others_load(host, [(100.0, 300.0)], 1000.0).load == 4.0  # long ago
    assert others_load(Host(cores=64, load=1.0), [(999.0, 300.0)], 1000.0).load == 0.0
    assert others_load(Host(cores=2), [(999.0, 300.0)], 1000.0).load is None


def test_what_was_seen_of_others_is_kept_in_the_file(tmp_path: Path) -> None:
    record = shared_record(0.0, end_s=0.0, ended_s=1.7e9, ran_s=60.0)
    assert calibration.read_file(calibration.save(tmp_path, record)) == record


@pytest.mark.parametrize(
    ("field", "value", "named"), [("measured_on", "2199-01-01", "2199-01-01"), ("measured_on", "yesterday", "yesterday"), ("device_batch", 8.5, "device_batch"), ("nodes", True, "nodes")]
)
def test_a_calibration_that_cannot_be_true_is_refused_by_name(tmp_path: Path, field: str, value: object, named: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"format": 1, **asdict(record_for(job())), field: value}))
    with pytest.raises(UsageError, match=named):
        calibration.read_file(path)


def test_a_calibration_from_where_it_is_tomorrow_already_can_be_true(tmp_path: Path) -> None:
    tomorrow = (datetime.date.today() + datetime.timedelta(days=1)).isoformat()
    record = record_for(job(), measured_on=tomorrow)
    assert calibration.read_file(calibration.save(tmp_path, record)).measured_on == tomorrow


@pytest.mark.parametrize(("content", "said"), [(b"{ not json", "not JSON"), (b"[1]", "no JSON object"), (b"\xff\xfe", "not JSON"), (None, "No such file")])
def test_what_is_wrong_with_a_calibration_file_is_said(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        calibration.read_file(path)


def test_a_calibration_faster_than_its_chip_can_be_is_passed_over() -> None:
    found = match(job(), [record_for(job(), 1e-6)])
    assert (found.tier, found.calibration) == ("C", None)
    assert found.passed_over[0].startswith("impossible:")
