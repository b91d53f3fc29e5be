"""Twelve and twenty-four ranks, and torchrun: slow to start, and all train what one rank trains."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from launchers import Nodes

from nanochat.contract import RunConfig, RunFile, World, layout
from nanochat.contract.events import parse_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 6
RUN = RunConfig.model_validate({
    "stages": ["tokenizer", "pretrain"], "data": {"source": "toy", "toy_documents": 400}, "tokenizer": {"vocab_size": 300},
    "model": {"depth": 2, "aspect_ratio": 16, "head_dim": 16, "sequence_len": 32, "window_pattern": "L"},
    "pretrain": {
        "device_batch": 1, "tokens_per_step": 24 * 32, "steps": STEPS, "warmup_steps": 2, "eval_every": 3, "eval_tokens": 768,
        "batch_lr_scale": 0.1, "weight_decay_scaled": 0.1,
    },
    "checkpoint": {"every_minutes": None},
})


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    started: list[Nodes] = []

    def _start(name: str, nodes: int, per_node: int) -> Nodes:
        started.append(Nodes(tmp_path / name, RUN, nodes, per_node))
        return started[-1]

    yield _start
    for nodes in started:
        nodes.end()


@pytest.fixture
def reference(start: Callable[..., Nodes]) -> dict[int, float]:
    nodes = start("one", 1, 1)
    assert nodes.wait() == [0], nodes.output()
    assert len(nodes.losses()) == STEPS
    return nodes.losses()


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 12), (3, 8)])
def test_many_ranks_train_like_one(start, reference, nodes, per_node):
    many = start("many", nodes, per_node)
    assert set(many.wait()) == {0}, many.output()
    assert many.losses() == pytest.approx(reference, abs=2e-4)


def test_ranks_under_torchrun_join_one_group(reference, tmp_path):
    job = tmp_path / "torchrun"
    job.mkdir()
    layout.run_file(job).write_text(RunFile(job="torchrun", run=RUN, world=World(ranks_per_node=2, device="cpu")).model_dump_json())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}",
        "-m", "nanochat", "rank",
    ]
    ended = subprocess.run(
        command, env={**os.environ, layout.ENV_JOB_DIR: str(job)}, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    events = parse_lines(layout.events_file(job, 0).read_text().splitlines())
    losses = {event["step"]: event["loss"] for event in events if event["event"] == "step"}
    assert losses == pytest.approx(reference, abs=2e-4)


def test_a_compiled_run_trains_like_an_eager_one(reference, tmp_path):
    nodes = Nodes(tmp_path / "compiled", RUN.model_copy(update={"compile": True}), 1, 1)
    try:
        nodes.processes[0].join(600)
        assert nodes.processes[0].exitcode == 0, nodes.output()
        assert nodes.losses() == pytest.approx(reference, abs=2e-3)  # fused kernels sum in another order
    finally:
        nodes.end()
