"""The ledger counts failures apart from preemptions; the first verdict of an attempt stands."""

import json
import threading

import pytest

from nanochat import ledger
from nanochat import verdict as verdicts
from nanochat.contract import ExitCode, layout
from nanochat.errors import BadData
from nanochat.ledger import Attempt, failures, final_code, next_attempt
from nanochat.verdict import Verdict


def test_an_attempt_goes_from_running_to_its_end(tmp_path):
    ledger.begin(tmp_path, 0)
    assert ledger.read(tmp_path)[0].code is None
    ledger.end(tmp_path, 0, 137, "killed")
    entry = ledger.read(tmp_path)[0]
    assert (entry.code, entry.message, entry.failed) == (137, "killed", True)
    assert entry.ended >= entry.started


@pytest.mark.parametrize(
    ("code", "failed"), [(0, False), (82, False), (69, True), (70, True), (137, True), (None, False)]
)
def test_only_ends_of_its_own_fault_count(code, failed):
    assert Attempt(0, started=1.0, code=code).failed is failed


@pytest.mark.parametrize(
    ("code", "failed_before", "allowed", "final"),
    [
        (69, 0, 2, 69), (69, 1, 2, 69), (69, 2, 2, 83), (137, 0, 0, 83),  # restartable failures, until they are spent
        (65, 5, 0, 65), (80, 5, 0, 80), (0, 5, 0, 0),  # final codes stay what they are
        (82, 9, 0, 82),  # preemptions cost nothing
    ],
)
def test_the_code_to_leave_with(code, failed_before, allowed, final):
    assert final_code(code, failed_before, allowed) == final


def test_attempts_are_numbered_on(tmp_path):
    assert next_attempt([]) == 0
    for attempt in (0, 1, 4):
        ledger.begin(tmp_path, attempt)
    assert next_attempt(ledger.read(tmp_path)) == 5


def test_beginning_again_does_not_double_an_attempt(tmp_path):
    ledger.begin(tmp_path, 0)
    ledger.begin(tmp_path, 0)
    assert len(ledger.read(tmp_path)) == 1


def test_a_failure_count_is_written_for_people_too(tmp_path):
    for attempt, code in enumerate((69, 82, 70)):
        ledger.begin(tmp_path, attempt)
        ledger.end(tmp_path, attempt, code)
    record = json.loads(layout.ledger_file(tmp_path).read_text())
    assert record["failures"] == failures(ledger.read(tmp_path)) == 2


@pytest.mark.parametrize("text", ["", "[]", '{"attempts": 3}', '{"attempts": [{"x": 1}]}', "\x00\xff"])
def test_a_damaged_ledger_is_refused_by_name(tmp_path, text):
    layout.ledger_file(tmp_path).write_text(text)
    with pytest.raises(BadData, match="not a ledger") as caught:
        ledger.read(tmp_path)
    assert caught.value.where == str(layout.ledger_file(tmp_path))


def test_a_ledger_of_a_newer_version_is_read(tmp_path):
    layout.ledger_file(tmp_path).write_text('{"v": 2, "new": 1, "attempts": [{"attempt": 3, "started": 1.0, "code": 69, "place": "x"}]}')
    assert failures(ledger.read(tmp_path)) == 1


def test_the_first_verdict_stands(tmp_path):
    assert verdicts.write_first(tmp_path, Verdict(65, 3, "shard is damaged"))
    assert not verdicts.write_first(tmp_path, Verdict(69, 0, "a peer is gone"))
    found = verdicts.read(tmp_path, 0)
    assert (found.code, found.rank, found.name) == (65, 3, "BAD_DATA")
    assert list(layout.attempt_dir(tmp_path, 0).iterdir()) == [layout.verdict_file(tmp_path, 0)], "no temporary files"


def test_many_writers_make_one_verdict(tmp_path):
    won: list[int] = []
    gate = threading.Barrier(8)

    def write(rank: int) -> None:
        gate.wait()
        if verdicts.write_first(tmp_path / "job", Verdict(69, rank, "x" * 10_000)):
            won.append(rank)

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [verdicts.read(tmp_path / "job", 0).rank] == won


def test_each_attempt_has_its_own_verdict(tmp_path):
    verdicts.write_first(tmp_path, Verdict(69, 0, "first", attempt=0))
    verdicts.write_first(tmp_path, Verdict(70, 1, "second", attempt=1))
    assert verdicts.read(tmp_path, 1).message == "second"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"code": 1}'])
def test_what_is_no_verdict_is_none(text):
    assert Verdict.from_json(text) is None


def test_a_code_that_is_not_ours_has_a_meaning(tmp_path):
    record = json.loads(Verdict(137, 2, "gone").to_json())
    assert (record["name"], record["meaning"]) == ("", "killed by signal 9")
    assert json.loads(Verdict(int(ExitCode.DIVERGED), 0, "nan").to_json())["name"] == "DIVERGED"


def test_waiting_for_a_verdict_ends(tmp_path):
    assert verdicts.wait_for(tmp_path, 0, 0.01) is None
    threading.Timer(0.05, verdicts.write_first, (tmp_path, Verdict(65, 1, "late"))).start()
    assert verdicts.wait_for(tmp_path, 0, 10).message == "late"
