"""One budget for all attempts: in the plan, in the manifest, in the launcher and in the trainer's guard."""

import datetime
import json
import os
import time
from pathlib import Path

import pytest
import yaml

from nanochat import ledger
from nanochat.contract import BudgetState, ExitCode, RunConfig, RunFile, layout, may_restart
from nanochat.errors import TrainerError
from nanochat.guards import BudgetGuard, Progress
from nanochat.launch.checks import budget as budget_check
from nanochat.launch.settings import LaunchSettings
from nanochat_npu.load import load_spec
from nanochat_npu.plan import billed_npus, make_plan
from nanochat_npu.render import render

TODAY = datetime.date(2026, 11, 30)
PRICE = "price={per_npu_hour: 3.0, currency: CNY, source: s, date: 2026-11-01}"


def attempts(job: Path, *spans: tuple[float, float | None]) -> None:
    """A job's folder after attempts that began and ended then; None for one whose launcher vanished."""
    listed = [{"attempt": n, "started": begun, "ended": ended, "code": 69, "message": ""} for n, (begun, ended) in enumerate(spans)]
    for number in range(len(spans)):
        layout.attempt_dir(job, number).mkdir(parents=True)
    layout.ledger_file(job).write_text(json.dumps({"v": 1, "failures": 0, "attempts": listed}))


def test_attempts_add_up(tmp_path: Path) -> None:
    attempts(tmp_path, (100.0, 130.0), (200.0, 220.0))
    assert ledger.spent_s(tmp_path) == 50.0
    assert ledger.spent_s(tmp_path, but=1) == 30.0


def test_an_attempt_that_vanished_lasted_until_the_last_file_it_wrote(tmp_path: Path) -> None:
    attempts(tmp_path, (100.0, None))
    assert ledger.spent_s(tmp_path) == 0.0
    for name, moment in (("run.json", 1000.0), ("events.jsonl", 1060.0)):
        path = layout.attempt_dir(tmp_path, 0) / name
        path.write_text("")
        os.utime(path, (moment, moment))
    assert ledger.spent_s(tmp_path) == 60.0


def test_failures_that_are_forgiven_are_still_paid(tmp_path: Path) -> None:
    """Letting a job go on empties the ledger of its failures; the folders of its attempts remain."""
    attempts(tmp_path, (100.0, None))
    for name, moment in (("run.json", 1000.0), ("events.jsonl", 1060.0)):
        path = layout.attempt_dir(tmp_path, 0) / name
        path.write_text("")
        os.utime(path, (moment, moment))
    layout.ledger_file(tmp_path).unlink()
    assert ledger.spent_s(tmp_path) == 60.0


def test_a_first_attempt_has_spent_nothing(tmp_path: Path) -> None:
    assert ledger.spent_s(tmp_path) == 0.0


def settings(job: Path) -> LaunchSettings:
    return LaunchSettings(job, job / "run.json", nodes=1, node_rank=0, ranks_per_node=1, master_addr="127.0.0.1", master_port=1, attempt=None)


def run_with(limit_s: float) -> RunFile:
    return RunFile(job="x", run=RunConfig(), budget=BudgetState(max_run_s=limit_s))


def test_no_rank_is_started_once_the_budget_is_spent(tmp_path: Path) -> None:
    attempts(tmp_path, (100.0, 130.0), (200.0, 220.0))
    budget_check.check(settings(tmp_path), run_with(70.0))
    with pytest.raises(TrainerError) as caught:
        budget_check.check(settings(tmp_path), run_with(50.0))
    assert caught.value.code == ExitCode.BUDGET
    assert not may_restart(ExitCode.BUDGET)


def test_what_the_guard_kept_back_is_not_enough_for_another_attempt(tmp_path: Path) -> None:
    attempts(tmp_path, (100.0, 195.0))
    with pytest.raises(TrainerError, match="earlier attempts took 95 s"):
        budget_check.check(settings(tmp_path), run_with(100.0))
    budget_check.check(settings(tmp_path), run_with(200.0))  # the budget was raised


def test_no_rank_is_started_after_the_deadline(tmp_path: Path) -> None:
    run = RunFile(job="x", run=RunConfig(), budget=BudgetState(deadline_s=time.time() - 1))
    with pytest.raises(TrainerError, match="deadline"):
        budget_check.check(settings(tmp_path), run)


def progress(step_s: float = 1.0, save_s: float = 0.0) -> Progress:
    return Progress("pretrain", 10, 100, 1.0, step_s, save_s)


@pytest.mark.parametrize(("spent", "save_s", "stops"), [(0.0, 0.0, False), (90.0, 0.0, False), (95.0, 0.0, True), (50.0, 30.0, True), (50.0, 10.0, False)])
def test_the_guard_stops_while_a_checkpoint_still_fits(spent: float, save_s: float, stops: bool) -> None:
    guard = BudgetGuard(BudgetState(max_run_s=100.0, spent_s=spent))
    objection = guard.after_step(progress(save_s=save_s))
    assert (objection is not None) == stops
    if objection is not None:
        assert objection.code is ExitCode.BUDGET


def test_a_job_without_a_budget_is_never_stopped() -> None:
    assert BudgetGuard(BudgetState()).after_step(progress(1e9)) is None


def pod_of(*overrides: str) -> dict[str, object]:
    files = render(make_plan(load_spec("d20", ["image.registry=r.example.com/x", *overrides]).spec, TODAY)).files
    job = next(yaml.safe_load(text) for name, text in files.items() if name.endswith("job.yaml"))
    found: dict[str, object] = job["spec"]["tasks"][0]["template"]["spec"]
    return found


def test_the_manifest_has_a_deadline_beyond_the_budget() -> None:
    pod = pod_of("budget.max_hours=2", "lifecycle.grace_period_s=300")
    assert pod["activeDeadlineSeconds"] == 2 * 3600 + 300
    assert "activeDeadlineSeconds" not in pod_of()


def test_money_is_turned_into_hours_by_the_price() -> None:
    pod = pod_of(PRICE, "budget.max_total=48")
    assert pod["activeDeadlineSeconds"] == 2 * 3600 + 300  # 8 NPUs at 3 CNY are 24 an hour


def test_refuse_holds_the_estimate_and_lets_a_running_job_finish() -> None:
    assert "activeDeadlineSeconds" not in pod_of("budget.max_hours=2", "budget.on_limit=refuse")
    assert pod_of("budget.max_hours=2", "lifecycle.max_hours=3", "budget.on_limit=refuse")["activeDeadlineSeconds"] == 3 * 3600 + 300


@pytest.mark.parametrize(
    ("overrides", "billed"),
    [
        (["resources.npus_per_node=4"], 4), (["resources.npus_per_node=4", "price.bill=nodes"], 8), (["resources.nodes=2"], 16),
        (["resources.npus_per_node=0", "resources.npu=null"], 0),
    ],
)
def test_whole_nodes_are_paid_where_whole_nodes_are_given(overrides: list[str], billed: int) -> None:
    assert billed_npus(load_spec("d20", [PRICE, *overrides]).spec) == billed


@pytest.mark.parametrize("more", [[PRICE, "estimate.image_gb=12"], ["budget.max_hours=9"], ["lifecycle.max_hours=9"]])
def test_prices_assumptions_and_limits_do_not_change_a_jobs_identity(more: list[str]) -> None:
    plain, changed = (make_plan(load_spec("d20", overrides).spec, TODAY) for overrides in ([], more))
    assert plain.submission_id == changed.submission_id
