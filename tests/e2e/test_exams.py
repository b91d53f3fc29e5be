"""Fine-tuning on records of which some are wrong, and evaluations, through the launcher on one rank and on two."""

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from core_bundle import write_bundle
from launchers import Nodes
from task_files import write_tasks

from nanochat.contract import ExitCode, RunConfig, layout

Start = Callable[..., Nodes]


def config(**blocks: Any) -> RunConfig:
    base = {
        "stages": ["tokenizer", "pretrain", "sft", "eval"], "data": {"source": "toy", "toy_documents": 200}, "tokenizer": {"vocab_size": 300},
        "model": {"depth": 2, "aspect_ratio": 16, "head_dim": 16, "sequence_len": 256, "window_pattern": "L"},
        "pretrain": {
            "device_batch": 1, "tokens_per_step": 512, "steps": 2, "warmup_steps": 1, "eval_every": 0, "eval_tokens": 512, "batch_lr_scale": 0.1,
            "weight_decay_scaled": 0.1,
        },
        "sft": {"steps": 2, "eval_every": 0, "eval_tokens": 512}, "checkpoint": {"every_minutes": None},
    }
    return RunConfig.model_validate({**base, **{key: {**base.get(key, {}), **value} if isinstance(value, dict) else value for key, value in blocks.items()}})


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Nodes] = []

    def _start(job: str, run: RunConfig, per_node: int = 1, fault: str = "") -> Nodes:
        started.append(Nodes(tmp_path / job, run, 1, per_node, {"FAULT": fault} if fault else {}))
        return started[-1]

    yield _start
    for nodes in started:
        nodes.end()


def results(nodes: Nodes, name: str = "eval-sft") -> dict[str, Any]:
    return json.loads(layout.results_file(nodes.job, name).read_text())


def test_core_and_chatcore_are_the_same_on_two_ranks_and_stand_beside_gpt2(start, tmp_path):
    run = config(
        data={"tasks_dir": str(write_tasks(tmp_path / "tasks"))},
        eval={"tasks": ["core", "chatcore", "facts"], "bundle": str(write_bundle(tmp_path / "bundle")), "max_per_task": 6, "max_new_tokens": 4},
    )
    one, two = start("one", run), start("two", run, 2)
    assert one.wait() == [0], one.output()
    assert two.wait() == [0], two.output()
    assert {k: v for k, v in results(one).items() if k != "facts"} == {k: v for k, v in results(two).items() if k != "facts"}
    found = results(one)
    assert [entry["task"] for entry in found["chatcore"]["tasks"]] == ["arc-easy", "arc-challenge", "mmlu", "gsm8k", "humaneval"]
    assert found["core"]["reference"]["gpt2 1.6B"] == 0.256525
    assert {entry["total"] for entry in found["core"]["tasks"]} == {6}
    rows = list(csv.DictReader(layout.results_file(one.job, "eval-sft").with_suffix(".csv").read_text().splitlines()))
    assert {row["measure"] for row in rows} == {"core", "chatcore", "facts"}
    assert next(row["centred"] for row in rows if row["task"] == "mean of gpt2 1.6B") == "0.256525"
    warned = [e["message"] for e in one.events() if e.get("code") == "runs_model_code"]
    assert len(warned) == 1 and "use the network" in warned[0]
    told = {e["name"]: e["value"] for e in one.events() if e["event"] == "eval"}
    assert told["core"] == found["core"]["value"]
    assert told["chatcore"] == found["chatcore"]["value"]


