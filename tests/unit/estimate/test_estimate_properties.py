"""What must hold for every job, tried on generated ones."""

from dataclasses import replace

import pytest
from estimate_jobs import BAND, PRICE, job
from hypothesis import given, settings
from hypothesis import strategies as st

from nanochat.contract import Stage
from nanochat_npu.estimate import Electricity, Inputs, Price, Stack, Storage, estimate
from nanochat_npu.estimate.levers import levers
from nanochat_npu.estimate.memory import memory
from nanochat_npu.estimate.stages import STAGES

FEW = settings(max_examples=15, deadline=None)
depths = st.sampled_from([2, 4, 8, 12, 16, 20, 26, 32, 40])
npus = st.sampled_from([1, 2, 4, 8])
stacks = st.sampled_from([Stack.EAGER, Stack.FUSED])
chips = st.sampled_from(["910B1", "910B2", "910B3", "910B4", "910B", "910C"])


def quantiles(inputs: Inputs) -> tuple[float, float, float]:
    hours = estimate(inputs).hours
    assert hours.p50 is not None
    return hours.p10, hours.p50, hours.p90


@FEW
@given(depths, npus, stacks, st.integers(1, 50))
def test_more_tokens_never_take_less_time(depth: int, n: int, stack: Stack, steps: int) -> None:
    short, long = (job(depth, n, 1, stack=stack, pretrain={"steps": s, "tokens_per_step": 2**19}) for s in (steps * 100, steps * 137))
    assert all(a <= b for a, b in zip(quantiles(short), quantiles(long), strict=True))


@FEW
@given(st.sampled_from([2, 4, 8, 12, 16, 20, 26, 32]), npus, chips)
def test_more_depth_never_takes_less_time_memory_or_money(depth: int, n: int, chip: str) -> None:
    small, big = (estimate(job(d, n, 1, chip=chip)) for d in (depth, depth + 2))
    assert small.hours.p10 <= big.hours.p10
    assert small.hours.p90 <= big.hours.p90
    assert small.memory.peak_bytes < big.memory.peak_bytes
    assert small.cost.total is not None
    assert big.cost.total is not None
    assert small.cost.total.p90 <= big.cost.total.p90


@FEW
@given(depths, npus, st.floats(0.1, 50))
def test_cost_is_linear_in_the_price(depth: int, n: int, factor: float) -> None:
    base = estimate(job(depth, n, 1)).cost.total
    dearer = estimate(job(depth, n, 1, price=replace(PRICE, likely=PRICE.likely * factor))).cost.total
    assert base is not None
    assert dearer is not None
    assert dearer.p10 == pytest.approx(base.p10 * factor)
    assert dearer.p90 == pytest.approx(base.p90 * factor)


@FEW
@given(depths, npus, stacks, st.sets(st.sampled_from(list(Stage)), min_size=1), st.sampled_from([PRICE, BAND]))
def test_parts_sum_to_the_total(depth: int, n: int, stack: Stack, stages: set[Stage], price: Price) -> None:
    found = estimate(job(depth, n, 1, stack=stack, stages=sorted(stages), price=price, electricity=Electricity(0.7), storage=Storage(0.5)))
    assert found.hours.p50 is not None
    assert found.allowance_s is not None
    assert sum(term.seconds for term in found.terms) + found.allowance_s == pytest.approx(found.hours.p50 * 3600)
    assert found.cost.total is not None
    assert sum(line.amount or 0.0 for line in found.cost.lines) == pytest.approx(found.cost.total.p50, rel=1e-9)
    assert sum(found.memory.parts.values()) == pytest.approx(found.memory.peak_bytes)


@FEW
@given(depths, npus, stacks, chips)
def test_low_likely_and_high_are_in_order(depth: int, n: int, stack: Stack, chip: str) -> None:
    found = estimate(job(depth, n, 1, stack=stack, chip=chip, price=BAND))
    assert found.cost.total is not None
    for low, likely, high in ((found.hours.p10, found.hours.p50, found.hours.p90), (found.cost.total.p10, found.cost.total.p50, found.cost.total.p90)):
        assert likely is not None
        assert 0 < low <= likely <= high


