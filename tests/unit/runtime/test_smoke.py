"""The all-reduce before the first step: right sums, a bandwidth, and a rank whose link carries rubbish."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from loopback import free_port
from simulated_ranks import run_ranks
from torch import Tensor

from nanochat.contract import RunConfig, RunFile, World
from nanochat.device import pick
from nanochat.distributed import Communicator, Pending
from nanochat.errors import DeviceLost
from nanochat.smoke import Smoke, all_reduce_smoke


def _measure(comm: Communicator) -> Smoke:
    return all_reduce_smoke(comm, pick("cpu"), ranks_per_node=2, elements=1 << 16)


def test_all_ranks_measure_the_same_speed() -> None:
    found = run_ranks(4, _measure)
    assert len({one.bus_gb_per_s for one in found}) == 1, "of the slowest"
    assert found[0].bus_gb_per_s > 0
    assert found[0].per_node_gb_per_s == pytest.approx(2 * found[0].bus_gb_per_s)


class Rubbish(Communicator):
    """A group whose sums are off in one place."""

    def all_reduce(self, tensor: Tensor) -> Pending:
        """One bit too much."""
        tensor[7] += 1
        return Pending(tensor)


def test_wrong_sum_is_a_lost_device() -> None:
    with pytest.raises(DeviceLost, match="ones summed over 1 ranks gave"):
        all_reduce_smoke(Rubbish(), pick("cpu"), 1, elements=64)


def test_job_that_asks_for_it_reports_it_before_its_first_step(tmp_path: Path) -> None:
    run = RunFile(
        job="job", world=World(ranks_per_node=2, device="cpu"),
        run=RunConfig.model_validate({
            "stages": ["tokenizer", "pretrain"], "data": {"source": "toy", "toy_documents": 300}, "tokenizer": {"vocab_size": 512},
            "model": {"depth": 2, "aspect_ratio": 16, "head_dim": 16, "sequence_len": 64},
            "pretrain": {"device_batch": 2, "steps": 1, "tokens_per_step": 256, "eval_tokens": 1024, "batch_lr_scale": 1.0, "weight_decay_scaled": 0.1},
        }),
    )
    (tmp_path / "run.json").write_text(run.model_dump_json())
    env = {**os.environ, "NANOCHAT_JOB_DIR": str(tmp_path), "NANOCHAT_SMOKE": "1", "NANOCHAT_MASTER_PORT": str(free_port())}
    result = subprocess.run([sys.executable, "-m", "nanochat", "launch"], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, (result.stdout + result.stderr)[-2000:]
    kinds = [json.loads(line) for line in (tmp_path / "attempts/0/events.jsonl").read_text().splitlines()]
    names = [event["event"] for event in kinds]
    assert names.index("checks") < names.index("step")
    (check,) = next(event for event in kinds if event["event"] == "checks")["checks"]
    assert check["check"] == "all-reduce" and check["ok"] and check["gb_per_s"] > 0
