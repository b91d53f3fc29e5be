"""The decision after an attempt: total over codes, faithful to the contract's table, and never against a person's wish."""

import pytest

from nanochat.contract import ExitCode, may_restart
from nanochat_npu.backends import ACTIVE, ENDED, JobState, JobView
from nanochat_npu.backends.local_view import _reason
from nanochat_npu.restarts import STOPPED, Settings, Stop, Tally, Why, attempt_code, decide

SETTINGS = Settings(command=[], cwd="/", failures=2, preemptions=3)
CODES = range(256)
FRESH = Tally(1, 1)


def test_a_job_restarts_exactly_where_the_contract_says_so() -> None:
    restarted = {code for code in CODES if decide(code, FRESH, SETTINGS).state is JobState.RESTARTING}
    assert restarted == {code for code in CODES if code and may_restart(code)}


@pytest.mark.parametrize("stop", [Stop.GRACEFULLY, Stop.NOW, Stop.OUTSIDE])
def test_what_was_asked_to_stop_is_never_started_again(stop: Stop) -> None:
    assert {decide(code, FRESH, SETTINGS, stop=stop).state for code in CODES} <= ENDED


def test_a_job_that_was_done_before_the_stop_arrived_has_succeeded() -> None:
    assert {decide(0, Tally(), SETTINGS, stop=stop).state for stop in Stop} == {JobState.SUCCEEDED}


@pytest.mark.parametrize(("failures", "restarts"), [(0, True), (2, True), (3, False)])
def test_failures_are_allowed_up_to_their_number(failures: int, restarts: bool) -> None:
    decision = decide(ExitCode.DEVICE_LOST, Tally(failures, 99), SETTINGS)
    assert (decision.state in ACTIVE) is restarts
    assert restarts or decision.why is Why.FAILURES_SPENT


@pytest.mark.parametrize(("preemptions", "restarts"), [(3, True), (4, False)])
def test_preemptions_are_allowed_up_to_theirs(preemptions: int, restarts: bool) -> None:
    assert (decide(ExitCode.INTERRUPTED, Tally(99, preemptions), SETTINGS).state in ACTIVE) is restarts


def test_only_a_good_end_that_can_go_on_is_a_suspension() -> None:
    assert decide(0, Tally(), SETTINGS, resumable=True).state is JobState.SUSPENDED
    assert decide(65, FRESH, SETTINGS, resumable=True).state is JobState.FAILED


def test_a_tally_counts_failures_apart_from_interruptions() -> None:
    tally = Tally()
    for code in (0, 82, 69, 137, 82):
        tally = tally.after(code)
    assert tally == Tally(failures=2, preemptions=2)


@pytest.mark.parametrize(
    ("verdict", "ended", "code"),
    [
        ({}, {0: 0, 1: 0}, 0),
        ({"code": 65}, {1: 69, 0: 69}, 65),
        ({"code": 65}, {0: 0, 1: 0}, 0),
        ({}, {1: 137, 0: 69}, 69),
        ({}, {0: 82, 1: 82}, 82),
        ({}, {0: 143, 1: 82}, 143),
        ({"code": "65"}, {0: 69}, 69),
        ({"code": 4096}, {0: 69}, 69),
        ({"code": 0}, {0: 70}, 70),
    ],
)
def test_the_first_failure_speaks_for_the_attempt(verdict: dict[str, object], ended: dict[int, int], code: int) -> None:
    assert attempt_code(verdict, ended) == code


def test_every_stop_between_attempts_has_an_end() -> None:
    assert set(STOPPED) == set(Stop) - {Stop.NO}


@pytest.mark.parametrize("why", [why for why in Why if why not in (Why.RUNNING, Why.FINISHED)])
def test_every_reason_has_its_sentence(why: Why) -> None:
    assert _reason(JobView("job", "local", JobState.FAILED, phase=why, exit_code=69), "no such file")
