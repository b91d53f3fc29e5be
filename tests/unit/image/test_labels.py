"""Labels that name the spec and the source's commit, and that no tag depends on them."""

import datetime
import subprocess
from pathlib import Path
from typing import Any

import pytest

import nanochat_npu.image.source as source_module
from nanochat_npu.image.context import REVISION, BuildInput, build_input
from nanochat_npu.image.source import UNKNOWN, source_commit
from nanochat_npu.plan import make_plan
from nanochat_npu.spec import JobSpec

ROOT = Path(__file__).parents[3]


def input_of(**changes: Any) -> tuple[BuildInput, str]:
    spec = JobSpec.model_validate({
        "name": "job", "owner": "li", "backend": "volcano", "resources": {"npus_per_node": 8, "npu": "910B3"},
        "image": {"registry": "registry.example.com/train"}, "storage": {"output": {"claim": "c", "path": "/output"}}, **changes,
    })
    plan = make_plan(spec, datetime.date(2026, 11, 30))
    return build_input(plan), plan.spec_sha256


def test_image_names_the_spec_and_the_commit_it_was_made_for() -> None:
    source, spec_sha256 = input_of()
    assert source.labels["nanochat-npu/spec"] == spec_sha256
    assert source.labels[REVISION] == source_commit()


def test_tag_depends_on_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = input_of()
    other, _ = input_of(name="another", owner="wang")
    monkeypatch.setattr("nanochat_npu.image.context.source_commit", lambda: "f" * 40)
    later, _ = input_of()
    assert one.labels["nanochat-npu/spec"] != other.labels["nanochat-npu/spec"]
    assert later.labels[REVISION] == "f" * 40
    assert one.reference.tag == other.reference.tag == later.reference.tag
    assert one.parts == other.parts == later.parts
    assert one.files == other.files == later.files, "nothing of the context either"


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "commit.gpgsign=false", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The package's folder in a checkout with one commit."""
    package = tmp_path / "checkout" / "cli" / "nanochat_npu"
    package.mkdir(parents=True)
    (tmp_path / "checkout" / "pyproject.toml").write_text("")
    (package / "a.py").write_text("")
    git(tmp_path / "checkout", "init", "-q")
    git(tmp_path / "checkout", "add", ".")
    git(tmp_path / "checkout", "commit", "-q", "-m", "one")
    return package


def test_a_checkout_asks_git(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert source_commit(checkout) == commit
    (checkout / "new.py").write_text("")
    assert source_commit(checkout) == commit, "what git does not know is no change"
    (checkout / "a.py").write_text("x = 1")
    assert source_commit(checkout) == f"{commit}-dirty"


def test_a_checkout_of_which_git_knows_nothing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout.parents[1] / ".git" / "HEAD").write_text("ref: refs/heads/none\n")
    assert source_commit(checkout) == UNKNOWN
    monkeypatch.setenv("PATH", "/nonexistent")
    assert source_commit(checkout) == UNKNOWN


def test_an_installed_package_carries_it(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "nanochat_npu"
    package.mkdir(parents=True)
    assert source_commit(package) == UNKNOWN
    (package / "source_commit").write_text("abc\n")
    assert source_commit(package) == "abc"
    (package / "source_commit").write_bytes(b"\xff")
    assert source_commit(package) == UNKNOWN


def test_a_repository_around_a_virtual_environment_is_not_ours(checkout: Path) -> None:
    installed = checkout.parents[1] / "venv" / "nanochat_npu"
    installed.mkdir(parents=True)
    (installed / "source_commit").write_text("abc\n")
    assert source_commit(installed) == "abc"
    assert source_module.BAKED == "source_commit"
