"""Spec → files, byte for byte. After a change that is meant: ``UPDATE_GOLDEN=1 pytest tests/golden`` and read the diff."""

import os
import subprocess
import sys

import pytest
from golden_support import HERE, SPECS, plan_of

from nanochat_npu.bundle import Bundle, write
from nanochat_npu.render import render

IMAGE = "registry.example.com/train/nanochat-npu:from-the-content"
"""In place of the tag, which follows from the trainer's files."""
UPDATE = os.environ.get("UPDATE_GOLDEN") == "1"


def _compare(bundle: Bundle, name: str) -> None:
    folder = HERE / "expected" / name
    if UPDATE:
        for old in folder.glob("*"):
            old.unlink()
        write(bundle, folder)
    expected = {path.name: path.read_bytes().decode() for path in folder.iterdir()}
    assert sorted(bundle.files) == sorted(expected), "other files than before: UPDATE_GOLDEN=1 if that is meant"
    for file, text in bundle.files.items():
        assert text == expected[file], f"{name}/{file} changed: UPDATE_GOLDEN=1 if that is meant"


@pytest.mark.parametrize("name", SPECS)
def test_files_are_those_that_were_reviewed(name: str) -> None:
    plan = plan_of(name)
    _compare(render(plan, image=plan.spec.image.ref or IMAGE), name)


def test_same_bytes_in_another_process_with_another_environment(tmp_path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from golden_support import plan_of\nfrom nanochat_npu.render import render_text\n"
        "sys.stdout.buffer.write(render_text(plan_of('two-servers-operator')).encode())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Shanghai", "LC_ALL": "C", "HOME": str(tmp_path), "USER": "someone"}
    result = subprocess.run([sys.executable, "-c", script, str(HERE)], env=env, cwd=tmp_path, capture_output=True, check=True)
    assert result.stdout.decode() == render(plan_of("two-servers-operator")).text()
