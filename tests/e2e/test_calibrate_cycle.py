"""Calibrate, plan, run, compare: for real, on this computer's cores. No assertion on time: that is what is measured."""

import json

import pytest

from nanochat_npu import calibration
from nanochat_npu.jobs import home_dir
from nanochat_npu.ledger import Ledger
from nanochat_npu.main import main

JOB = [
    "tiny", "--set", "name=cycle", "--set", "run.stages=[tokenizer, pretrain]", "--set", "run.pretrain.steps=24", "--set", "run.pretrain.eval_every=12",
    "--set", "run.pretrain.eval_tokens=2048", "--set", "run.data.toy_documents=300", "--set", "run.tokenizer.vocab_size=300",
    "--set", "run.pretrain.tokens_per_step=512", "--set", "run.pretrain.device_batch=2",
]


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as left:
        main(list(args))
    return int(left.value.code or 0), capsys.readouterr().out


def test_calibrate_plan_run_compare(capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads(call(capsys, "plan", *JOB, "-o", "json")[1])
    assert before["tier"] == "C"
    assert "calibrate" in before["basis"]

    code, _out = call(capsys, "calibrate", *JOB, "--steps", "12", "--drop", "3", "--yes")
    assert code == 0
    (record,), problems = calibration.load_all(home_dir())
    assert problems == []
    assert (record.chip, record.depth, record.steps, record.tokens_per_step) == ("cpu", 2, 9, 512)
    assert record.peak_bytes is not None
    assert record.start_s is not None
    assert record.eval_tokens_per_s is not None

    planned = json.loads(call(capsys, "plan", *JOB, "-o", "json")[1])
    assert planned["tier"] == "A"
    assert planned["memory"]["measured"]
    assert planned["speed"]["tokens_per_s"] == pytest.approx(record.tokens_per_s)
    deeper = json.loads(call(capsys, "plan", *JOB, "--set", "run.model.depth=4", "-o", "json")[1])
    assert deeper["tier"] == "B"

    assert call(capsys, "submit", *JOB, "--follow", "--yes")[0] == 0
    code, out = call(capsys, "cost", "report", "-o", "json")
    assert code == 0
    short, line = json.loads(out)["jobs"]
    assert (short["job"], short["state"], short["details"]["calibration"]) == ("calibrate-cycle", "SUSPENDED", True)
    assert (line["job"], line["state"], line["tier"]) == ("cycle", "SUCCEEDED", "A")
    assert line["hours"] > 0
    assert line["actual"]["training_s"] > 0
    measured = Ledger.of(home_dir()).latest("calibrate-cycle")
    assert measured is not None
    assert measured.ratio is None  # what it took says nothing of the estimate of whole jobs
    entry = Ledger.of(home_dir()).latest("cycle")
    assert entry is not None
    assert entry.ratio is not None
    code, out = call(capsys, "status", "cycle", "-o", "json")
    assert json.loads(out)["estimate"]["tier"] == "A"
    # The calibration run was another job: the real one began at its first step.
    assert call(capsys, "cost", "report", "--job", "cycle")[0] == 0
