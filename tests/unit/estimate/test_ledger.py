"""The ledger: lines are whole or absent, whatever is killed; what cannot be read is said and left alone."""

import csv
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from nanochat_npu import estimating
from nanochat_npu.accounts import close_entry, project, settle_local, settled
from nanochat_npu.backends import JobState, JobView
from nanochat_npu.cost_report import GroupBy, by_job, grouped, grouped_csv, terms_of, to_csv
from nanochat_npu.estimate.actual import Actual, actual, step_times
from nanochat_npu.ledger import FILE_NAME, Entry, Ledger, LedgerError, week_of

ENTRY = Entry(
    job="d20", submission_id="abc", submitted_s=1_796_000_000.0, chip="910B3", billed_npus=8, hours_p10=9.0, hours_p50=12.0, hours_p90=16.0,
    cost_p50=288.0, price=3.0, currency="CNY", estimated={"start.processes": 120.0, "pretrain.matmul": 36_000.0, "pretrain.saves": 100.0, "allowance": 500.0},
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.of(tmp_path)


def test_what_is_put_comes_back(ledger: Ledger) -> None:
    ledger.put(ENTRY)
    assert ledger.entries() == [ENTRY]


def test_no_ledger_has_no_entries_and_is_not_made_by_looking(ledger: Ledger) -> None:
    assert ledger.entries() == []
    assert not ledger.path.exists()


def test_the_same_submission_is_one_line(ledger: Ledger) -> None:
    ledger.put(ENTRY)
    ledger.put(replace(ENTRY, state="SUCCEEDED", hours=11.0))
    assert [entry.state for entry in ledger.entries()] == ["SUCCEEDED"]


def test_the_journal_is_the_one_that_nfs_can_hold(ledger: Ledger) -> None:
    ledger.put(ENTRY)
    with closing(sqlite3.connect(ledger.path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
    assert {path.name for path in ledger.path.parent.iterdir()} == {ledger.path.name}


WRITER = """
import sys
from pathlib import Path
from nanochat_npu.ledger import Entry, Ledger
ledger = Ledger.of(Path(sys.argv[1]))
for number in range(1_000_000):
    ledger.put(Entry(job="job", submission_id=str(number), submitted_s=float(number), details={"text": "x" * 5000}))
    print(number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 7])
def test_lines_are_whole_after_kill_9_at_any_moment(tmp_path: Path, lines: int) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        seen = [int(writer.stdout.readline()) for _ in range(lines)]
        writer.send_signal(signal.SIGKILL)
    ledger = Ledger.of(tmp_path)
    entries = ledger.entries()
    assert len(entries) >= seen[-1] + 1  # what was acknowledged is there
    assert all(len(entry.details["text"]) == 5000 for entry in entries)
    ledger.put(ENTRY)
    with closing(sqlite3.connect(ledger.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_corrupt_ledger_is_an_error_that_says_what_to_do_and_is_left_alone(ledger: Ledger) -> None:
    ledger.path.write_bytes(b"this is no database at all" * 100)
    before = ledger.path.read_bytes()
    with pytest.raises(LedgerError, match="cannot be used") as caught:
        ledger.put(ENTRY)
    assert caught.value.hint is not None
    assert "mv " in caught.value.hint
    assert ledger.path.read_bytes() == before


def test_a_ledger_of_a_newer_version_is_refused(ledger: Ledger) -> None:
    ledger.put(ENTRY)
    connection = sqlite3.connect(ledger.path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(LedgerError, match="newer version"):
        ledger.entries()


def test_two_writers_wait_for_each_other(ledger: Ledger) -> None:
    ledger.put(ENTRY)
    script = WRITER.replace("1_000_000", "20")
    writers = [subprocess.Popen([sys.executable, "-c", script.replace('"job"', f'"job{n}"'), str(ledger.path.parent)], stdout=subprocess.DEVNULL) for n in range(2)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    assert len(ledger.entries()) == 41


def step(t: float, n: int, dt: float = 2.0, **more: object) -> dict[str, object]:
    return {"v": 1, "event": "step", "stage": "pretrain", "t": t, "step": n, "dt_s": dt, "tokens_per_s": 1000.0, "memory_bytes": 5.0, **more}


def stage(t: float, status: str = "start", name: str = "pretrain") -> dict[str, object]:
    return {"v": 1, "event": "stage", "stage": name, "t": t, "status": status}


def test_time_is_told_apart_and_sums_up() -> None:
    events = [
        stage(110.0), step(112.0, 1), step(114.0, 2), {"event": "checkpoint", "t": 115.0, "save_s": 1.0}, {"event": "eval", "t": 118.0}, step(120.0, 3),
        stage(120.5, "end"), {"event": "done", "t": 121.0, "reason": "finished"},
    ]
    took = actual([events], submitted_s=100.0, started_s=[104.0], ended_s=122.0)
    assert (took.pending_s, took.start_up_s, took.training_s, took.saving_s) == (4.0, 6.0, 6.0, 1.0)
    assert took.evaluating_s == pytest.approx(3.0 + 0.5 + 0.5 + 1.0)
    assert took.total_s == pytest.approx(122.0 - 100.0)
    assert took.ended


def test_work_after_the_last_checkpoint_of_an_attempt_that_failed_is_lost() -> None:
    first = [stage(10.0), step(12.0, 1), {"event": "checkpoint", "t": 13.0, "save_s": 1.0}, step(15.0, 2), step(17.0, 3)]
    second = [stage(40.0), step(42.0, 2), step(44.0, 3), stage(44.0, "end"), {"event": "done", "t": 45.0, "reason": "finished"}]
    took = actual([first, second], started_s=[5.0, 30.0])
    assert took.lost_s == 4.0
    assert took.training_s == 6.0
    assert took.idle_s == 13.0
    assert took.attempts == 2
    assert took.total_s == pytest.approx(45.0 - 5.0)


def test_pulling_the_image_is_paid_for_and_waiting_is_not() -> None:
    took = actual([[stage(110.0), step(112.0, 1)]], submitted_s=10.0, started_s=[104.0], pulling_s=30.0)
    assert (took.pending_s, took.pulling_s, took.start_up_s) == (64.0, 30.0, 6.0)
    assert took.held_s == pytest.approx(30 + 6 + 2)


def test_odd_events_do_no_harm() -> None:
    odd = [{"event": "step"}, {"t": "soon"}, {"event": "step", "t": 5.0, "dt_s": "nan"}, {"event": 7, "t": 6.0}, {"event": "step", "t": 4.0, "dt_s": 1e9}]
    assert actual([odd]).total_s >= 0


def test_a_session_limit_is_not_the_end() -> None:
    assert not actual([[stage(1.0), {"event": "done", "t": 2.0, "reason": "session_limit"}]]).ended


def test_the_first_steps_of_a_calibration_do_not_count() -> None:
    events = [step(float(n), n, 9.0 if n <= 3 else 2.0) for n in range(1, 9)]
    times = step_times(events, drop=3)
    assert times is not None
    assert (times.median_s, times.mean_s, times.count, times.tokens_per_step, times.peak_bytes) == (2.0, 2.0, 5, 2000, 5.0)
    assert step_times(events, drop=8) is None


def test_a_wandering_speed_is_seen_over_blocks_of_steps() -> None:
    steady, wandering = ([step(float(n), n, dt(n)) for n in range(40)] for dt in (lambda n: 2.0, lambda n: 2.0 if n < 25 else 3.0))
    quiet, shared = step_times(steady, drop=10), step_times(wandering, drop=10)
    assert quiet is not None
    assert shared is not None
    assert quiet.drift_ln_sd == pytest.approx(0.0)
    assert shared.drift_ln_sd > 0.15


def test_a_job_that_ended_is_closed_with_its_cost() -> None:
    view = JobView("d20", "local", JobState.SUCCEEDED, ended_s=1_796_036_000.0, exit_code=0)
    events = [stage(1_796_000_010.0), step(1_796_035_990.0, 1, 35_980.0)]
    closed = settled(ENTRY, view, [events], [1_796_000_000.0])
    assert closed.state == "SUCCEEDED"
    assert closed.hours == pytest.approx(10.0)
    assert closed.cost == pytest.approx(10.0 * 8 * 3.0)
    assert closed.ratio == pytest.approx(10.0 / 12.0)


def test_a_running_job_stays_open() -> None:
    assert settled(ENTRY, JobView("d20", "local", JobState.RUNNING), [[]]) is ENTRY


def test_waiting_is_not_paid_for() -> None:
    closed = close_entry(ENTRY, JobState.SUCCEEDED, Actual(pending_s=36_000.0, training_s=3600.0), exit_code=0, ended_s=None)
    assert closed.cost == pytest.approx(8 * 3.0)


def test_a_failed_job_narrows_no_interval() -> None:
    assert close_entry(ENTRY, JobState.FAILED, Actual(training_s=10.0), exit_code=70, ended_s=None).ratio is None


def test_a_job_that_went_on_from_a_checkpoint_narrows_no_interval_and_is_not_projected() -> None:
    continued = replace(ENTRY, state="SUCCEEDED", hours=2.0, details={"continued": True})
    assert continued.ratio is None
    assert project(replace(continued, state="OPEN"), elapsed_s=3600, done=0.5) is None


def test_a_calibration_is_paid_for_and_says_nothing_of_whole_jobs() -> None:
    measured = replace(DONE, details={"calibration": True})
    assert measured.ratio is None
    assert "312 CNY" in by_job([measured]).table[0]


def test_a_job_whose_folder_is_gone_is_not_looked_for_again(ledger: Ledger) -> None:
    ledger.put(ENTRY)
    settle_local(ledger.path.parent)
    assert [entry.state for entry in ledger.entries()] == ["GONE"]


@pytest.mark.parametrize(("elapsed_h", "outside"), [(6.0, None), (8.5, "late"), (4.0, "early")])
def test_a_running_job_is_projected_against_its_interval(elapsed_h: float, outside: str | None) -> None:
    found = project(ENTRY, elapsed_s=elapsed_h * 3600, done=0.5)
    assert found is not None
    assert found.hours == pytest.approx(2 * elapsed_h)
    assert found.cost == pytest.approx(2 * elapsed_h * 24)
    assert found.outside == outside


def test_nothing_is_projected_from_the_first_steps() -> None:
    assert project(ENTRY, elapsed_s=60, done=0.001) is None


DONE = replace(ENTRY, state="SUCCEEDED", hours=13.0, cost=312.0, actual={"training_s": 40_000.0, "start_up_s": 100.0, "pending_s": 60.0})


def test_report_lists_jobs_and_their_sum() -> None:
    dollars = replace(DONE, job="other", currency="USD", cost=10.0)
    section = by_job([DONE, dollars, replace(DONE, job="free", price=None, cost=None)])
    assert section.table[0][-2:] == ("+8 %", "312 CNY")
    assert section.table[-1][-1] == "312 CNY + 10.00 USD + 1 not priced"  # currencies are never added up, a missing price is no 0


def test_report_sums_by_week_project_and_queue() -> None:
    other = replace(DONE, submitted_s=DONE.submitted_s + 14 * 86_400, project="p2", queue="q2")
    assert [row[0] for row in grouped([DONE, other], GroupBy.WEEK).table] == [week_of(DONE.submitted_s), week_of(other.submitted_s)]
    assert [row[0] for row in grouped([DONE, other], GroupBy.PROJECT).table] == ["-", "p2"]
    assert [row[0] for row in grouped([DONE, other], GroupBy.QUEUE).table] == ["-", "q2"]


def test_report_by_term_says_whether_the_interval_held() -> None:
    text = terms_of(DONE).table
    assert text[-1][2].endswith("inside")
    assert terms_of(replace(DONE, hours=20.0)).table[-1][2].endswith("outside")


def test_csv_has_a_line_for_each_job() -> None:
    lines = to_csv([DONE, ENTRY]).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("job,submission_id,submitted_s")
    assert to_csv([]).splitlines()[0].startswith("job")


def test_week_is_the_iso_week() -> None:
    assert week_of(time.mktime((2026, 11, 30, 12, 0, 0, 0, 0, 0))) == "2026-W49"


def test_the_estimate_looks_for_the_ledger_where_it_is() -> None:
    assert estimating.LEDGER_FILE == FILE_NAME


@pytest.mark.parametrize("statement", ["UPDATE jobs SET hours='soon'", "UPDATE jobs SET submitted_s='long ago'", "UPDATE jobs SET job=x'00ff'", "ALTER TABLE jobs DROP COLUMN tier"])
def test_a_damaged_line_is_an_error_that_names_it(ledger: Ledger, statement: str) -> None:
    ledger.put(ENTRY)
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as connection:
        connection.execute(statement)
    with pytest.raises(LedgerError):
        ledger.entries()


def test_sums_are_amounts_by_currency_in_json_and_csv() -> None:
    entries = [DONE, replace(DONE, job="b", currency="USD", cost=10.0), replace(DONE, job="c", price=None, cost=None)]
    (value,) = grouped(entries, GroupBy.WEEK).value
    assert (value["jobs"], value["cost"], value["unpriced_jobs"]) == (3, {"CNY": 312.0, "USD": 10.0}, 1)
    head, line = grouped_csv(entries, GroupBy.WEEK).splitlines()
    assert head == "week,jobs,hours,npu_hours,cost_CNY,cost_USD,unpriced_jobs"
    assert line.endswith(",312.0,10.0,1")


def test_csv_sets_estimate_beside_actual() -> None:
    (line,) = csv.DictReader(to_csv([DONE]).splitlines())
    assert (float(line["training_s"]), float(line["estimated_training_s"])) == (40_000.0, 36_000.0)
    assert float(line["estimated_allowance_s"]) == 500.0
