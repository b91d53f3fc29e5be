"""A conversation with a chat server, in a real terminal (a pty) and in a pipe; the server here says words backwards, one each 0.1 s."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pexpect
import pytest

TALK = "import sys\nfrom nanochat_npu.conversing import Conversation\nConversation(sys.argv[1]).run()\n"


class Served:
    """Requests that came, and how many words were written for each."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.written: list[int] = []
        self.broken = threading.Event()
        self.url = ""


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_args: Any) -> None:
            return

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.asked.append(body)
            words = body["messages"][-1]["content"].split()
            if words == ["refuse"]:
                raw = json.dumps({"error": {"message": "too long for me"}}).encode()
                self.send_response(400)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            found.written.append(0)
            try:
                for word in words:
                    self.wfile.write(f"data: {json.dumps({'choices': [{'delta': {'content': word[::-1] + ' '}}]})}\n\n".encode())
                    self.wfile.flush()
                    found.written[-1] += 1
                    threading.Event().wait(0.1)
                self.wfile.write(b"data: [DONE]\n\n")
            except OSError:
                found.broken.set()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield found
    server.shutdown()
    server.server_close()


def test_a_person_talks_stops_an_answer_sets_and_saves(served: Served, tmp_path: Path) -> None:
    env = {**os.environ, "NANOCHAT_NPU_HOME": str(tmp_path), "TERM": "vt100", "CI": "", "INPUTRC": "/dev/null", "NO_COLOR": "1", "NANOCHAT_NPU_LANG": "en"}
    child = pexpect.spawn(sys.executable, ["-c", TALK, served.url], env=env, encoding="utf-8", timeout=30, dimensions=(40, 300))
    try:
        child.expect("> $")
        child.sendline("hello world")
        child.expect("olleh dlrow")
        child.expect("> $")
        child.sendline(" ".join(["endless"] * 300))
        child.expect("sseldne sseldne")  # it streams
        child.sendintr()
        child.expect(r"\(stopped\)")
        assert served.broken.wait(20), "the server noticed that nobody listens any more"
        assert served.written[-1] < 300
        child.expect("> $")
        child.sendintr()
        child.expect("Ctrl-D or /quit leaves")
        child.sendline("/set temperature 0.2")
        child.expect("temperature 0.2")
        child.sendline("/set system Be short.")
        child.expect("Be short")
        child.sendline("/set top_k many")
        child.expect("is not a number")
        child.sendline("refuse")
        child.expect("too long for me")
        child.sendline("one\\")
        child.expect("… $")
        child.sendline("two")
        child.expect("eno owt")
        child.expect("> $")
        assert served.asked[-1]["temperature"] == 0.2
        assert served.asked[-1]["messages"][0] == {"role": "system", "content": "Be short."}
        assert served.asked[-1]["messages"][-1] == {"role": "user", "content": "one\ntwo"}
        child.sendline(f"/save {tmp_path / 'talk.json'}")
        child.expect("7 turns")
        turns = json.loads((tmp_path / "talk.json").read_text())["messages"]
        assert [turn["role"] for turn in turns] == ["system", *["user", "assistant"] * 3]
        child.sendline("/save /proc/nowhere/x.md")
        child.expect("cannot write /proc/nowhere/x.md")
        child.sendline("/save ~nobody-at-all/x.md")
        child.expect("cannot write ~nobody-at-all/x.md")
        child.sendline("/clear")
        child.expect("forgotten")
        child.sendeof()
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 0
        assert "hello world" in (tmp_path / "chat_history").read_text()
    finally:
        child.close(force=True)


def test_a_proxy_is_not_asked_for_a_port_of_this_computer(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    code = "import sys\nfrom nanochat_npu.talk import answer\nprint(''.join(answer(sys.argv[1], [{'role': 'user', 'content': 'abc'}])))"
    done = subprocess.run([sys.executable, "-c", code, served.url], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "cba \n"), done.stderr


def test_in_a_pipe_only_answers_are_on_stdout(served: Served, tmp_path: Path) -> None:
    env = {**os.environ, "NANOCHAT_NPU_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", TALK, served.url], input="abc def\n/clear\nghi\n", capture_output=True, text=True, env=env, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "cba fed \nihg \n"), done.stderr
    assert [len(body["messages"]) for body in served.asked] == [1, 1]
    strict = {**env, "PYTHONIOENCODING": "utf-8:strict"}  # as in most locales of UTF-8
    odd = subprocess.run([sys.executable, "-c", TALK, served.url], input="caf\u00e9 abc\n".encode("latin-1"), capture_output=True, env=strict, timeout=60, check=False)
    assert (odd.returncode, odd.stdout.split()[-1:]) == (0, [b"cba"]), odd.stderr
    assert not (tmp_path / "chat_history").exists()
