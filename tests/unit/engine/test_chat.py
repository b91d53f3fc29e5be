"""Chat: one question from a script, a dialogue in a terminal, and clear words where something is missing."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_helpers import BYTES, lively_model, write_job

from nanochat import chat
from nanochat.contract import ExitCode
from nanochat.device import pick
from nanochat.dialogue import Dialogue
from nanochat.engine import PromptTooLong, Sampling
from nanochat.tasks.common import ExactMatchTask, score
from nanochat.trained import open_trained


@pytest.fixture
def job(tmp_path: Path) -> Path:
    write_job(tmp_path / "job", lively_model(), BYTES)
    return tmp_path / "job"


def ask(job: Path, *more: str) -> int:
    return chat.main(["--job-dir", str(job), "--device", "cpu", *more])


def test_one_prompt_one_answer_the_same_each_time(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(job, "--prompt", "hello", "--max-new-tokens", "12") == 0
    first = capsys.readouterr()
    assert ask(job, "--prompt", "hello", "--max-new-tokens", "12") == 0
    assert capsys.readouterr() == first and first.out.endswith("\n") and first.err == ""
    assert ask(job, "--prompt", "hello", "--max-new-tokens", "12", "--seed", "5") == 0
    assert capsys.readouterr().out != first.out


def test_a_prompt_can_come_from_standard_input(job: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(job, "--prompt", "hello")
    direct = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    assert ask(job, "--prompt", "-") == 0
    assert capsys.readouterr().out == direct


def test_a_dialogue_reads_lines_until_its_end(job: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hi\n\n/help\n/clear\nhi\n/quit\nnever\n"))
    assert ask(job, "--temperature", "0", "--max-new-tokens", "8") == 0
    out, err = capsys.readouterr()
    assert len(out.split("\n")) >= 2 and "sft, step 7, context 64 tokens" in err


def test_a_model_that_was_only_pretrained_continues_the_text(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    write_job(tmp_path, lively_model(), BYTES, stage="pretrain")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert ask(tmp_path) == 0
    assert "only pretrained" in capsys.readouterr().err


def test_older_turns_make_room_and_are_counted(job: Path) -> None:
    dialogue = Dialogue(open_trained(job, pick("cpu")), Sampling(max_new_tokens=8))
    for _ in range(6):
        list(dialogue.answer("question"))
    assert dialogue.forgotten > 0 and dialogue.messages[-2]["content"] == "question"
    dialogue.clear()
    assert dialogue.messages == [] and dialogue.forgotten == 0


def test_a_stopped_answer_is_remembered_as_far_as_it_came(job: Path) -> None:
    dialogue = Dialogue(open_trained(job, pick("cpu")), Sampling(max_new_tokens=20))
    answer = dialogue.answer("hi")
    piece = next(answer)
    answer.close()
    assert dialogue.messages == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": piece}]


def test_a_message_longer_than_the_context_is_refused_and_the_dialogue_goes_on(job: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    dialogue = Dialogue(open_trained(job, pick("cpu")), Sampling(max_new_tokens=4))
    with pytest.raises(PromptTooLong):
        list(dialogue.answer("x" * 100))
    assert dialogue.messages == []
    monkeypatch.setattr(sys, "stdin", io.StringIO("x" * 100 + "\nhi\n"))
    assert ask(job, "--max-new-tokens", "4") == 0
    assert "context 64" in capsys.readouterr().err
    assert ask(job, "--prompt", "x" * 100) == ExitCode.USAGE  # the person's: no data is missing
    assert "shorten it" in capsys.readouterr().err


def test_characters_of_several_tokens_come_whole(job: Path) -> None:
    dialogue = Dialogue(open_trained(job, pick("cpu")), Sampling(max_new_tokens=40, temperature=2.0))
    text = "".join(dialogue.answer("x"))
    assert text.encode("utf-8", "strict")


def no_checkpoint(job: Path) -> None:
    (job / "checkpoints/sft/step_000007/manifest.json").unlink()


def torn_weights(job: Path) -> None:
    path = job / "checkpoints/sft/step_000007/model.pt"
    path.write_bytes(path.read_bytes()[:-1])


def damaged_weights(job: Path) -> None:
    path = job / "checkpoints/sft/step_000007/model.pt"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))


def no_tokenizer(job: Path) -> None:
    (job / "tokenizer/tokenizer.json").unlink()


def other_tokenizer(job: Path) -> None:
    path = job / "checkpoints/sft/step_000007/manifest.json"
    record = json.loads(path.read_text())
    record["about"]["tokenizer"] = "other"
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(("damage", "told", "code"), [
    (no_checkpoint, "no complete checkpoint", 65), (torn_weights, "model.pt", 65), (damaged_weights, "checksum", 65),
    (no_tokenizer, "no tokenizer", 65), (other_tokenizer, "another tokenizer", 78),
])
def test_what_is_missing_or_damaged_is_said_in_one_line(job: Path, capsys, damage, told: str, code: int) -> None:
    damage(job)
    assert ask(job, "--prompt", "hi") == code
    out, err = capsys.readouterr()
    assert out == "" and told in err and len(err.strip().split("\n")) == 1


def test_wrong_folder_stage_and_settings_are_said_in_one_line(job: Path, tmp_path: Path, capsys) -> None:
    for arguments, told in [
        (["--job-dir", str(tmp_path / "none"), "--prompt", "x"], "no such job folder"),
        (["--job-dir", str(job), "--stage", "rl", "--prompt", "x"], "no complete checkpoint of stage rl"),
        (["--job-dir", str(job), "--step", "9", "--prompt", "x"], "at step 9"),
        (["--job-dir", str(job), "--temperature", "-1", "--prompt", "x"], "temperature"),
    ]:
        assert chat.main([*arguments, "--device", "cpu"]) in (ExitCode.BAD_DATA, ExitCode.BAD_CONFIG)
        assert told in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    done = subprocess.run(
        [sys.executable, "-m", "nanochat", "chat", "--job-dir", str(tmp_path)], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False,
    )
    assert done.returncode == ExitCode.USAGE and "pip install 'nanochat-npu[train]'" in done.stderr and "Traceback" not in done.stderr


def test_answers_are_scored_by_exact_match_over_any_number_of_ranks(job: Path) -> None:
    dialogue = Dialogue(open_trained(job, pick("cpu")), Sampling())
    engine = dialogue.engine
    pairs = [(f"q{i}", "no") for i in range(7)] + [("x" * 200, "too long")]
    for i in (1, 4):
        prompt = BYTES.render_for_completion({"messages": [{"role": "user", "content": f"q{i}"}]})
        pairs[i] = (f"q{i}", engine.text(engine.complete([prompt], Sampling(8, 0.0))[0]) or "empty")
    task = ExactMatchTask("pairs", pairs)
    whole = score(engine, task, max_new_tokens=8)
    assert (whole.correct, whole.total) == (2, 8) and whole.accuracy == 0.25 and len(whole.wrong) == 5
    parts = [score(engine, task, rank=rank, world_size=3, max_new_tokens=8) for rank in range(3)]
    assert sum(part.correct for part in parts) == 2 and sum(part.total for part in parts) == 8
    assert score(engine, task, limit=2, max_new_tokens=8).total == 2
