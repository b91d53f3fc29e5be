"""One job with every stage, reinforcement learning and report included, on one rank and on four; and again after a failure.

Every evaluation that there is runs after every training stage; what comes out is sampled from, exported, and scored again on one rank.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from core_bundle import write_bundle
from launchers import Nodes
from task_files import write_tasks

from nanochat.contract import ExitCode, RunConfig, layout
from nanochat.device import pick
from nanochat.engine import Engine, Sampling
from nanochat.export.command import main as export
from nanochat.trained import TrainedModel, open_trained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
STAGES = ["tokenizer", "pretrain", "eval", "sft", "eval", "rl", "eval", "report"]


EVALUATIONS = ["bpb", "toy", "core", "chatcore", "spelling", "samples"]


def config(task: str, folder: Path, stages: list[str] = STAGES) -> RunConfig:
    """A two-layer model of the tiny world, which is also taught to say any digit, and then rewarded for even ones."""
    digits = folder / "digits.jsonl"
    return RunConfig.model_validate({
        "stages": stages, "data": {"source": "toy", "toy_documents": 2000, "tasks_dir": str(folder / "tasks")}, "tokenizer": {"vocab_size": 400},
        "model": {"depth": 2, "aspect_ratio": 32, "head_dim": 32, "sequence_len": 256, "window_pattern": "L"},
        "eval": {"tasks": EVALUATIONS, "bundle": str(folder / "bundle"), "max_per_task": 6, "max_new_tokens": 8},
        "pretrain": {
            "device_batch": 2, "tokens_per_step": 2048, "steps": 80, "warmup_steps": 10, "eval_every": 0, "eval_tokens": 4096, "batch_lr_scale": 0.2,
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


def check_engine(trained: TrainedModel) -> None:
    """Greedy answers are those of the model without a cache."""
    prompts = [trained.tokenizer.render_for_completion([{"role": "user", "content": text}]) for text in ("2 + 3?", "Say a digit, c.")]
    for prompt, answer in zip(prompts, Engine(trained.model, trained.tokenizer).complete(prompts, Sampling(12, 0.0)), strict=True):
        tokens = list(prompt)
        for token in answer.tokens:
            with torch.inference_mode():
                assert int(trained.model(torch.tensor([tokens]))[0, -1].argmax()) == token
            tokens.append(token)


def check_export(job: Path, trained: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exported model is the model, as transformers loads it."""
    import transformers
    from transformers import dynamic_module_utils

    assert export(["--job-dir", str(job), "--format", "hf", "--to", str(job / "exported")]) == 0
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(job / "modules"))
    transformers.utils.logging.set_verbosity_error()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(job / "exported", trust_remote_code=True, local_files_only=True)
    tokens = torch.tensor([[trained.tokenizer.bos_id, *trained.tokenizer.encode("Pim lives in the forest. 2 + 3 = 5.")]])
    with torch.inference_mode():
        torch.testing.assert_close(loaded(tokens).logits, trained.model(tokens), atol=2e-5, rtol=1e-5)


def counts(found: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the order of summation."""
    return {name: {k: v for k, v in value.items() if k != "wrong"} for name, value in found.items() if isinstance(value, dict)}


@pytest.mark.parametrize("ranks", [1, 4])
def test_all_stages_run_through_and_a_restart_skips_what_is_finished(tmp_path, ranks, capsys, monkeypatch):
    job = tmp_path / "job"
    write_tasks(tmp_path / "tasks")
    write_bundle(tmp_path / "bundle")
    (tmp_path / "digits.jsonl").write_text("\n".join(
        json.dumps([{"role": "user", "content": f"Say a digit, {name}."}, {"role": "assistant", "content": str(digit)}])
        for name in "abcdefgh" for digit in range(10)
    ))
    run_to(job, config("reward_tasks:raising", tmp_path), ranks, ExitCode.BAD_CONFIG)
    nodes = run_to(job, config("reward_tasks:even", tmp_path), ranks, 0)
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
    for measured in found.values():
        assert {"bpb", "sums", "facts", "held_out_sums", "core", "chatcore", "spelling"} <= set(measured)
        assert [task["total"] for task in measured["core"]["tasks"]] == [6] * 6
    assert [e["prompt"] for e in nodes.events(1) if e["event"] == "sample"]
    trained = open_trained(job, pick("cpu"))
    assert trained.manifest.stage == "rl"
    check_engine(trained)
    check_export(job, trained, monkeypatch)
    alone = tmp_path / "alone"
    shutil.copytree(job, alone, ignore=shutil.ignore_patterns("attempts", "ledger.json", "results", "*.log", "exported", "modules"))
    run_to(alone, config("reward_tasks:even", tmp_path, ["eval"]), 1, 0)
    again = results(alone, "rl")
    assert counts(again) == counts(found["rl"])
    assert again["bpb"] == pytest.approx(found["rl"]["bpb"], rel=1e-5)
