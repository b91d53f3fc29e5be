"""Exit codes and events: total over everything that can arrive."""

import json
import math
from typing import get_args

import pytest

from nanochat.contract import FINAL, RESTART, ExitCode, describe, events, from_returncode, is_failure, may_restart


def test_every_code_either_restarts_or_ends_the_job() -> None:
    assert set(ExitCode) == RESTART | FINAL
    assert not RESTART & FINAL
    assert {int(code) for code in RESTART} == {69, 75, 82}


@pytest.mark.parametrize("code", [1, 137, 139, 200, 255])
def test_codes_that_nobody_listed_restart_and_count(code: int) -> None:
    assert may_restart(code)
    assert is_failure(code)


def test_an_interruption_is_not_a_failure() -> None:
    assert not is_failure(ExitCode.INTERRUPTED)
    assert not is_failure(ExitCode.DONE)


def test_signals_look_as_in_a_shell() -> None:
    assert from_returncode(-9) == 137
    assert from_returncode(65) == 65
    assert describe(137) == "killed by signal 9"


@pytest.mark.parametrize("code", range(256))
def test_every_code_can_be_described(code: int) -> None:
    assert describe(code)


def test_fields_are_documented_for_every_kind_of_event() -> None:
    assert set(events.FIELDS) == set(get_args(events.EventKind))


def test_numbers_that_json_lacks_become_words() -> None:
    line = events.encode("step", stage="pretrain", t=1.0, fields={"loss": math.nan, "deep": [math.inf, {"x": -math.inf}]})
    record = json.loads(line)
    assert (record["loss"], record["deep"]) == ("nan", ["inf", {"x": "-inf"}])
    assert line.endswith("\n")
    assert "\n" not in line[:-1]


def test_readers_skip_text_torn_lines_and_other_versions() -> None:
    good = events.encode("done", stage="", t=2.0, fields={"reason": "finished"})
    lines = ["Traceback (most recent call last):", good, good[:20], '{"v": 99, "event": "step"}', "{}", "[1]", "", '{"v": 1, "event": "future"}']
    assert [record["event"] for record in events.parse_lines(lines)] == ["done", "future"]
