"""Tasks from files: read as they are published, scored by their rules, and named where they are wrong."""

import json
import re
import time
from pathlib import Path

import pytest
import torch
from task_files import SMOLTALK, run_with, write_tasks

from nanochat.contract import ModelConfig, ModelShape
from nanochat.conversation import check
from nanochat.data.conversations import open_conversations
from nanochat.errors import BadConfig, BadData
from nanochat.model import build
from nanochat.tasks.choices import score_choices
from nanochat.tasks.gsm8k import final_number, solution_parts
from nanochat.tasks.humaneval import extract_code
from nanochat.tasks.registry import CHAT_CORE, open_task
from nanochat.tasks.sandbox import Limits, run_program
from nanochat.tokenizer import Tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "tasks")


@pytest.mark.parametrize("name", [*CHAT_CORE, "spelling", "sums"])
def test_the_right_answer_of_every_task_counts_as_right_and_another_does_not(folder, name):
    task = open_task(name, run_with(folder), "val")
    for i in range(min(len(task), 50)):
        example = task[i]
        answer = example["messages"][-1]["content"]
        text = answer if isinstance(answer, str) else "".join(part["text"] for part in answer if part["type"] == "text")
        check(example)
        assert task.is_right(example, text)
        assert not task.is_right(example, "#### 123456789")


def test_choices_keep_their_own_labels(folder):
    task = open_task("arc-easy", run_with(folder), "val")
    assert task[1]["letters"] == ["1", "2", "3"]
    assert "2) four" in task[1]["messages"][0]["content"]


@pytest.mark.parametrize(("text", "number"), [("#### 7", "7"), ("#### -1,234.50 x", "-1234.50"), ("#### 5.0", "5"), ("#### 1\n#### 2", "2"), ("7", None), ("####", None), ("#### 12.", "12")])
def test_the_number_of_an_answer_is_what_follows_the_marks(text, number):
    assert final_number(text) == number


def test_marks_of_a_solution_become_calls_of_the_calculator():
    assert solution_parts("so <<1+2=3>>3.\n#### 3") == [
        {"type": "text", "text": "so "}, {"type": "python", "text": "1+2"}, {"type": "python_output", "text": "3"}, {"type": "text", "text": "3.\n#### 3"},
    ]


def test_spelling_counts_right_and_validation_has_other_words():
    train, val = (open_task("spelling", run_with(None), split) for split in ("train", "val"))
    words = []
    for task in (train, val):
        calls = [task[i]["messages"][-1]["content"] for i in range(200)]
        words.append({re.findall(r'"(\w+)"', parts[1]["text"])[0] for parts in calls})
        assert all(str(eval(parts[1]["text"])) == parts[2]["text"] for parts in calls)
    assert len(words[0] & words[1]) < 5


@pytest.mark.parametrize(("program", "end"), [
    ("print('x')", "ok"), ("raise SystemExit(3)", "failed"), ("while True: pass", "timeout"), ("x = 'a' * 10**9", "failed"),
    ("open('big', 'wb').write(b'x' * 10**7)", "failed"), ("import time; time.sleep(60)", "timeout"), ("def f(:", "failed"),
    ("import os; assert not os.environ.get('HOME')", "ok"), ("import numpy", "failed"),
])
def test_programs_are_held_to_their_limits(program, end):
    assert run_program(program, Limits(wall_s=1.0)).end == end


