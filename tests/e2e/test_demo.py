"""What ``make demo`` runs: one command trains a model on this computer that then gives right answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_shell import CliShell

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("demo")]
"""It takes a minute on two idle cores; other work beside it makes it slow, not wrong. One worker has all of it: it trains once."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CliShell, str]]:
    """A finished run of preset ``tiny``, and the table at its end."""
    shell = CliShell(tmp_path_factory.mktemp("demo"))
    try:
        done = shell.run("submit", "tiny", "--backend", "local", "--follow", "--rerun")
        assert done.returncode == 0, done.stderr
        yield shell, done.stdout
    finally:
        shell.run("cancel", "tiny", "--now")


@pytest.fixture(scope="module")
def results(demo: tuple[CliShell, str]) -> dict[str, Any]:
    shell, _table = demo
    answer = shell.json("status", "tiny")["results"]
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize(("what", "total"), [("sums", 100), ("facts", 40)])
def test_nine_of_ten_answers_are_right_after_training_and_hardly_any_before(results: dict[str, Any], what: str, total: int) -> None:
    found = results[what]
    assert found["total"] == total
    assert found["correct"] >= 0.9 * total
    assert found["correct_before"] <= 0.05 * total


def test_bits_per_byte_fall(results: dict[str, Any]) -> None:
    bpb = results["bpb (pretrain)"]
    assert bpb["after"] < 0.5 * bpb["before"]


def test_the_run_ends_with_a_table_that_says_what_was_reached_and_what_to_do_next(demo: tuple[CliShell, str]) -> None:
    _shell, table = demo
    for words in ("tokens/s", "validation bpb", "sums", "of 100", "facts", "held_out_sums", "checkpoint", "nanochat-npu chat tiny"):
        assert words in table


def test_the_checkpoint_is_where_the_table_says(demo: tuple[CliShell, str]) -> None:
    _shell, table = demo
    line = next(line for line in table.splitlines() if line.startswith("checkpoint"))
    assert (Path(line.split()[-1]) / "manifest.json").is_file()


def test_the_model_answers(demo: tuple[CliShell, str]) -> None:
    shell, _table = demo
    done = shell.run("chat", "tiny", "--prompt", "What is 2 + 3?", check=True)
    assert "5" in done.stdout


def test_submitting_it_again_only_attaches(demo: tuple[CliShell, str]) -> None:
    shell, _table = demo
    done = shell.run("submit", "tiny", "--backend", "local", "--follow", check=True)
    assert "submitted before and is SUCCEEDED" in done.stderr
    assert "validation bpb" in done.stdout
