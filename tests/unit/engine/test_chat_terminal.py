"""The chat in a real terminal (a pty), as a person uses it, and its commands in a pipe."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from engine_helpers import BYTES, lively_model, write_job

from nanochat import chat
from nanochat.terminal import history_file


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat") / "job"
    write_job(folder, lively_model(), BYTES)
    return folder


@pytest.fixture
def terminal(job: Path, tmp_path: Path) -> Iterator[pexpect.spawn]:
    child = start(job, tmp_path)
    yield child
    child.close(force=True)


def start(job: Path, home: Path) -> pexpect.spawn:
    env = {**os.environ, "NANOCHAT_NPU_HOME": str(home), "TERM": "dumb", "INPUTRC": "/dev/null"}
    child = pexpect.spawn(
        sys.executable, ["-m", "nanochat", "chat", "--job-dir", str(job), "--device", "cpu", "--temperature", "0", "--max-new-tokens", "40"],
        env=env, encoding="utf-8", codec_errors="replace", timeout=60, dimensions=(40, 200),
    )
    child.expect("> $")
    return child


def test_a_person_talks_sets_saves_and_leaves(terminal, tmp_path):
    terminal.sendline("hi")
    terminal.expect("\r\n> $")
    first = terminal.before
    assert len(first.split("\r\n", 1)[1]) > 3  # something was answered
    terminal.sendline("/set temperature 1.5")
    terminal.expect("temperature 1.5 .*top_k 50")
    terminal.sendline("/set top-k many")
    terminal.expect("'many' is not a number")
    terminal.sendline("/set top_p 7")
    terminal.expect("top_p: 7.0 is not possible")
    terminal.sendline("/set colour red")
    terminal.expect("/set NAME VALUE, of temperature")
    terminal.sendline("/frobnicate")
    terminal.expect("there is no /frobnicate")
    terminal.sendline(f"/save {tmp_path / 'talk.md'}")
    terminal.expect("2 turns")
    terminal.sendline(f"/save {tmp_path / 'talk.json'}")
    terminal.expect("2 turns")
    saved = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert [turn["role"] for turn in saved] == ["user", "assistant"]
    assert (tmp_path / "talk.md").read_text().startswith("**user**\n\nhi\n\n**assistant**\n\n")
    terminal.sendline("/save /proc/nowhere/talk.md")
    terminal.expect("/proc/nowhere/talk.md: ")
    terminal.sendline("/save ~nobody-at-all/talk.md")
    terminal.expect("~nobody-at-all/talk.md: .*home directory")
    terminal.sendline("/clear")
    terminal.expect("forgotten")
    terminal.sendline(f"/save {tmp_path / 'empty.json'}")
    terminal.expect("0 turns")
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0


def test_lines_that_go_on_and_texts_in_fences_are_one_message(terminal, tmp_path):
    terminal.sendline("/set max_new_tokens 2")
    terminal.expect("> $")
    terminal.sendline("one\\")
    terminal.expect("… $")
    terminal.sendline("two")
    terminal.expect("> $")
    terminal.sendline('"""three')
    terminal.expect("… $")
    terminal.sendline("  four")
    terminal.expect("… $")
    terminal.sendline('five"""')
    terminal.expect("> $")
    terminal.sendline(f"/save {tmp_path / 'talk.json'}")
    terminal.expect("4 turns")
    saved = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert [turn["content"] for turn in saved[::2]] == ["one\ntwo", "three\n  four\nfive"]


def test_ctrl_c_at_the_prompt_empties_the_line_and_does_not_leave(terminal):
    terminal.send("half a thought")
    terminal.expect("half a thought")  # while Python's readline takes characters in, it overlooks a signal until the next key
    terminal.sendintr()
    terminal.expect("Ctrl-D or /quit leaves")
    terminal.expect("> $")
    terminal.sendline("/quit")
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0


