"""A job whose budget runs out while it trains: a checkpoint, exit code 81, no restart, and nothing left for another attempt."""

import datetime
import time
from dataclasses import replace

from nanochat import ledger
from nanochat.contract import BudgetState, ExitCode, layout
from nanochat_npu import jobs
from nanochat_npu.backends import ENDED, JobState, JobView, Submission, connect
from nanochat_npu.commands.submit import spec_text
from nanochat_npu.jobs import JobFolder
from nanochat_npu.load import load_spec
from nanochat_npu.plan import Plan, make_plan

SETTINGS = [
    "name=capped", "run.stages=[tokenizer, pretrain]", "run.pretrain.steps=100000", "run.pretrain.eval_every=0", "run.pretrain.eval_tokens=2048",
    "run.data.toy_documents=300", "run.tokenizer.vocab_size=300", "run.pretrain.tokens_per_step=256", "run.pretrain.device_batch=2", "run.checkpoint.every_minutes=null",
]
LIMIT_S = 600.0
"""For the whole test on a busy computer; it ends as soon as the budget does."""


def capped_plan(seconds: float) -> Plan:
    plan = make_plan(load_spec("tiny", SETTINGS).spec, datetime.date(2026, 11, 30))
    return replace(plan, run_file=plan.run_file.model_copy(update={"budget": BudgetState(max_run_s=seconds)}))


def run_to_end(plan: Plan) -> JobView:
    backend = connect("local")
    backend.submit(Submission(plan, spec_text(plan.spec)))
    deadline = time.monotonic() + LIMIT_S
    while (view := backend.get(plan.name)).state not in ENDED and time.monotonic() < deadline:
        time.sleep(0.2)
    return view


def newest_step(folder: JobFolder) -> int:
    return max(int(path.parent.name.removeprefix("step_")) for path in layout.checkpoints_dir(folder.path, "pretrain").glob("step_*/manifest.json"))


def test_the_budget_ends_the_job_with_a_checkpoint_and_no_restart() -> None:
    view = run_to_end(capped_plan(12.0))
    assert (view.state, view.exit_code) == (JobState.FAILED, ExitCode.BUDGET), view.reason
    assert view.attempt == 0
    folder = JobFolder(jobs.home_dir() / "jobs" / "capped")
    checkpoints = sorted(layout.checkpoints_dir(folder.path, "pretrain").glob("step_*/manifest.json"))
    assert checkpoints, "no checkpoint was written at the margin"
    # The same budget is spent for whoever starts the job again, before a rank is started.
    again = run_to_end(capped_plan(12.0))
    assert again.exit_code == ExitCode.BUDGET
    assert "earlier attempts took" in again.reason
    assert sorted(layout.checkpoints_dir(folder.path, "pretrain").glob("step_*/manifest.json")) == checkpoints
    # More of it lets the same job go on from there.
    more = run_to_end(capped_plan(ledger.spent_s(folder.path) + 25.0))
    assert (more.attempt, more.exit_code) == (2, ExitCode.BUDGET)
    assert newest_step(folder) > int(checkpoints[-1].parent.name.removeprefix("step_"))
