"""Texts are total over what the estimate gives as keys."""

import ast
from pathlib import Path

import pytest
from estimate_jobs import job

from nanochat.contract import Stage
from nanochat_npu.estimate import Estimate, Stack, estimate
from nanochat_npu.estimate import levers as levers_module
from nanochat_npu.estimate.explain import explain, explainable
from nanochat_npu.planviews import words

SOURCES = ("toy", "folder", "climbmix")


def jobs_of_all_stages() -> list[Estimate]:
    every = [*Stage, Stage.EVAL, Stage.SFT]
    return [estimate(job(stages=every, data={"source": source, "shards": 10}, eval={"tasks": tasks})) for source in SOURCES for tasks in (["auto"], ["core", "gsm8k"])]


def test_every_term_has_a_name_a_formula_and_values() -> None:
    for found in jobs_of_all_stages():
        for term in found.terms:
            assert words.term_text(term.key)
        for key in explainable(found):
            explanation = explain(found, key)
            assert explanation is not None
            assert explanation.formula


def keys_made(maker: str) -> set[str]:
    """Keys that `levers.py` gives to a class, read from its source."""
    tree = ast.parse(Path(levers_module.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == maker]
    return {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)}


def test_every_lever_has_a_text() -> None:
    assert set(words._LEVERS) == set(levers_module.CHANGES) | keys_made("Lever")


def test_every_warning_has_a_text() -> None:
    assert set(words._WARNINGS) == keys_made("Warn")


@pytest.mark.parametrize("more", [{}, {"stack": Stack.FUSED}, {"stack": Stack.GRAPH}, {"chip": "cpu", "npus": 1}, {"nodes": 2}, {"chip": "910B"}])
def test_every_basis_is_a_sentence(more: dict[str, object]) -> None:
    found = estimate(job(**more))  # type: ignore[arg-type]
    assert "uncalibrated" in words.basis(found)
    assert "tier" in words.tier_text(found)


@pytest.mark.parametrize(("hours", "text"), [(0.005, "18 s"), (0.1, "6.0 min"), (0.5, "30 min"), (61.66, "61.7 h"), (1234.5, "1,234 h")])
def test_hours_are_read_as_people_say_them(hours: float, text: str) -> None:
    assert words.hours(hours) == text