def test_ctrl_c_in_an_answer_stops_it_keeps_what_came_and_the_talk_goes_on(tmp_path):
    """An answer as long as the context, interrupted after its first pieces."""
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import sys, time\n"
        "from nanochat import chat, dialogue\n"
        "real = dialogue.Dialogue._pieces\n"
        "def slowly(self, prompt):\n"
        "    for piece in real(self, prompt):\n"
        "        time.sleep(0.3)\n"
        "        yield piece\n"
        "dialogue.Dialogue._pieces = slowly\n"
        "sys.exit(chat.main(sys.argv[1:]))\n"
    )
    write_job(tmp_path / "job", lively_model(), BYTES)
    env = {**os.environ, "NANOCHAT_NPU_HOME": str(tmp_path), "TERM": "dumb", "INPUTRC": "/dev/null"}
    child = pexpect.spawn(
        sys.executable, [str(slow), "--job-dir", str(tmp_path / "job"), "--device", "cpu", "--max-new-tokens", "40", "--seed", "3"],
        env=env, encoding="utf-8", codec_errors="replace", timeout=60, dimensions=(40, 200),
    )
    try:
        child.expect("> $")
        child.sendline("hi")
        child.expect("hi\r\n[^\r\n]")  # the first piece is on the screen while the rest is not made yet: it streams
        child.sendintr()
        child.expect(r"\(stopped\)")
        child.expect("> $")
        child.sendline(f"/save {tmp_path / 'talk.json'}")
        child.expect("2 turns")
        said = json.loads((tmp_path / "talk.json").read_text())["messages"][1]["content"]
        assert 0 < len(said) < 40
        child.sendline("/quit")
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 0
    finally:
        child.close(force=True)


def test_lines_of_an_earlier_chat_come_back_with_the_arrow_key(job, tmp_path):
    first = start(job, tmp_path)
    first.sendline("/set seed 4711")
    first.expect("seed 4711")
    first.sendline("/quit")
    first.expect(pexpect.EOF)
    first.close()
    assert (tmp_path / "chat_history").read_text().splitlines() == ["/set seed 4711", "/quit"]
    assert (tmp_path / "chat_history").stat().st_mode & 0o077 == 0
    second = start(job, tmp_path)
    second.send("\x1b[A\x1b[A")  # up, up: readline redraws only what differs, so what counts is what the line then does
    second.sendline("")
    second.expect("max_new_tokens 40  seed 4711")
    second.close(force=True)


def test_an_instruction_goes_before_the_turns_and_stays_after_clear(job, tmp_path, monkeypatch, capsys):
    script = f"/set system Be short.\n/set max_new_tokens 2\nhi\n/clear\nho\n/save {tmp_path / 'a.json'}\n/set system\n/save {tmp_path / 'b.json'}\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(script))
    assert chat.main(["--job-dir", str(job), "--device", "cpu"]) == 0
    turns = json.loads((tmp_path / "a.json").read_text())["messages"]
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant"]
    assert [turn["role"] for turn in json.loads((tmp_path / "b.json").read_text())["messages"]] == ["user", "assistant"]


def test_in_a_pipe_answers_alone_are_on_stdout_and_no_history_is_kept(job, tmp_path):
    env = {**os.environ, "NANOCHAT_NPU_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "nanochat", "chat", "--job-dir", str(job), "--device", "cpu", "--temperature", "0", "--max-new-tokens", "4"]
    done = subprocess.run(command, input="hi\n/help\n", capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.returncode == 0
    assert ">" not in done.stdout.replace("\n", "")[:2] and "/clear" in done.stderr and "/clear" not in done.stdout
    assert not (tmp_path / "chat_history").exists()


@pytest.mark.parametrize("prompt", [(), ("--prompt", "-")], ids=["talk", "one question"])
def test_a_text_in_another_encoding_is_no_traceback(job, tmp_path, prompt):
    env = {**os.environ, "NANOCHAT_NPU_HOME": str(tmp_path), "PYTHONIOENCODING": "utf-8:strict"}  # as in most locales of UTF-8
    command = [sys.executable, "-m", "nanochat", "chat", "--job-dir", str(job), "--device", "cpu", "--max-new-tokens", "4", *prompt]
    done = subprocess.run(command, input="caf\u00e9\n".encode("latin-1"), capture_output=True, env=env, timeout=120, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr


def test_ctrl_c_while_the_model_is_loaded_ends_with_130(job, tmp_path):
    env = {**os.environ, "NANOCHAT_NPU_HOME": str(tmp_path)}
    code = "import nanochat.chat as c, time\nc.open_trained = lambda *a, **k: (print('loading', flush=True), time.sleep(60))\nimport sys\nsys.exit(c.main(sys.argv[1:]))"
    child = subprocess.Popen([sys.executable, "-c", code, "--job-dir", str(job), "--device", "cpu"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert child.stdout is not None
    assert child.stdout.readline() == "loading\n"
    child.send_signal(signal.SIGINT)
    _out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in err


def test_the_history_lies_somewhere_even_for_a_home_of_nobody(monkeypatch):
    monkeypatch.setenv("NANOCHAT_NPU_HOME", "~nobody-at-all/x")
    assert history_file() == Path("~nobody-at-all/x/chat_history")
