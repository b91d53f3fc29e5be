"""A reader that leaves early (`| head`) changes no exit code and sees no traceback."""

import os
import subprocess
import sys

import pytest

CLI = [sys.executable, "-m", "nanochat_npu.main"]


def closed_pipe() -> int:
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def run(*arguments: str, out: bool, err: bool) -> "subprocess.CompletedProcess[str]":
    """The command line with stdout, stderr, or both into a pipe that nobody reads."""
    pipe = closed_pipe()
    try:
        return subprocess.run(
            [*CLI, *arguments], stdout=pipe if out else subprocess.PIPE, stderr=pipe if err else subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(pipe)


@pytest.mark.parametrize(
    ("words", "code"), [("--help", 0), ("config schema", 0), ("plan d20", 0), ("nosuch", 2), ("plan nosuch.yaml", 2), ("status nosuch", 6), ("status nosuch -o json", 6)]
)
def test_nobody_reads_and_the_code_is_the_same(words: str, code: int) -> None:
    assert run(*words.split(), out=True, err=True).returncode == code


def test_talk_that_nobody_reads_does_not_hold_up_the_data() -> None:
    done = run("plan", "d20", out=False, err=True)
    assert done.returncode == 0
    assert "d20" in done.stdout


def test_data_that_nobody_reads_leaves_no_traceback() -> None:
    done = run("config", "schema", out=True, err=False)
    assert (done.returncode, done.stderr) == (0, "")
