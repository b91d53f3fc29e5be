"""The self-check on a CPU: it passes, it writes its file, and it does not pass what is wrong."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from simulated_ranks import run_ranks

from nanochat import selfcheck
from nanochat.device import pick
from nanochat.distributed import Communicator
from nanochat.selfcheck import CHECKS, Machine, check, main


def test_all_checks_pass_on_a_cpu_and_leave_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "check.json"
    assert main(["--device", "cpu", "--steps", "6", "--to", str(path)]) == 0
    report = json.loads(path.read_text())
    assert [entry["name"] for entry in report["checks"]] == list(CHECKS) and all(entry["passed"] for entry in report["checks"])
    assert report["about"]["device"] == "cpu" and report["about"]["torch"] == torch.__version__
    assert "ok  training" in capsys.readouterr().out


def test_a_trace_of_training_steps_is_written_where_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "CHECKS", {"training": selfcheck.CHECKS["training"]})
    assert main(["--device", "cpu", "--steps", "6", "--to", str(tmp_path / "check.json"), "--profile", str(tmp_path / "trace")]) == 0
    (trace,) = (tmp_path / "trace").glob("*.pt.trace.json")
    names = {event.get("name", "") for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"aten::mm", "aten::bmm"} <= names, "matrix products of the model and of the optimizer"


def test_a_wrong_operation_is_named_and_costs_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = selfcheck.rms_norm
    calls = []

    def wrong_the_second_time(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return right(x) * (1.01 if len(calls) > 1 else 1.0)

    monkeypatch.setattr(selfcheck, "rms_norm", wrong_the_second_time)
    result = check("operations", Machine(pick("cpu")))
    assert not result.passed and "rms_norm is off by 0.0" in result.problem
    monkeypatch.setattr(selfcheck, "CHECKS", {"operations": selfcheck.CHECKS["operations"]})
    calls.clear()
    assert main(["--device", "cpu", "--to", str(tmp_path / "check.json")]) == 69


def test_an_operator_that_runs_on_the_cpu_instead_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def falls_back(machine: Machine) -> dict[str, object]:
        warnings.warn("CAUTION: The operator 'aten::lerp' is not currently supported on the NPU backend and will fall back to run on the CPU.", stacklevel=1)
        return {"right": True}

    monkeypatch.setattr(selfcheck, "CHECKS", {"operations": falls_back})
    result = check("operations", Machine(pick("cpu")))
    assert not result.passed and "not done on the device" in result.problem and "aten::lerp" in result.problem


def test_a_missing_npu_is_said_and_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "npu", "--to", str(tmp_path / "none.json")]) == 78
    assert "torch_npu cannot be loaded" in capsys.readouterr().err and not (tmp_path / "none.json").exists()


def test_collectives_are_checked_over_two_ranks() -> None:
    def work(comm: Communicator):
        return check("collectives", Machine(pick("cpu"), comm))

    for result in run_ranks(2, work):
        assert result.passed, result.problem
        assert set(result.values) == {"all_reduce", "reduce_scatter", "all_gather"}
