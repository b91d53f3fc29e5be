"""diff: fields that differ, without noise, and what applying them would mean."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanochat_npu.backends import JobState
from nanochat_npu.diffing import MISSING, Effect, compare, drift, judge
from nanochat_npu.load import load_text
from nanochat_npu.spec import JobSpec

BASE = {"spec_version": 1, "name": "a", "owner": "li", "backend": "local", "run": {"model": {"depth": 4}, "pretrain": {"device_batch": 4}}}


def spec(**change: object) -> JobSpec:
    return load_text(json.dumps({**BASE, **change}).encode(), "x.yaml", environ={}).spec


def run(**change: object) -> JobSpec:
    return spec(run={"model": {"depth": 4}, "pretrain": {"device_batch": 4}, **change})


def test_equal_specs_and_written_out_defaults_are_no_difference() -> None:
    assert compare(spec(), spec()) == []
    assert compare(spec(), run(seed=42)) == []


@pytest.mark.parametrize(
    ("new", "path", "effect"),
    [
        (run(model={"depth": 6}), "run.model.depth", Effect.REFUSED),
        (run(seed=7), "run.seed", Effect.REFUSED),
        (run(pretrain={"device_batch": 2}), "run.pretrain.device_batch", Effect.RESTART),
        (run(checkpoint={"keep_last": 5}), "run.checkpoint.keep_last", Effect.RESTART),
        (spec(owner="wang"), "owner", Effect.NOTHING),
        (spec(cluster={"priority_class": "high"}), "cluster.priority_class", Effect.IN_PLACE),
        (spec(price={"per_npu_hour": 3, "currency": "CNY", "source": "x", "date": "2026-11-01"}), "price.per_npu_hour", Effect.NOTHING),
    ],
)
def test_each_kind_of_field_has_its_effect(new: JobSpec, path: str, effect: Effect) -> None:
    changes = {change.path: change.effect for change in compare(spec(), new)}
    assert changes[path] is effect


def test_the_verdict_is_the_hardest_of_all_and_names_checkpoint_and_command() -> None:
    restart = compare(spec(), run(pretrain={"device_batch": 2}))
    running = judge(restart, JobState.RUNNING, "a", "job.yaml", 500)
    assert running.effect is Effect.RESTART
    assert "checkpoint 500" in running.sentence
    assert running.command.startswith("nanochat-npu cancel a && ")
    assert judge(restart, JobState.FAILED, "a", "job.yaml", None).command == "nanochat-npu submit job.yaml"
    refused = judge(compare(spec(), run(model={"depth": 6}, seed=9)), JobState.RUNNING, "a", "job.yaml", 500)
    assert refused.effect is Effect.REFUSED
    assert "run.model.depth" in refused.sentence
    assert "run.seed" in refused.sentence
    assert judge(compare(spec(), spec(owner="w")), JobState.RUNNING, "a", "j", 1).effect is Effect.NOTHING
    assert judge([], JobState.RUNNING, "a", "j", 1).effect is Effect.NOTHING


def test_drift_sees_hand_edits_and_ignores_what_the_server_added() -> None:
    rendered = {"queue": "q", "tasks": [{"name": "worker", "replicas": 2}], "ttl": None, "maxRetry": 3}
    live = {"queue": "q", "tasks": [{"name": "worker", "replicas": 3, "maxRetry": 3}], "maxRetry": "3", "schedulerName": "volcano"}
    assert [(c.path, c.old, c.new) for c in drift(rendered, live)] == [("tasks[0].replicas", 2, 3)]
    assert [(c.path, c.new) for c in drift({"a": 1}, {})] == [("a", MISSING)]
    assert [c.path for c in drift({"l": [1]}, {"l": [1, 2]})] == ["l[1]"]


json_like = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=10)


@given(json_like, json_like)
def test_drift_is_total_and_empty_against_itself(one: object, other: object) -> None:
    assert drift(one, one) == []
    drift(one, other)
