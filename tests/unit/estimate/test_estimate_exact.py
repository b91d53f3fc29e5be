"""Figures that published logs fix: parameters, FLOPs, memory verdicts, wall-clock overhead, links."""

import pytest
from estimate_jobs import job

from nanochat_npu.estimate import Stack, estimate
from nanochat_npu.estimate.hardware import CHIPS, hccs_bytes_per_s, link_bytes_per_s
from nanochat_npu.estimate.memory import memory
from nanochat_npu.estimate.recipes import RECIPES
from nanochat_npu.estimate.terms import CORE_TASKS, core_s, evaluations, overhead_s

LOGGED = [
    ("2026-01", 24, 32_768, 1_384_124_976, 4_945_112_064),
    ("2026-01", 26, 32_768, 1_681_790_292, 6_185_320_128),
    ("2026-01 full windows", 20, 32_768, 896_535_720, 3_240_119_040),
    ("2026-01 full windows", 32, 32_768, 2_818_580_544, 11_676_990_000),
    ("2025-10", 20, 65_536, 560_988_160, 3_491_758_080),
    ("2025-10", 32, 65_536, 1_879_048_192, 12_079_600_000),
    ("2026-03", 24, 32_768, 1_384_122_096, 4_860_160_128),
    ("2026-07", 24, 32_768, 1_384_122_122, 4_775_225_472),
]


@pytest.mark.parametrize(("recipe", "depth", "vocab", "total", "flops"), LOGGED)
def test_counts_equal_what_the_logs_print(recipe: str, depth: int, vocab: int, total: int, flops: int) -> None:
    counted = RECIPES[recipe].flops_per_token(depth, vocab)
    assert RECIPES[recipe].parameters(depth, vocab)[0] == total
    assert float(f"{counted:.6e}") == float(f"{flops:.6e}")  # the logs print seven digits


def test_todays_model_is_the_newest_recipe() -> None:
    assert job(24).shape.parameters.total == RECIPES["2026-07"].parameters(24, 32_768)[0]


VERDICTS = [
    (26, 4, 16, "oom", 96), (26, 4, 8, "fits", 55), (32, 8, 8, "oom", 78), (32, 8, 4, "fits", 50), (20, 8, 16, "oom", 64),
    (20, 8, 8, "fits", 35), (12, 8, 32, "oom", 74), (12, 8, 16, "fits", 38),
]


@pytest.mark.parametrize(("depth", "npus", "batch", "verdict", "gb"), VERDICTS)
def test_memory_verdict_on_a_64_gb_npu(depth: int, npus: int, batch: int, verdict: str, gb: float) -> None:
    found = memory(job(depth, npus, batch))
    assert found.verdict == verdict
    assert found.peak_bytes / 1e9 == pytest.approx(gb, abs=1.0)


@pytest.mark.parametrize(("depth", "batch", "mib"), [(20, 8, 33_720.95), (32, 4, 47_633.84)])
def test_memory_agrees_with_the_two_logged_peaks(depth: int, batch: int, mib: float) -> None:
    assert memory(job(depth, 16, batch, chip="910C")).peak_bytes == pytest.approx(mib * 2**20, rel=0.005)


def test_what_does_not_fit_names_the_largest_batch_that_does() -> None:
    found = memory(job(26, 4, 16))
    assert found.suggested_batch == 8
    assert memory(job(26, 4, found.suggested_batch)).verdict == "fits"


def test_a_batch_that_fits_gets_no_suggestion() -> None:
    assert memory(job(26, 4, 8)).suggested_batch is None


RUNS = [
    # train minutes, wall minutes, tokens/s, evaluations, tokens each, CORE evaluations, seconds each, start-up
    ("H100 d24", 179.44, 212.55, 813_443, 68, 10_485_760, 6, 270, 60),
    ("H100 d20 run 1", 193.6, 212.7, 965_988, 87, 10_485_760, 11, 55, 60),
    ("H100 d20 run 2", 175.9, 189.9, 1_063_384, 87, 10_485_760, 11, 55, 60),
    ("H100 d20 run 3", 190.0, 205.6, 984_034, 87, 10_485_760, 11, 55, 60),
    ("H100 d20 run 4", 189.6, 206.1, 986_318, 87, 10_485_760, 11, 55, 60),
    ("A3 d20", 494.1, 503.5, 293_600, 10, 20_971_520, 5, 43, 120),
    ("A3 d32, 1500 steps", 538.4, 562.6, 97_400, 8, 20_971_520, 8, 84, 204),
    ("A3 d32, 1000 steps", 358.9, 376.4, 97_400, 6, 20_971_520, 6, 84, 204),
    ("A3 d32, 1000 steps again", 358.9, 378.7, 97_400, 6, 20_971_520, 6, 84, 204),
]


@pytest.mark.parametrize("run", RUNS, ids=[run[0] for run in RUNS])
def test_wall_clock_overhead_is_within_two_percent(run: tuple[str, float, float, int, int, int, int, int, int]) -> None:
    _name, train, wall, speed, evals, tokens, cores, core_s, start = run
    beyond = overhead_s(tokens_per_s=speed, evals=evals, eval_tokens=tokens, cores=cores, core_each_s=core_s, start_s=start)
    assert train * 60 + beyond == pytest.approx(wall * 60, rel=0.02)