def test_a_program_leaves_no_process_behind(tmp_path):
    pid_file = tmp_path / "pid"
    program = f"import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\nopen({str(pid_file)!r}, 'w').write(str(p.pid))"
    assert run_program(program, Limits(wall_s=10.0, memory_bytes=2**30)).end == "ok"
    deadline = time.monotonic() + 10
    while _runs(int(pid_file.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("answer", "code"), [("x\n```python\na = 1\n```\ny", "a = 1"), ("a = 1\n", "a = 1"), ("```\na\n```", "a"), ("```py\na", "a")])
def test_code_is_taken_out_of_its_fence(answer, code):
    assert extract_code(answer) == code


def test_a_body_alone_is_put_under_its_function(folder):
    task = open_task("humaneval", run_with(folder), "val")
    assert task.is_right(task[0], "    return sum(numbers)")
    assert not task.is_right(task[0], "    return 3")


def test_missing_examples_name_the_file_and_what_to_do(tmp_path):
    with pytest.raises(BadData, match=r"arc-easy/test\.parquet: the examples of arc-easy \(test\) are not here .*stage data"):
        open_task("arc-easy", run_with(tmp_path), "val")
    with pytest.raises(BadConfig, match=r"run\.data\.tasks_dir"):
        open_task("gsm8k", run_with(None), "val")


@pytest.mark.parametrize(("text", "told"), [("{broken", r"train\.jsonl:1: not JSON"), ("[" * 100_000, r"train\.jsonl:1: not JSON"), ('{"question": "x"}', "example 0 of gsm8k"), ("[1]", r"train\.jsonl:1: not an object"), ("", "has no examples")])
def test_a_damaged_file_is_named(folder, text, told):
    (folder / "gsm8k" / "train.jsonl").write_text(text)
    with pytest.raises(BadData, match=told):
        open_task("gsm8k", run_with(folder), "train")


def test_a_truncated_parquet_file_is_named(folder):
    (folder / "mmlu" / "test.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(BadData, match=r"mmlu/test\.parquet: the file is damaged"):
        open_task("mmlu", run_with(folder), "val")


def test_the_usual_mixture_takes_mmlu_three_times_and_gsm8k_four_times(folder):
    run = run_with(folder)
    train, val = open_conversations(run, "train"), open_conversations(run, "val")
    assert len(train) == 30 + 3 * 2 + 4 * 2
    assert len(val) == 4 + 2 + 2
    assert train[29] == SMOLTALK[29]
    assert all(check(train[i]) for i in range(len(train)))
    assert train.fingerprint != val.fingerprint


def test_letters_are_compared_whatever_the_padding(folder):
    tokenizer = Tokenizer.train(["x"], 265)
    config = ModelConfig(depth=2, aspect_ratio=16, head_dim=16, sequence_len=256, window_pattern="L")
    model = build(ModelShape.of(config, tokenizer.vocab_size), torch.float32, "cpu", 0).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(generator=torch.Generator().manual_seed(1))
    task = open_task("arc-easy", run_with(folder), "val")
    together = score_choices(model, tokenizer, task, [0, 1], rows=2)
    right = 0
    for i in (0, 1):
        example = task[i]
        logits = model(torch.tensor([tokenizer.render_for_completion(example)]))[0, -1]
        best = max(example["letters"], key=lambda letter: float(logits[tokenizer.encode(letter)[0]].detach()))
        right += best == example["messages"][-1]["content"]
    assert (together.correct, together.total) == (right, 2)


@pytest.mark.parametrize(("task", "record", "told"), [
    ("gsm8k", {"question": 1, "answer": "x"}, "example 0 of gsm8k .*question is no text"),
    ("humaneval", {"prompt": "a", "canonical_solution": "b", "test": 3, "entry_point": "f"}, "example 0 of humaneval .*test is no text"),
    ("arc-easy", {"question": "a", "choices": "x", "answerKey": "A"}, "example 0 of arc-easy is not as it should be"),
    ("arc-easy", {"question": "a", "choices": {"text": ["a"]}, "answerKey": "A"}, "example 0 of arc-easy is not as it should be: 'label'"),
    ("mmlu", {"question": "a", "choices": 5, "answer": 0}, "example 0 of mmlu is not as it should be"),
    ("mmlu", {"question": "a", "choices": ["a", "b"], "answer": "x"}, "example 0 of mmlu is not as it should be"),
    ("mmlu", {"question": "a", "choices": ["a", "b"], "answer": 70}, "example 0 of mmlu is not as it should be"),
])
def test_examples_of_other_types_are_bad_data_and_no_bug(tmp_path, task, record, told):
    (tmp_path / task).mkdir()
    (tmp_path / task / "test.jsonl").write_text(json.dumps(record))
    with pytest.raises(BadData, match=told):
        open_task(task, run_with(tmp_path), "val")
