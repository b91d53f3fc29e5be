"""A reader that leaves early (`| head`) changes no exit code and sees no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(("words", "code"), [("--help", 0), ("config schema", 0), ("plan d20", 0), ("nosuch", 2), ("plan nosuch.yaml", 2), ("status nosuch -o json", 6)])
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_streams_that_the_caller_closed_change_no_code(words: str, code: int, closed: tuple[int, ...], tmp_path: Path) -> None:
    shut = " ".join(f"{number}>&-" if number else "0<&-" for number in closed)
    done = subprocess.run(
        ["bash", "-c", f'exec "$@" {shut}', "bash", *CLI, *words.split()], capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == code
    assert "bug" not in done.stderr
    assert list(tmp_path.iterdir()) == [], "no traceback was left in a file"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this device")
@pytest.mark.parametrize("words", ["--help", "--version", "config schema", "plan d20", "plan d20 -o json", "render tiny"])
def test_a_full_disk_below_stdout_is_one_error(words: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*CLI, *words.split()], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    error, hint = done.stderr.splitlines()[-2:]
    assert error == "error: cannot write the result: No space left on device"
    assert hint.startswith("hint: ")
    assert done.returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this device")
def test_talk_that_finds_no_room_is_no_failure() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*CLI, "validate", "tiny"], stdout=subprocess.PIPE, stderr=full, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "tiny: a good spec\n")


@pytest.mark.parametrize("words", ["plan d20", "plan d20 -o json", "validate tiny", "plan nosuch", "render tiny"])
def test_a_stream_that_lacks_our_characters_ends_no_command(words: str) -> None:
    """A Chinese text on an ASCII stream: escapes, which JSON reads as the same characters. (A plan for this computer follows its load; d20's does not.)"""
    def run_with(encoding: str) -> "subprocess.CompletedProcess[str]":
        environment = os.environ | {"PYTHONIOENCODING": encoding, "NANOCHAT_NPU_LANG": "zh", "NANOCHAT_NPU_SITE": ""}
        return subprocess.run([*CLI, *words.split()], capture_output=True, encoding="utf-8", env=environment, timeout=60, check=False)

    narrow, wide = run_with("ascii:strict"), run_with("utf-8")
    assert narrow.returncode == wide.returncode
    if words.endswith("json"):
        assert json.loads(narrow.stdout) == json.loads(wide.stdout)
    else:
        assert narrow.stdout == wide.stdout.encode("ascii", "backslashreplace").decode()


def test_the_name_of_a_file_may_be_any_bytes(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.yaml"
    Path(os.fsdecode(name)).write_text("spec_version: 1\nname: x\nbackend: local\n")
    done = subprocess.run(
        [*CLI, "validate", name], capture_output=True, env=os.environ | {"PYTHONIOENCODING": "utf-8:strict", "NANOCHAT_NPU_SITE": ""}, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, os.fsencode(tmp_path) + b"/\\udcff.yaml: a good spec\n")


@pytest.mark.parametrize("variable", ["NANOCHAT_NPU_SITE", "NANOCHAT_NPU_HOME"])
def test_the_home_of_a_person_who_does_not_exist_is_a_plain_path(variable: str, tmp_path: Path) -> None:
    words = ["plan", "tiny"] if variable == "NANOCHAT_NPU_SITE" else ["list"]
    environment = os.environ | {"NANOCHAT_NPU_SITE": "", "PYTHONPATH": os.pathsep.join(sys.path), variable: "~no-such-person/x"}
    done = subprocess.run([*CLI, *words], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60, check=False)
    assert "bug" not in done.stderr
    if variable == "NANOCHAT_NPU_SITE":
        assert (done.returncode, done.stderr.splitlines()[0]) == (3, "~no-such-person/x: cannot read the site file: No such file or directory")
    else:
        assert done.returncode == 0
