"""Who is silent, and who only waits for the silent one; when a budget has to end a run."""

import json
import time

import pytest

from nanochat.contract import BudgetState, ExitCode
from nanochat.guards import BudgetGuard, Progress
from nanochat.heartbeat import Heartbeat, Watch, beat_key


def pulse(doing: str, *, step: int = 7, limit_s: float = 100.0, age_s: float = 0.0, count: int = 1) -> str:
    return json.dumps({"doing": doing, "stage": "pretrain", "step": step, "limit_s": limit_s, "age_s": age_s, "count": count})


def test_the_rank_that_others_wait_for_is_named():
    watch = Watch(4)
    texts = [pulse("waiting", age_s=150), pulse("waiting", age_s=150), pulse("busy", age_s=151), pulse("waiting", age_s=150)]
    found = watch.look(texts, now=0)
    assert (found.ranks, found.step, found.all_wait) == ((2,), 7, False)


def test_below_the_limit_nobody_is_silent():
    assert Watch(2).look([pulse("busy", age_s=99), pulse("waiting", age_s=99)], now=0) is None


def test_a_frozen_process_is_found_by_the_clock_of_the_watch():
    watch = Watch(2)
    assert watch.look([pulse("busy"), pulse("waiting")], now=0) is None
    later = [pulse("busy"), pulse("waiting", age_s=101, count=50)]  # rank 0 publishes no more
    assert watch.look(later, now=101).ranks == (0,)


def test_when_all_wait_it_is_no_rank():
    found = Watch(2).look([pulse("waiting", age_s=200), pulse("waiting", age_s=200)], now=0)
    assert found.all_wait
    assert found.ranks == (0, 1)


def test_resting_ranks_are_never_silent():
    assert Watch(1).look([pulse("resting", limit_s=0, age_s=1e6)], now=0) is None


def test_a_slow_checkpoint_has_more_patience():
    assert Watch(1).look([pulse("busy", limit_s=400, age_s=300)], now=0) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"doing": "busy"}'])
def test_what_is_no_pulse_is_ignored(text):
    assert Watch(1).look([text], now=1e9) is None


def test_progress_resets_the_clock():
    watch = Watch(1)
    for second in range(0, 1000, 50):
        assert watch.look([pulse("busy", step=second, age_s=1, count=second)], now=second) is None


class Store(dict):
    def set(self, key: str, value: str) -> None:
        self[key] = value


def test_a_heartbeat_publishes_what_the_rank_does():
    store = Store()
    heart = Heartbeat(store, 5, limit_s=0.04)
    heart.busy("sft", 12, patience=2)
    deadline = time.monotonic() + 10
    while "sft" not in store.get(beat_key(5), "") and time.monotonic() < deadline:
        time.sleep(0.005)
    heart.close()
    told = json.loads(store[beat_key(5)])
    assert (told["doing"], told["stage"], told["step"], told["limit_s"]) == ("busy", "sft", 12, 0.08)


def progress(**values: float) -> Progress:
    return Progress(**{"stage": "pretrain", "step": 5, "steps": 10, "loss": 1.0, "step_s": 1.0, "save_s": 2.0, **values})


def test_a_guard_leaves_room_for_a_checkpoint_before_the_deadline():
    now = time.time()
    assert BudgetGuard(BudgetState(deadline_s=now + 3600)).after_step(progress()) is None
    objection = BudgetGuard(BudgetState(deadline_s=now + 60)).after_step(progress(save_s=40))
    assert objection.code is ExitCode.BUDGET
    assert "deadline" in objection.message


def test_earlier_attempts_count_against_the_budget():
    guard = BudgetGuard(BudgetState(max_run_s=3600, spent_s=3590))
    assert "3600 s are spent" in guard.after_step(progress()).message
    assert BudgetGuard(BudgetState(max_run_s=3600, spent_s=100)).after_step(progress()) is None


def test_without_a_budget_there_is_no_objection():
    assert BudgetGuard(BudgetState()).after_step(progress(step_s=1e9)) is None
