"""The calculator: right, limited, and alive after whatever it was asked."""

from pathlib import Path

import pytest

from nanochat import calculator as module
from nanochat.calculator import Calculator


@pytest.fixture(scope="module")
def calculator():
    with Calculator() as one:
        yield one


@pytest.mark.parametrize(("expression", "result"), [
    ("1+2", "3"), ("12 * (3 - 4)", "-12"), ("7/2", "3.5"), ("1,234 + 1", "1235"), (" 2.50*2 ", "5.0"), ("-(-3)", "3"), ("+5", "5"),
    ("'strawberry'.count('r')", "3"), ('"a,b,c".count(",")', "2"), ("0.1+0.2", "0.30000000000000004"),
])
def test_it_works_out_arithmetic_and_counts_letters(calculator: Calculator, expression: str, result: str) -> None:
    assert calculator(expression) == result


@pytest.mark.parametrize("expression", [
    "", "1/0", "2**9999999", "1 2", "x", "__import__('os').system('id')", "().__class__", "(lambda: 1)()", "[1]*9", "'a'*9", "1 if 1 else 2",
    "'a'.count('a', 0)", "'a'.replace('a','b')", "open('/etc/passwd')", "9" * 5000, "(" * 900 + "1" + ")" * 900, "-" * 900 + "1", "1\n2",
    "*".join(["99999999999999999999"] * 40), "1e400*0", "True + 1", "None", "'é", "1_0+0x1" + "+1" * 400, "\x00", "1j*1j",
])
def test_everything_else_has_no_result_and_it_goes_on(calculator: Calculator, expression: str) -> None:
    if expression not in ("1e400*0", "1_0+0x1" + "+1" * 400):
        assert calculator(expression) is None
    else:
        calculator(expression)
    assert calculator("1+1") == "2"


def test_one_that_does_not_answer_in_time_is_ended_and_replaced(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "slow.py"
    worker.write_text("import sys, time\nfor line in sys.stdin:\n    if 'slow' in line: time.sleep(60)\n    print('\"7\"', flush=True)\n")
    monkeypatch.setattr(module, "_WORKER", worker)
    with Calculator(timeout_s=2.0) as calculator:
        assert calculator("1") == "7"
        first = calculator._process
        assert calculator("slow") is None
        assert first is not None and first.returncode is not None  # ended, not left behind
        assert calculator("1") == "7"


def test_one_that_dies_is_replaced(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tmp_path / "dies.py"
    worker.write_text("import sys\nfor line in sys.stdin:\n    if 'die' in line: sys.exit(1)\n    print('\"7\"', flush=True)\n")
    monkeypatch.setattr(module, "_WORKER", worker)
    with Calculator() as calculator:
        assert [calculator(x) for x in ("1", "die", "1")] == ["7", None, "7"]


def test_the_process_has_no_environment_and_little_memory() -> None:
    with Calculator() as calculator:
        calculator("1")
        assert calculator._process is not None
        process = Path(f"/proc/{calculator._process.pid}")
        assert "268435456" in (process / "limits").read_text()
        assert (process / "environ").read_text() == ""


def test_a_forgotten_calculator_ends_its_process() -> None:
    calculator = Calculator()
    calculator("1")
    process = calculator._process
    assert process is not None
    del calculator
    assert process.poll() is not None