@FEW
@given(st.sampled_from([12, 20, 26, 32]), st.sampled_from([1, 2, 4]))
def test_two_nodes_never_cost_less_than_the_ideal_of_one(depth: int, nodes: int) -> None:
    one, two = (estimate(job(depth, 8, 1, nodes=k, pretrain={"tokens_per_step": 2**20})) for k in (nodes, 2 * nodes))
    assert one.cost.total is not None
    assert two.cost.total is not None
    assert two.hours.p90 >= 0.5 * one.hours.p90
    assert two.cost.total.p10 >= one.cost.total.p10


def test_p90_of_cost_is_less_than_p90_of_time_times_p90_of_price() -> None:
    found = estimate(job(price=BAND))
    assert found.cost.total is not None
    p90_price = 5.6 - (0.1 * (5.6 - 2.3) * (5.6 - 3.0)) ** 0.5  # of the triangle 2.3, 3.0, 5.6
    assert found.cost.total.p90 < 0.97 * found.hours.p90 * found.inputs.billed_npus * p90_price


def test_no_price_is_no_total_and_never_zero() -> None:
    cost = estimate(job(price=None)).cost
    assert cost.total is None
    assert cost.lines[0].unit_price is None
    assert cost.lines[0].amount is None


def test_a_currency_is_carried_through() -> None:
    assert estimate(job(price=Price(0.7, "USD"))).cost.currency == "USD"


def test_whole_nodes_are_billed_where_the_cluster_allots_them() -> None:
    shared, whole = (estimate(job(npus=4, billed_per_node=k)).cost.total for k in (4, 8))
    assert shared is not None
    assert whole is not None
    assert whole.p90 == pytest.approx(2 * shared.p90)


def test_the_same_inputs_give_the_same_digits() -> None:
    assert estimate(job()).draws_h == estimate(job()).draws_h


def test_ten_thousand_draws_are_drawn() -> None:
    assert len(estimate(job()).draws_h) == 10_000


def test_every_stage_has_its_terms() -> None:
    assert set(STAGES) == set(Stage)


def test_saving_only_at_the_end_makes_failures_dearer() -> None:
    often = estimate(job(26, 8, 8, checkpoint={"every_minutes": 30}))
    never = estimate(job(26, 8, 8, checkpoint={"every_minutes": None}))
    assert never.failures.lost_frac > 10 * often.failures.lost_frac
    assert max(never.draws_h) > max(often.draws_h)


def test_levers_are_computed_for_this_job() -> None:
    found = {lever.key: lever for lever in levers(estimate(job(26, 4, 8)))}
    assert found["fused"].hours_frac == pytest.approx(-0.56, abs=0.05)
    assert found["whole_node"].hours_frac == pytest.approx(-0.5, abs=0.03)
    assert abs(found["whole_node"].money or 0) < 0.1 * abs(found["fused"].money or 0)
    assert found["eval_interval"].change == "run.pretrain.eval_every=1000"


def test_a_lever_says_what_the_changed_job_would_take() -> None:
    before, after = (estimate(job(26, 4, 8, pretrain={"eval_every": k})) for k in (250, 1000))
    lever = next(lever for lever in levers(before) if lever.key == "eval_interval")
    assert lever.hours == pytest.approx((after.likely_s - before.likely_s) / 3600)


def test_no_lever_proposes_what_the_job_already_does() -> None:
    assert "fused" not in {lever.key for lever in levers(estimate(job(stack=Stack.FUSED)))}
    assert "whole_node" not in {lever.key for lever in levers(estimate(job(npus=8)))}


def test_memory_of_a_cpu_job_without_a_stated_limit_is_not_judged() -> None:
    found = memory(job(4, 1, 1, chip="cpu"))
    assert found.usable_bytes is None
    assert found.verdict == "fits"
