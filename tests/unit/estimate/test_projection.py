"""What `status` says of a running job against its estimate."""

import time
from pathlib import Path

import pytest

from nanochat_npu.accounts import settle_seen
from nanochat_npu.accounts_view import done_fraction, estimate_section
from nanochat_npu.backends import JobState, JobView
from nanochat_npu.job_state import JobObjects, job_view
from nanochat_npu.jobs import home_dir
from nanochat_npu.ledger import Entry, Ledger
from nanochat_npu.progress import Progress
from nanochat_npu.views import Snapshot

ESTIMATED = {"start.processes": 100.0, "pretrain.matmul": 3000.0, "pretrain.saves": 100.0, "eval.tasks": 300.0, "sft.train": 400.0, "eval2.tasks": 100.0, "allowance": 999.0}


def progress_of(*events: dict[str, object]) -> Progress:
    found = Progress()
    found.feed_all([{"v": 1, "t": float(n), "attempt": 0, **event} for n, event in enumerate(events, start=1)])
    return found


def stage(name: str, index: int, status: str) -> dict[str, object]:
    return {"event": "stage", "stage": name, "status": status, "index": index, "of": 4}


def step(name: str, n: int, of: int) -> dict[str, object]:
    return {"event": "step", "stage": name, "step": n, "steps": of, "dt_s": 1.0, "tokens": n, "tokens_per_s": 1.0, "loss": 1.0}


@pytest.mark.parametrize(
    ("events", "fraction"),
    [
        ([], 0.025),
        ([stage("pretrain", 0, "start"), step("pretrain", 50, 100)], 0.4125),
        ([stage("pretrain", 0, "start"), stage("pretrain", 0, "end")], 0.8),
        ([stage("pretrain", 0, "end"), stage("eval", 1, "end"), stage("sft", 2, "end"), stage("eval", 3, "end")], 1.0),
        ([stage("pretrain", 0, "skip"), stage("eval", 1, "start")], 0.8),
    ],
)
def test_stages_that_ended_count_whole_and_the_one_that_runs_by_its_steps(events: list[dict[str, object]], fraction: float) -> None:
    assert done_fraction(progress_of(*events), ESTIMATED) == pytest.approx(fraction)


def entry(now: float, **more: object) -> Entry:
    values: dict[str, object] = {
        "job": "d20", "submission_id": "abc", "submitted_s": now - 7200, "billed_npus": 8, "hours_p10": 3.0, "hours_p50": 4.0, "hours_p90": 5.0, "price": 3.0,
        "currency": "CNY", "estimated": ESTIMATED,
    }
    return Entry(**(values | more))  # type: ignore[arg-type]


def snapshot(now: float, done: int) -> Snapshot:
    job = JobView("d20", "volcano", JobState.RUNNING, submission_id="abc", created_s=now - 7200, started_s=now - 7200)
    return Snapshot(job, progress_of(stage("pretrain", 0, "start"), step("pretrain", done, 100)), now)


def test_status_shows_time_left_and_projected_cost() -> None:
    now = time.time()
    Ledger.of(home_dir()).put(entry(now))
    section = estimate_section(snapshot(now, 58))
    assert section is not None
    assert section.value["outside"] is None
    assert section.value["projected_h"] == pytest.approx(2 / (0.025 + 0.775 * 0.58), rel=1e-3)
    assert section.value["projected_cost"] == pytest.approx(section.value["projected_h"] * 24)
    assert any("CNY" in value for _label, value in section.rows)


@pytest.mark.parametrize(("done", "outside", "word"), [(20, "late", "slower"), (99, "early", "faster")])
def test_status_warns_when_a_job_leaves_its_interval(done: int, outside: str, word: str) -> None:
    now = time.time()
    Ledger.of(home_dir()).put(entry(now))
    section = estimate_section(snapshot(now, done))
    assert section is not None
    assert section.value["outside"] == outside
    assert any(word in value for _label, value in section.rows)


def test_a_job_without_a_line_has_no_section() -> None:
    assert estimate_section(snapshot(time.time(), 50)) is None


def test_a_corrupt_ledger_does_not_hide_the_status() -> None:
    path = Ledger.of(home_dir()).path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"rubbish" * 500)
    assert estimate_section(snapshot(time.time(), 50)) is None


def test_seeing_the_end_of_a_clusters_job_closes_its_line(tmp_path: Path) -> None:
    now = time.time()
    ledger = Ledger.of(tmp_path)
    ledger.put(entry(now))
    events = [
        {"event": "stage", "stage": "pretrain", "t": now - 7000, "attempt": 0, "status": "start"},
        {"event": "step", "stage": "pretrain", "t": now - 100, "attempt": 0, "dt_s": 6900.0},
        {"event": "done", "t": now - 90, "attempt": 0, "reason": "finished"},
    ]
    view = JobView("d20", "volcano", JobState.SUCCEEDED, submission_id="abc", started_s=now - 7100, ended_s=now - 80, exit_code=0)
    settle_seen(view, events, tmp_path)
    (closed,) = ledger.entries()
    assert closed.state == "SUCCEEDED"
    assert closed.hours == pytest.approx(7020 / 3600)
    assert closed.actual["pending_s"] == pytest.approx(100)
    settle_seen(view, [], tmp_path)  # seen twice
    assert ledger.entries() == [closed]


def pod(scheduled: str, started: str) -> dict[str, object]:
    return {
        "metadata": {"name": "d20-worker-0"},
        "status": {
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": scheduled}],
            "containerStatuses": [{"state": {"running": {"startedAt": started}}}],
        },
    }


def test_the_slowest_pods_pull_is_what_the_gang_waits_for() -> None:
    pods = [pod("2026-11-30T10:00:00Z", "2026-11-30T10:00:40Z"), pod("2026-11-30T10:00:00Z", "2026-11-30T10:03:20Z")]
    assert job_view(JobObjects({}, pods=pods)).extra["pulling_s"] == 200.0
    assert job_view(JobObjects({}, pods=[{"status": None}])).extra["pulling_s"] is None
