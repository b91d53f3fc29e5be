"""``python -m nanochat``: light where nothing is run, clear where the command is wrong."""

import subprocess
import sys

import pytest

from nanochat import __version__
from nanochat.__main__ import COMMANDS, main


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)


def test_version_imports_neither_torch_nor_numpy():
    code = "import sys; from nanochat.__main__ import main; main(['--version']); print({'torch', 'numpy'} & set(sys.modules))"
    ended = run("-c", code)
    assert ended.stdout.splitlines() == [f"nanochat {__version__}", "set()"]


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)


def test_an_unknown_command_is_2(capsys):
    assert main(["trian"]) == 2
    assert "no command 'trian'" in capsys.readouterr().err


def test_nothing_is_2(capsys):
    assert main([]) == 2
    capsys.readouterr()


@pytest.mark.parametrize("command", ["launch", "rank"])
def test_an_argument_too_many_is_2(command, capsys):
    assert main([command, "--nproc-per-node=8"]) == 2
    assert "usage" in capsys.readouterr().err


def test_without_the_trainers_libraries_it_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from nanochat.__main__ import main\n"
        "sys.exit(main(['rank']))"
    )
    ended = run("-c", code)
    assert ended.returncode == 2
    assert "nanochat-npu[train]" in ended.stderr
    assert "Traceback" not in ended.stderr
