"""One job with every stage, reinforcement learning and report included, on one rank and on four; and again after a failure."""

import json
from pathlib import Path
from typing import Any

import pytest
from launchers import Nodes

from nanochat.contract import ExitCode, RunConfig, layout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
STAGES = ["tokenizer", "pretrain", "eval", "sft", "eval", "rl", "eval", "report"]


def config(task: str, digits: Path) -> RunConfig:
    """A two-layer model of the tiny world, which is also taught to say any digit, and then rewarded for even ones."""
    return RunConfig.model_validate({
        "stages": STAGES, "data": {"source": "toy", "toy_documents": 2000}, "tokenizer": {"vocab_size": 400},
        "model": {"depth": 2, "aspect_ratio": 32, "head_dim": 32, "sequence_len": 64, "window_pattern": "L"},
        "pretrain": {
            "device_batch": 8, "tokens_per_step": 2048, "steps": 80, "warmup_steps": 10, "eval_every": 0, "eval_tokens": 4096, "batch_lr_scale": 0.2,
            "weight_decay_scaled": 0.05,
        },
        "sft": {"data": ["toy", *4 * [str(digits)]], "steps": 60, "eval_every": 0, "eval_tokens": 4096},
        "rl": {
            "task": task, "steps": 20, "examples_per_step": 8, "samples": 8, "device_batch": 32, "max_new_tokens": 4, "top_k": 0, "init_lr_frac": 0.1,
            "eval_every": 0, "eval_examples": 8, "pass_k": 8,
        },
        "checkpoint": {"every_steps": 50, "every_minutes": None},
    })


def run_to(job: Path, run: RunConfig, ranks: int, code: int) -> Nodes:
    nodes = Nodes(job, run, 1, ranks)
    try:
        for process in nodes.processes:
            process.join(600)
        assert [process.exitcode for process in nodes.processes] == [code], nodes.output()
    finally:
        nodes.end()
    return nodes


def stage_events(nodes: Nodes, attempt: int) -> list[tuple[str, str]]:
    return [(e["stage"], e["status"]) for e in nodes.events(attempt) if e["event"] == "stage"]


def results(job: Path, stage: str) -> dict[str, Any]:
    return json.loads(layout.results_file(job, f"eval-{stage}").read_text())


@pytest.mark.parametrize("ranks", [1, 4])
def test_all_stages_run_through_and_a_restart_skips_what_is_finished(tmp_path, ranks, capsys):
    job, digits = tmp_path / "job", tmp_path / "digits.jsonl"
    digits.write_text("\n".join(
        json.dumps([{"role": "user", "content": f"Say a digit, {name}."}, {"role": "assistant", "content": str(digit)}])
        for name in "abcdefgh" for digit in range(10)
    ))
    run_to(job, config("reward_tasks:raising", digits), ranks, ExitCode.BAD_CONFIG)
    nodes = run_to(job, config("reward_tasks:even", digits), ranks, 0)
    assert stage_events(nodes, 1) == [(stage, "skip") for stage in STAGES[:5]] + [(s, status) for s in STAGES[5:] for status in ("start", "end")]
    found = {stage: results(job, stage) for stage in ("pretrain", "sft", "rl")}
    assert [found[stage]["stage"] for stage in found] == ["pretrain", "sft", "rl"]
    passes = [e["value"] for e in nodes.events(1) if e["event"] == "eval" and e["name"] == "pass@1"]
    rewards = [e["reward"] for e in nodes.events(1) if e["event"] == "step" and e["stage"] == "rl"]
    with capsys.disabled():
        print(f"\n{ranks} rank(s): bpb {[round(f['bpb'], 4) for f in found.values()]}, sums {[f['sums']['correct'] for f in found.values()]} of 100, "
              f"facts {[f['facts']['correct'] for f in found.values()]} of 40; pass@1 {passes}; reward {rewards}")
    assert passes[1] >= passes[0] + 0.2
    assert (job / "report.html").is_file()
    assert set(json.loads(layout.results_file(job, "report").read_text())["after"]) == {"pretrain", "sft", "rl"}
