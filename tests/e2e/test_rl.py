"""Reinforcement learning through the launcher, on a task of our own: a model that says any digit learns to say even ones."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launchers import Nodes

from nanochat.contract import ExitCode, RunConfig, layout
from nanochat.tokenizer import Tokenizer

STEPS = 16
Start = Callable[..., Nodes]


def config(conversations: Path, *, stages: list[str], task: str = "reward_tasks:even", **rl: Any) -> RunConfig:
    """A one-layer model that learns to answer with a digit in a few seconds."""
    return RunConfig.model_validate({
        "stages": stages, "data": {"source": "toy", "toy_documents": 200}, "tokenizer": {"vocab_size": 300},
        "model": {"depth": 2, "aspect_ratio": 16, "head_dim": 16, "sequence_len": 48, "window_pattern": "L"},
        "pretrain": {
            "device_batch": 8, "tokens_per_step": 768, "steps": 2, "warmup_steps": 2, "eval_every": 0, "eval_tokens": 256,
            "batch_lr_scale": 0.1, "weight_decay_scaled": 0.1,
        },
        "sft": {"data": [str(conversations)], "steps": 50, "eval_every": 0, "eval_tokens": 256},
        "rl": {
            "task": task, "steps": STEPS, "examples_per_step": 4, "samples": 8, "max_new_tokens": 4, "top_k": 0, "init_lr_frac": 1.0,
            "eval_every": 0, "eval_examples": 8, "pass_k": 8, **rl,
        },
        "checkpoint": {"every_steps": 4, "every_minutes": None},
    })


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job whose model says digits, every one about equally often."""
    folder = tmp_path_factory.mktemp("taught")
    lines = [
        json.dumps([{"role": "user", "content": f"Say a digit, {name}."}, {"role": "assistant", "content": str(digit)}])
        for name in "abcdefgh" for digit in range(10)
    ]
    (folder / "digits.jsonl").write_text("\n".join(lines))
    nodes = Nodes(folder / "base", config(folder / "digits.jsonl", stages=["tokenizer", "pretrain", "sft"]), 1, 1)
    try:
        assert nodes.wait() == [0], nodes.output()
    finally:
        nodes.end()
    return folder


@pytest.fixture
def start(tmp_path: Path, taught: Path) -> Iterator[Start]:
    started: list[Nodes] = []

    def _start(job: str, per_node: int = 1, depth: int = 2, **rl: Any) -> Nodes:
        if not (tmp_path / job).exists():
            shutil.copytree(taught / "base", tmp_path / job, ignore=shutil.ignore_patterns("attempts", "ledger.json", "*.log"))
        run = config(taught / "digits.jsonl", stages=["tokenizer", "pretrain", "sft", "rl"], **rl)
        run = run.model_copy(update={"model": run.model.model_copy(update={"depth": depth, "aspect_ratio": 32 // depth})})
        started.append(Nodes(tmp_path / job, run, 1, per_node))
        return started[-1]

    yield _start
    for nodes in started:
        nodes.end()


def passes(nodes: Nodes, name: str = "pass@1", attempt: int = 0) -> list[float]:
    """Values in the order of steps."""
    return [e["value"] for e in nodes.events(attempt) if e["event"] == "eval" and e["name"] == name]


def test_pass_at_1_rises_by_20_points_and_not_where_nothing_is_rewarded(start, capsys):
    rewarded, not_rewarded = start("rewarded", eval_every=4), start("zeroed", task="reward_tasks:zeroed", eval_every=4)
    assert rewarded.wait() == [0], rewarded.output()
    assert not_rewarded.wait() == [0], not_rewarded.output()
    curve, flat = passes(rewarded), passes(not_rewarded)
    with capsys.disabled():
        print(f"\npass@1 at steps 0, 4, 8, 12, 16: {curve}; with the reward zeroed: {flat}")
    before, after = curve[0], curve[-1]
    assert 0.1 < before < 0.6
    assert after >= before + 0.20
    assert set(flat) == {before}  # where nothing can be learnt, no weight moves
    assert passes(rewarded, "pass@8")[0] >= before


def test_two_ranks_train_like_one(start):
    one, two = start("one"), start("two", 2)
    assert one.wait() == [0], one.output()
    assert two.wait() == [0], two.output()
    rewards = [[e["reward"] for e in nodes.events() if e["event"] == "step" and e["stage"] == "rl"] for nodes in (one, two)]
    assert rewards[0] == rewards[1]
    assert two.losses(0, "rl") == pytest.approx(one.losses(0, "rl"), abs=1e-4)


def test_it_resumes_exactly_with_the_optimizers_state(start, tmp_path):
    straight = start("straight")
    assert straight.wait() == [0], straight.output()
    shutil.copytree(tmp_path / "straight", tmp_path / "again")
    shutil.rmtree(layout.checkpoint_dir(tmp_path / "again", "rl", STEPS))
    record = json.loads(layout.stages_file(tmp_path / "again").read_text())
    del record["stages"]["3"]
    layout.stages_file(tmp_path / "again").write_text(json.dumps(record))
    again = start("again")
    assert again.wait() == [0], again.output()
    expected = straight.losses(0, "rl")
    assert again.losses(1, "rl") == {step: expected[step] for step in range(13, STEPS + 1)}


@pytest.mark.parametrize(("task", "told"), [
    ("reward_tasks:raising", "the reward function raised KeyError: 'verdict'"), ("reward_tasks:hanging", "took more than 0.5 s"),
    ("reward_tasks:no_number", "is nan"), ("reward_tasks:missing", "has no function 'missing'"), ("no_such_module:f", "cannot be imported"),
])
def test_a_reward_function_that_fails_is_named(start, task, told):
    nodes = start("job", 2, task=task, reward_timeout_s=0.5)
    assert nodes.wait() == [ExitCode.BAD_CONFIG], nodes.output()
    assert told in nodes.verdict()["message"]


def test_a_checkpoint_of_another_depth_is_refused_with_what_it_has(start):
    nodes = start("job", depth=4)
    assert nodes.wait() == [ExitCode.BAD_CONFIG], nodes.output()
    assert nodes.verdict()["message"] == "the checkpoint has depth 2, run.model says 4"


def test_a_checkpoint_of_another_tokenizer_is_refused(start, tmp_path, taught):
    shutil.copytree(taught / "base", tmp_path / "job", ignore=shutil.ignore_patterns("attempts", "ledger.json", "*.log"))
    Tokenizer.train(["other text, other merges"] * 9, 265).save(layout.tokenizer_dir(tmp_path / "job"))
    nodes = start("job")
    assert nodes.wait() == [ExitCode.BAD_CONFIG], nodes.output()
    assert "another tokenizer" in nodes.verdict()["message"]