def write_conversations(path: Path) -> str:
    lines = [json.dumps([{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": str(i)}]).encode() for i in range(30)]
    long = [{"role": "user", "content": "very long " * 30_000}, {"role": "assistant", "content": "yes"}]
    lines[14] = json.dumps(long).encode()
    lines[16] = json.dumps([{"role": "user", "content": "go on"}, {"role": "assistant", "content": "and on " * 30_000}]).encode()  # is cut, and learnt from
    lines[3], lines[7], lines[11] = b"{broken", b'[{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]', '"\u00e9"'.encode("latin-1")
    path.write_bytes(b"\n".join(lines))
    return str(path)


def test_wrong_records_are_refused_before_training_with_file_and_line(start, tmp_path):
    nodes = start("job", config(sft={"data": [write_conversations(tmp_path / "c.jsonl")]}), 2)
    assert nodes.wait() == [ExitCode.BAD_DATA], nodes.output()
    assert "not JSON" in nodes.verdict()["message"]
    assert nodes.verdict()["where"].endswith("c.jsonl:4")
    assert not nodes.losses(0, "sft")


def test_a_question_that_fills_the_row_is_refused_with_file_and_line(start, tmp_path):
    lines = [json.dumps([{"role": "user", "content": f"say {i}" * (1 if i != 4 else 40_000)}, {"role": "assistant", "content": str(i)}]) for i in range(9)]
    (tmp_path / "long.jsonl").write_text("\n".join(lines))
    nodes = start("job", config(sft={"data": [str(tmp_path / "long.jsonl")]}), 2)
    assert nodes.wait() == [ExitCode.BAD_DATA], nodes.output()
    assert "nothing within the first 257 tokens" in nodes.verdict()["message"]
    assert nodes.verdict()["where"].endswith("long.jsonl:5")


def test_wrong_records_are_skipped_named_and_counted(start, tmp_path):
    data = [write_conversations(tmp_path / "c.jsonl"), "spelling"]
    nodes = start("job", config(stages=["tokenizer", "pretrain", "sft", "report"], sft={"data": data, "on_bad_record": "skip"}))
    assert nodes.wait() == [0], nodes.output()
    warning = next(event["message"] for event in nodes.events() if event.get("code") == "records_skipped")
    assert warning.startswith("4 conversations are left out")
    assert all(f"c.jsonl:{line}:" in warning for line in (4, 8, 12, 15)), warning
    assert "nothing within the first 257 tokens" in warning
    stages = json.loads(layout.stages_file(nodes.job).read_text())["stages"]
    assert stages["2"]["result"]["skipped_records"] == 4


def test_wrong_records_of_a_published_set_are_counted_and_told(start, tmp_path):
    """Nobody looks through half a million records beforehand: they are met while training, on whichever rank."""
    (tmp_path / "tasks" / "smoltalk").mkdir(parents=True)
    rows = [[{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": "" if i in (2, 5, 11) else str(i)}] for i in range(20)]
    for split in ("train", "test"):
        (tmp_path / "tasks" / "smoltalk" / f"{split}.jsonl").write_text("\n".join(json.dumps({"messages": row}) for row in rows if split == "train" or row[1]["content"]))
    own = write_conversations(tmp_path / "c.jsonl")
    run = config(
        stages=["tokenizer", "pretrain", "sft"], data={"tasks_dir": str(tmp_path / "tasks")},
        sft={"data": ["smoltalk", own, "smoltalk"], "on_bad_record": "skip", "steps": 4},
    )
    nodes = start("job", run, 2, fault="counts_readings_of_own_files")
    assert nodes.wait() == [0], nodes.output()
    warnings = [event["message"] for event in nodes.events() if event.get("code") == "records_skipped"]
    assert len(warnings) == 2
    assert warnings[1].startswith("3 records of published sets were left out: ")
    assert all(f"smoltalk train, record {number}: message 1: the assistant says nothing" in warnings[1] for number in (2, 5, 11))
    assert json.loads(layout.stages_file(nodes.job).read_text())["stages"]["2"]["result"]["skipped_records"] == 3 + 4
    assert Path(own).with_suffix(".readings").read_text() == "rank 0\n", "one's own file is tokenised once at the start"


def test_a_task_without_its_examples_stops_before_any_is_scored(start, tmp_path):
    nodes = start("job", config(data={"tasks_dir": str(tmp_path)}, eval={"tasks": ["gsm8k"]}), 2)
    assert nodes.wait() == [ExitCode.BAD_DATA], nodes.output()
    assert "gsm8k (test) are not here" in nodes.verdict()["message"]


def test_finetuning_on_other_ranks_takes_the_optimizers_state_along(start, tmp_path):
    base = start("base", config(stages=["tokenizer", "pretrain"], pretrain={"steps": 3}), 2)
    assert base.wait() == [0], base.output()
    run = config(stages=["tokenizer", "pretrain", "sft"], pretrain={"steps": 3}, sft={"steps": 3})
    losses = []
    for job, ranks in (("one", 1), ("two", 2)):
        shutil.copytree(tmp_path / "base", tmp_path / job, ignore=shutil.ignore_patterns("attempts", "ledger.json", "*.log"))
        nodes = start(job, run, ranks)
        assert nodes.wait() == [0], nodes.output()
        assert not nodes.losses()
        losses.append(nodes.losses(0, "sft"))
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)
