"""Start-up stays light: what help, completion and the pure core must not import."""

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "kubernetes", "swanlab", "rich", "jinja2")


def _imported(code: str, *names: str) -> list[str]:
    script = f"import sys\n{code}\nprint(*[name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[-2].split()


def _main(*args: str) -> str:
    return f"from nanochat_npu.main import main\ntry: main({list(args)!r})\nexcept SystemExit: pass"


def test_help_imports_nothing_heavy() -> None:
    assert _imported(_main("--help"), *HEAVY, "yaml", "nanochat_npu.spec") == []


def test_validate_imports_nothing_that_it_does_not_need() -> None:
    assert _imported(_main("validate", "d20"), *HEAVY) == []


def test_the_pure_core_imports_nothing_heavy() -> None:
    assert _imported("import nanochat_npu.spec, nanochat_npu.plan, nanochat_npu.plan_view, nanochat.contract", *HEAVY, "typer") == []


@pytest.mark.parametrize(
    ("words", "expected"), [("nanochat-npu va", "validate"), ("nanochat-npu init d2", "d20"), ("nanochat-npu plan lap", "laptop"), ("nanochat-npu plan --ou", "--output")]
)
def test_completion(words: str, expected: str) -> None:
    environ = {**os.environ, "_NANOCHAT_NPU_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run([sys.executable, "-m", "nanochat_npu.main"], capture_output=True, text=True, env=environ, check=False)
    assert expected in done.stdout.split()
