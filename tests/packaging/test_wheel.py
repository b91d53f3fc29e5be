"""The wheel, installed where there is neither a checkout nor torch: what a person on a login node has."""

import importlib.metadata
import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from nanochat.contract import ModelConfig, ModelShape

ROOT = Path(__file__).parents[2]
BASE = ("typer", "pydantic", "jinja2", "PyYAML", "rich", "kubernetes")


def _closure(names: tuple[str, ...]) -> Iterator[importlib.metadata.Distribution]:
    """The distributions of these names and all that they require here."""
    todo, seen = list(names), set()
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        found = importlib.metadata.distribution(name)
        yield found
        requirements = [Requirement(text) for text in found.requires or []]
        todo += [r.name for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]


def _link_dependencies(folder: Path) -> None:
    """Fill a folder with links to the base dependencies and nothing else of the running environment."""
    for distribution in _closure(BASE):
        for top in {Path(str(file)).parts[0] for file in distribution.files or [] if not str(file).startswith("..")}:
            target = folder / top
            if top != "__pycache__" and not target.exists():
                target.symlink_to(Path(str(distribution.locate_file(top))))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and the base dependencies; its folder."""
    home = tmp_path_factory.mktemp("login-node")
    venv.create(home / "venv", with_pip=False, symlinks=True)
    dependencies = home / "dependencies"
    dependencies.mkdir()
    _link_dependencies(dependencies)
    (site,) = (home / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    python = home / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    return home


def _run(installed: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{installed}/venv/bin:/usr/bin:/bin", "HOME": str(installed), "LC_ALL": "C.UTF-8", "NANOCHAT_NPU_HOME": f"{installed}/home"}
    return subprocess.run(command, cwd=installed, env=env, capture_output=True, text=True, check=False)


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_wheel_holds_the_two_packages_and_nothing_beside(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in _names(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"nanochat", "nanochat_npu"}


def test_templates_are_real_files_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for path in (ROOT / "templates").rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                name = f"nanochat_npu/templates/{path.relative_to(ROOT / 'templates')}"
                assert archive.read(name) == path.read_bytes()
                assert (archive.getinfo(name).external_attr >> 16) & 0o170000 != 0o120000, "a link would dangle"


def test_wheel_is_the_same_when_built_again(wheel: Path, tmp_path: Path) -> None:
    env = {**os.environ, "TZ": "Asia/Shanghai", "PYTHONHASHSEED": "3"}
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=ROOT, check=True, capture_output=True, env=env)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_wheel_made_from_the_source_archive_has_the_same_files(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(tmp_path)], check=True)
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")], cwd=source, check=True, capture_output=True)
    assert sorted(_names(tmp_path / "dist" / wheel.name)) == sorted(_names(wheel))


def test_there_is_no_torch(installed: Path) -> None:
    for module in ("torch", "numpy", "pytest"):
        assert _run(installed, "python", "-c", f"import {module}").returncode != 0


@pytest.mark.parametrize("module", ["docker", "k8s", "tests", "dev", "templates"])
def test_folders_of_the_checkout_are_not_importable(installed: Path, module: str) -> None:
    assert "No module named" in _run(installed, "python", "-c", f"import {module}").stderr


def test_help_lists_the_commands(installed: Path) -> None:
    result = _run(installed, "nanochat-npu", "--help")
    assert result.returncode == 0, result.stderr
    assert {"init", "validate", "plan", "render", "submit"} <= set(result.stdout.split())


def test_validate_finds_the_preset_good(installed: Path) -> None:
    result = _run(installed, "nanochat-npu", "validate", "d20")
    assert result.returncode == 0, result.stderr


def test_plan_gives_numbers(installed: Path) -> None:
    result = _run(installed, "nanochat-npu", "plan", "d20", "-o", "json")
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert (plan["depth"], plan["parameters"]) == (20, ModelShape.of(ModelConfig(depth=20), 32_768).parameters.total)


def test_render_writes_the_job(installed: Path) -> None:
    result = _run(installed, "nanochat-npu", "render", "d20", "--to", "out")
    assert result.returncode == 0, result.stderr
    job = yaml.safe_load((installed / "out" / "volcano-job.yaml").read_text())
    assert job["kind"] == "Job"
    assert os.access(installed / "out" / "entrypoint.sh", os.X_OK)


def test_trainer_says_its_version_and_what_is_missing(installed: Path) -> None:
    assert _run(installed, "python", "-m", "nanochat", "--version").stdout.startswith("nanochat ")
    result = _run(installed, "python", "-m", "nanochat", "chat")
    assert result.returncode == 2
    assert "nanochat-npu[train]" in result.stderr


def test_wheel_and_source_archive_carry_the_commit(wheel: Path, tmp_path: Path) -> None:
    """For the labels of images; a wheel that is made from the archive, where there is no git, has it too."""
    if not (ROOT / ".git").exists():
        pytest.skip("no git here that could say it")
    head = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("nanochat_npu/source_commit").decode().strip().removesuffix("-dirty") == head
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        # Python before 3.11.4 (Debian 12 has 3.11.2) knows no filter, later ones warn without it.
        archive.extractall(tmp_path / "source", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = (tmp_path / "source").iterdir()
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=unpacked, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        assert archive.read("nanochat_npu/source_commit").decode().strip().removesuffix("-dirty") == head
