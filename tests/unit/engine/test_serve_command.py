"""The server as a process: a busy port is told before the model is loaded, and Ctrl-C ends it with one line."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_helpers import BYTES, lively_model, write_job

from nanochat.contract import ExitCode
from nanochat.serve import command

INTERRUPTED = 128 + signal.SIGINT


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def answer_sigint() -> None:
    """As at a terminal: what a shell starts in the background ignores SIGINT, and so do all its children, tests too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_the_server_with_one_line(tmp_path: Path) -> None:
    write_job(tmp_path / "job", lively_model(), BYTES)
    line = [sys.executable, "-P", "-m", "nanochat", "serve", "--job-dir", str(tmp_path / "job"), "--device", "cpu", "--port", "0"]
    server = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=answer_sigint)
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        assert said.startswith("serving job on http://127.0.0.1:")
        with urllib.request.urlopen(f"{said.split()[-1]}/v1/models", timeout=20) as answer:
            assert answer.status == 200
        os.killpg(server.pid, signal.SIGINT)
        out, err = server.communicate(timeout=30)
    finally:
        server.kill()
        server.wait()
    assert (server.returncode, out, err) == (INTERRUPTED, "server stopped\n", "")


def test_a_busy_port_is_told_before_the_model_is_loaded(tmp_path: Path, busy_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--job-dir", str(tmp_path / "not there"), "--port", str(busy_port)]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"serve: --port: port {busy_port} is in use by another program (hint: take another one: --port {busy_port + 1})\n")


def test_a_host_that_is_not_this_computer_is_a_wrong_argument(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(command.TOKEN_VARIABLE, "secret")
    assert command.main(["--job-dir", str(tmp_path), "--host", "192.0.2.1", "--port", "0"]) == ExitCode.USAGE
    assert "--host: cannot listen on 192.0.2.1, port 0" in capsys.readouterr().err