def test_number_of_validation_runs_is_upstreams() -> None:
    assert evaluations(16_704, 250) == 68
    assert evaluations(1_000, 0) == 2


@pytest.mark.parametrize(("npus", "gb_s"), [(2, 38), (4, 64), (8, 149), (16, 149), (3, 51)])
def test_four_npus_do_not_get_the_links_of_eight(npus: int, gb_s: float) -> None:
    assert hccs_bytes_per_s(npus) == pytest.approx(gb_s * 1e9)


def test_between_nodes_the_slow_link_decides() -> None:
    assert link_bytes_per_s("910B3", 2, 8) < link_bytes_per_s("910B3", 1, 8)
    assert link_bytes_per_s("910B3", 1, 1) == float("inf")


def test_communication_of_d26_is_what_the_law_says() -> None:
    four, eight, two_nodes = (estimate(job(26, n, 8, nodes=k)).rates.communication_s for n, k in ((4, 1), (8, 1), (8, 2)))
    assert (four, eight, two_nodes) == (pytest.approx(0.122, abs=0.002), pytest.approx(0.061, abs=0.001), pytest.approx(0.443, abs=0.005))


@pytest.mark.parametrize(("depth", "batch", "tokens_per_s"), [(20, 8, 18_350), (32, 4, 6_088)])
def test_eager_reproduces_the_two_runs_it_was_taken_from(depth: int, batch: int, tokens_per_s: float) -> None:
    speed = estimate(job(depth, 16, batch, chip="910C")).rates.tokens_per_s / 16
    assert speed == pytest.approx(tokens_per_s, rel=0.015)


def test_the_vendor_peak_of_a_910b3_counts_cube_and_vector_units() -> None:
    chip = CHIPS["910B3"]
    assert chip.cube_peak_flops == pytest.approx(20 * 16**3 * 2 * 1.8e9, rel=1e-3)
    assert chip.vendor_peak_flops == pytest.approx(20 * (16**3 + 2 * 128) * 2 * 1.8e9, rel=2e-3)


def test_the_seed_job_takes_the_hours_of_the_worked_example() -> None:
    hours = estimate(job(26, 4, 8, ratio=8.25)).hours
    assert hours.p50 == pytest.approx(61.7, rel=0.05)
    assert (hours.p10, hours.p90) == (pytest.approx(47.8, rel=0.06), pytest.approx(79.7, rel=0.06))


def test_a_stack_nobody_measured_gives_a_range_and_no_point() -> None:
    for stack in (Stack.UNKNOWN, Stack.GRAPH):
        found = estimate(job(stack=stack))
        assert found.tier == "D"
        assert found.hours.p50 is None
        assert found.cost.total is not None
        assert found.cost.total.p50 is None
        assert found.hours.p90 > 2 * found.hours.p10


def eval_hours(**more: object) -> float:
    settings = {"stages": ["pretrain", "eval"], **more}
    return sum(term.seconds for term in estimate(job(**settings)).terms if term.key == "eval.tasks") / 3600


def test_core_is_counted_where_it_runs() -> None:
    assert eval_hours() < 0.01
    whole = eval_hours(eval={"tasks": ["core"]})
    assert whole == pytest.approx(eval_hours(eval={"bundle": "core.zip"}))
    assert 0.1 < whole < 2
    assert eval_hours(eval={"tasks": ["core"], "max_per_task": 500}) == pytest.approx(whole * 11_000 / 55_000, rel=0.01)


def test_core_of_500_per_task_takes_what_the_a3_logs_say() -> None:
    d20, d32 = (core_s(CORE_TASKS * 488, 16, speed) for speed in (293_600, 97_400))
    assert (d20, d32) == (pytest.approx(43, rel=0.05), pytest.approx(84, rel=0.05))


def test_hccl_buffers_and_reserve_live_in_what_fits_keeps_free() -> None:
    four, one = (memory(job(26, npus, 8)) for npus in (4, 1))
    assert four.usable_bytes is not None
    assert sum(four.headroom.values()) == pytest.approx(0.15 * four.usable_bytes)
    assert four.headroom["hccl_buffers"] == 2 * 200 * 2**20
    assert one.headroom["hccl_buffers"] == 0
    assert four.peak_bytes + sum(four.headroom.values()) <= four.usable_bytes
    assert memory(job(4, 1, 1, chip="cpu", memory_bytes=2**34)).headroom == {}


def test_the_questions_of_source_toy_are_asked_before_training_and_in_eval() -> None:
    found = {term.key: term.seconds for term in estimate(job(2, 1, 1, chip="cpu", data={"source": "toy"}, stages=["pretrain", "eval"])).terms}
    assert found["pretrain.tasks"] == found["eval.tasks"] == pytest.approx(0.4)
    assert "pretrain.tasks" not in {term.key for term in estimate(job()).terms}
