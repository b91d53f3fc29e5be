"""Rates at the points where their shape changes, and that a session's end does not move them."""

import csv
from pathlib import Path

import pytest

from nanochat.schedule import FineTuneSchedule, LinearSchedule, PretrainSchedule


def test_pretraining_rates_are_upstreams_step_by_step() -> None:
    path = Path(__file__).parents[2] / "data" / "upstream_loss_d4_200steps.csv"
    with path.open() as file:
        printed = [float(row["lr_multiplier"]) for row in csv.DictReader(file)]
    schedule = PretrainSchedule(200)
    assert [schedule.at(step).lr_scale for step in range(200)] == pytest.approx(printed, abs=0.00501)


def test_pretraining_warms_up_from_one_step_and_ends_near_its_fraction() -> None:
    schedule = PretrainSchedule(1000, warmup_steps=40, warmdown_frac=0.65, final_lr_frac=0.05, weight_decay=0.2)
    assert schedule.at(0).lr_scale == 1 / 40 and schedule.at(39).lr_scale == 1.0
    assert schedule.at(350).lr_scale == 1.0 and schedule.at(351).lr_scale < 1.0
    assert schedule.at(1000).lr_scale == pytest.approx(0.05)
    assert schedule.at(675).lr_scale == pytest.approx(0.525)


def test_momentum_rises_for_400_steps_and_falls_in_the_warmdown() -> None:
    schedule = PretrainSchedule(2000)
    assert [schedule.at(s).momentum for s in (0, 200, 400, 700)] == pytest.approx([0.85, 0.91, 0.97, 0.97])
    assert schedule.at(2000).momentum == pytest.approx(0.90)


def test_weight_decay_follows_half_a_cosine() -> None:
    schedule = PretrainSchedule(100, weight_decay=0.4)
    assert [schedule.at(s).weight_decay for s in (0, 50, 100)] == pytest.approx([0.4, 0.2, 0.0])


@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_a_horizon_of_few_steps_has_sane_rates(steps: int) -> None:
    for step in range(steps):
        rates = PretrainSchedule(steps, weight_decay=0.1).at(step)
        assert 0 < rates.lr_scale <= 1 and 0.85 <= rates.momentum <= 0.97 and rates.weight_decay >= 0


def test_no_warmup_and_no_warmdown_are_constant() -> None:
    schedule = PretrainSchedule(10, warmup_steps=0, warmdown_frac=0.0)
    assert {schedule.at(step).lr_scale for step in range(10)} == {1.0}


def test_fine_tuning_starts_at_its_fraction_and_falls_to_its_end() -> None:
    schedule = FineTuneSchedule(100)
    assert [schedule.at(s).lr_scale for s in (0, 50, 75, 100)] == pytest.approx([0.8, 0.8, 0.4, 0.0])
    assert schedule.at(0).momentum == 0.85 and schedule.at(300).momentum == pytest.approx(0.95)
    assert schedule.at(0).weight_decay == 0
    assert FineTuneSchedule(100, warmup_frac=0.1).at(5).lr_scale == pytest.approx(0.4)


def test_reinforcement_learning_falls_linearly_to_nothing() -> None:
    assert [LinearSchedule(10, 0.05).at(s).lr_scale for s in (0, 5, 10)] == pytest.approx([0.05, 0.025, 0.0])
