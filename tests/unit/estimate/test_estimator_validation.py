"""The formula against published throughputs, whole architectures left out."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nanochat_npu.estimate.fit import Observation, fit_all
from nanochat_npu.estimate.linear import nonnegative_least_squares

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("validate_estimator", ROOT / "dev" / "validate_estimator.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(tool: ModuleType) -> dict[str, object]:
    return tool.evaluate(tool.read(ROOT / "tests" / "data" / "estimator_validation.csv"))  # type: ignore[no-any-return]


def test_ascend_architectures_never_seen_are_predicted_within_12_percent(tool: ModuleType, found: dict[str, object]) -> None:
    assert tool.median_error(tool.pooled(found, ascend=True).ours) <= 0.12


def test_all_architectures_never_seen_are_predicted_within_9_percent(tool: ModuleType, found: dict[str, object]) -> None:
    assert tool.median_error(tool.pooled(found).ours) <= 0.09


def test_the_80_percent_interval_holds_at_least_70_percent(tool: ModuleType, found: dict[str, object]) -> None:
    for which in (None, True):
        covered = tool.pooled(found, ascend=which).covered
        assert sum(covered) / len(covered) >= 0.70


def test_it_beats_the_simple_ways_on_the_same_rows(tool: ModuleType, found: dict[str, object]) -> None:
    scores = tool.pooled(found, ascend=True)
    ours = tool.median_error(scores.ours)
    assert ours < 0.6 * tool.median_error(scores.constant) < tool.median_error(scores.exact)


def test_no_row_of_the_architecture_that_is_predicted_is_seen(tool: ModuleType) -> None:
    rows = tool.read(ROOT / "tests" / "data" / "estimator_validation.csv")
    predicted = {row.architecture for row, _ in tool.leave_out([r for r in rows if r.family == "nanochat-h100-fp8"])}
    seen = tool.leave_out([r for r in rows if r.family == "nanochat-h100-fp8" and r.depth == 24])
    assert len(predicted) == 2
    assert seen == []


def observation(params: float, efficiency: float = 0.5) -> Observation:
    flops = 6 * params
    return Observation(
        "p", "f", flops / (300e12 * efficiency), params, params, 0.0, 300e12, depth=20, width=(params / 240) ** 0.5, ffn=params, vocab=32_768, sequence_len=2048
    )


def test_a_law_that_holds_exactly_is_found() -> None:
    predict = fit_all([observation(p) for p in (1e9, 2e9, 4e9, 8e9, 16e9)])
    prediction = predict(observation(6e9))
    assert prediction is not None
    assert prediction.seconds == pytest.approx(observation(6e9).seconds, rel=0.03)


def test_an_unknown_family_is_not_guessed() -> None:
    assert fit_all([observation(1e9)])(Observation("p", "other", 1, 1, 1, 0, 1, 1, 1, 1, 1, 1)) is None


def test_least_squares_keeps_every_constant_at_zero_or_above() -> None:
    # Unconstrained, the second would be negative.
    assert nonnegative_least_squares([[2.0, 1.0], [1.0, 1.0]], [3.0, 1.0]) == [pytest.approx(1.5), 0.0]
