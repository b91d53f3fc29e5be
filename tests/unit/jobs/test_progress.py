"""Events folded into progress: what is usable is used, whatever stands in the fields."""

import math
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from nanochat.contract.events import FIELDS
from nanochat_npu import live, tables
from nanochat_npu.backends import JobState, JobView
from nanochat_npu.progress import Progress, describe
from nanochat_npu.views import RESULT_SECTIONS, STATUS_SECTIONS, Snapshot, job_json, job_list, results, sections


def step(number: int, loss: float = 2.0, **fields: Any) -> dict[str, Any]:
    return {
        "event": "step", "stage": "pretrain", "t": 100.0 + number, "attempt": 0, "step": number, "steps": 10, "loss": loss, "tokens": number * 100,
        "dt_s": 0.5, "tokens_per_s": 200.0, **fields,
    }


def folded(*events: dict[str, Any]) -> Progress:
    progress = Progress()
    progress.feed_all(events)
    return progress


def test_a_job_is_where_its_last_event_says() -> None:
    progress = folded({"event": "stage", "stage": "pretrain", "status": "start", "index": 1, "of": 4}, step(1), step(2, loss=1.5))
    run = progress.stepping
    assert run is not None
    assert (progress.stage, progress.stages_total, run.step, run.loss, run.index) == ("pretrain", 4, 2, 1.5, 1)


def test_going_back_to_a_checkpoint_forgets_the_steps_that_are_done_again() -> None:
    progress = folded(step(1), step(2), step(3, loss=9.0), step(2, loss=1.8), step(3, loss=1.7))
    run = progress.stepping
    assert run is not None
    assert [(number, loss) for number, loss, _speed in run.curve] == [(1, 2.0), (2, 1.8), (3, 1.7)]


def test_the_mean_speed_leaves_evaluations_out() -> None:
    run = folded(step(1), step(2)).stepping
    assert run is not None
    assert run.mean_tokens_per_s == pytest.approx(200.0)


def test_a_stage_that_comes_twice_is_two_runs() -> None:
    starts = [{"event": "stage", "stage": name, "status": "start", "index": index, "of": 3} for index, name in enumerate(("eval", "sft", "eval"))]
    assert [(run.name, run.index) for run in folded(*starts).runs] == [("eval", 0), ("sft", 1), ("eval", 2)]


def test_before_and_after_are_the_first_and_the_last_result() -> None:
    progress = folded(*({"event": "eval", "stage": "pretrain", "step": n, "name": "bpb", "value": 3.0 - n} for n in range(3)))
    first, last = progress.before_and_after()["bpb (pretrain)"]
    assert (first.value, last.value) == (3.0, 1.0)


def test_answers_are_compared_over_the_job_and_losses_within_a_stage() -> None:
    results = [("pretrain", "bpb", 3.0, None), ("pretrain", "sums", 0.0, 100), ("sft", "bpb", 1.0, None), ("eval", "sums", 0.9, 100)]
    progress = folded(
        *({"event": "eval", "stage": stage, "name": name, "value": value, "correct": int(value * 100), "total": total} for stage, name, value, total in results)
    )
    shown = {title: (first.value, last.value) for title, (first, last) in progress.before_and_after().items()}
    assert shown == {"bpb (pretrain)": (3.0, 3.0), "sums": (0.0, 0.9), "bpb (sft)": (1.0, 1.0)}


def test_what_was_measured_before_the_first_step_alone_stands_under_before() -> None:
    progress = folded(*({"event": "eval", "stage": "pretrain", "step": n, "name": name, "value": 3.5} for n, name in ((0, "bpb"), (4, "core"))))
    (made,) = sections([results], Snapshot(JobView("job", "local", JobState.RUNNING), progress, 0.0))
    assert made.table == (("bpb (pretrain)", "3.5000", "-"), ("core (pretrain)", "-", "3.5000"))


def test_each_bpb_says_what_it_was_measured_on() -> None:
    events: list[dict[str, Any]] = []
    for index, stage in enumerate(("pretrain", "sft", "eval")):
        events.append({"event": "stage", "stage": stage, "status": "start", "index": index, "of": 3})
        events.append({"event": "eval", "stage": stage, "step": 9, "name": "bpb", "value": 1.0 + index})
    (made,) = sections([results], Snapshot(JobView("job", "local", JobState.SUCCEEDED), folded(*events), 0.0))
    assert [line[0] for line in made.table] == ["bpb (pretrain)", "bpb (sft): on its examples", "bpb (eval): on pretraining text, after sft"]


def test_a_new_attempt_forgets_how_the_last_one_ended() -> None:
    progress = folded({"event": "error", "stage": "", "attempt": 0, "code": 69}, step(1, attempt=1))
    assert (progress.error, progress.attempt) == (None, 1)


def test_a_loss_that_is_not_a_number_is_shown_as_unknown() -> None:
    run = folded(step(1, loss="nan")).stepping
    assert run is not None
    assert run.loss is None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
keys = sorted({key for fields in FIELDS.values() for key in fields} | {"stage", "t", "attempt", "rank"})
wild_events = st.lists(
    st.fixed_dictionaries({"event": st.sampled_from([*FIELDS, "novel"])}, optional=dict.fromkeys(keys, anything)), max_size=6
)


@settings(max_examples=80, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(wild_events)
def test_every_view_is_total_over_events(events: list[dict[str, Any]]) -> None:
    progress = folded(*events)
    for event in events:
        assert "\n" not in describe(event)
    snapshot = Snapshot(JobView("job", "local", JobState.RUNNING), progress, 1e9)
    for makers in (STATUS_SECTIONS, RESULT_SECTIONS):
        made = sections(makers, snapshot)
        tables.to_text(made), tables.to_markdown(made), tables.to_json(made)
    tables.to_text([job_list([snapshot])])
    job_json(snapshot)
    live.picture(snapshot, live.View(width=60, curve_rows=4))


def test_numbers_in_events_may_be_infinite() -> None:
    assert folded(step(1, loss=math.inf, eta_s=math.nan)).stepping is not None
    assert "pretrain" in describe(step(1, loss=math.inf, eta_s=math.inf, tokens_per_s=math.nan))
