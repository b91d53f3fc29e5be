"""Our own checks of the Dockerfile, beside hadolint where it is installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from golden_support import plan_of

from nanochat_npu.bundle import DOCKERFILE
from nanochat_npu.errors import ImageError
from nanochat_npu.image.context import build_input, write_context
from nanochat_npu.image.describe import content_tag
from nanochat_npu.image.sbom import bill_of_materials
from nanochat_npu.image.trainer_wheel import trainer_wheel
from nanochat_npu.render import render

BUILT = ["one-server", "hami", "cce", "plain-volcano"]


def dockerfile(name: str, *overrides: str) -> str:
    return render(plan_of(name, *overrides)).files[DOCKERFILE]


def instructions(text: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", text)
    return [line for line in joined.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("name", BUILT)
def test_layers_go_from_what_changes_least_to_what_changes_most(name: str) -> None:
    text = dockerfile(name)
    order = [text.find(mark) for mark in ("FROM ", "useradd", "torch==", "requirements.lock /opt", "COPY entrypoint.sh", "check_image.py 2", "LABEL ", "ENTRYPOINT")]
    assert order == sorted(order) and -1 not in order


@pytest.mark.parametrize("name", BUILT)
def test_nothing_that_makes_two_builds_differ(name: str) -> None:
    steps = instructions(dockerfile(name))
    assert not [step for step in steps if re.search(r":latest|apt-get upgrade|pip install (?!.*--no-deps)|curl|wget|git clone|ADD ", step)]
    assert any("SOURCE_DATE_EPOCH=" in step for step in steps), "bytecode without time stamps"
    assert all("--require-hashes" in step for step in steps if "-r /opt/nanochat/requirements.lock" in step)


def test_bytecode_that_pip_makes_with_the_dockerfiles_variables_has_no_time_stamp(tmp_path: Path) -> None:
    """PIP_NO_COMPILE=1, which stood there, means the contrary of what it says: pip takes it for the value of `compile`."""
    (line,) = [step for step in instructions(dockerfile("one-server")) if step.startswith("ARG ")]
    wheel = trainer_wheel()
    (tmp_path / wheel.name).write_bytes(wheel.content)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(tmp_path / "site"), str(tmp_path / wheel.name)]
    subprocess.run(command, env={**os.environ, **dict(word.split("=", 1) for word in line.split()[1:])}, check=True, capture_output=True)
    compiled = list((tmp_path / "site" / "nanochat").rglob("*.pyc"))
    assert compiled, "a start compiles nothing"
    flags = {int.from_bytes(path.read_bytes()[4:8], "little") for path in compiled}
    assert flags == {0b11}, "checked by the source's hash (PEP 552)"


@pytest.mark.parametrize("name", BUILT)
def test_only_three_kinds_of_files_enter(name: str) -> None:
    copied = [step.split()[1:-1] for step in instructions(dockerfile(name)) if step.startswith("COPY")]
    assert copied == [["requirements.lock"], ["entrypoint.sh", "check_image.py", trainer_wheel().name]]


@pytest.mark.parametrize("name", BUILT)
def test_torch_and_torch_npu_are_exact(name: str) -> None:
    text = dockerfile(name)
    assert re.search(r"torch==\d+\.\d+\.\d+( |\s)", text)
    assert re.search(r"torch_npu==\d+\.\d+\.\d+(\.post\d+)?\s", text)
    assert not re.search(r"torch(_npu)?(~=|>=)", text)


def test_no_secret_and_no_proxy_stays_in_the_image() -> None:
    text = dockerfile("hami", "image.mirrors.proxy=http://proxy.example.com:3128")
    assert "proxy" not in text.lower()
    assert "SWANLAB" not in dockerfile("one-server")


@pytest.mark.parametrize("name", ["pip", "pip_torch", "apt"])
def test_password_in_an_index_is_refused(name: str) -> None:
    with pytest.raises(ImageError, match="would stay readable") as error:
        dockerfile("hami", f"image.mirrors.{name}=https://li:secret@index.example.com/simple")
    assert error.value.where == f"image.mirrors.{name}"
    assert "secret" not in str(error.value)


def test_user_1000_has_a_passwd_entry_and_is_used_when_wanted() -> None:
    assert "useradd -u 1000" in dockerfile("one-server")
    assert "\nUSER 0\n" in dockerfile("one-server")
    assert "\nUSER 1000\n" in dockerfile("one-server", "security.run_as_user=1000")


def test_wheelhouse_needs_no_network() -> None:
    steps = [step for step in instructions(dockerfile("plain-volcano")) if "pip install" in step]
    assert steps and all("--no-index" in step for step in steps)
    assert not [step for step in instructions(dockerfile("plain-volcano")) if "apt-get" in step or "dnf" in step]


def test_openeuler_uses_its_own_package_manager() -> None:
    text = dockerfile("cce")
    assert "dnf install" in text and "apt-get" not in text
    assert "-910b-openeuler24.03-py3.12" in text


def test_mirrors_are_used() -> None:
    text = dockerfile("hami")
    assert "--index-url https://index.example.com/cpu torch==" in text
    assert "--index-url https://index.example.com/simple torch_npu==" in text
    assert "FROM mirror.example.com/ascend/cann:" in dockerfile("one-server", "image.mirrors.registry=mirror.example.com/ascend")


def test_base_by_digest_is_taken_as_it_is() -> None:
    base = "registry.example.com/site/cann@sha256:" + "3" * 64
    assert f"FROM {base}\n" in dockerfile("one-server", f"image.base={base}")


def test_tag_follows_from_the_content_and_nothing_else() -> None:
    tag = build_input(plan_of("one-server")).reference.tag
    assert build_input(plan_of("one-server", "name=other", "resources.nodes=2", "owner=wang")).reference.tag == tag
    for change in ("image.python=3.11", "image.torch_npu=2.11.0", "image.os=openeuler24.03", "security.run_as_user=1000", "image.cann=9.0.1", "image.arch=amd64"):
        extra = ["image.mirrors.pip_torch=https://index.example.com/cpu"] if "amd64" in change else []
        if change == "image.arch=amd64":
            assert build_input(plan_of("one-server", change, *extra)).reference.tag != tag
        else:
            assert build_input(plan_of("one-server", change)).reference.tag != tag


def test_job_names_the_tag_that_a_build_gives() -> None:
    plan = plan_of("one-server")
    source = build_input(plan)
    assert f'image: "{source.reference}"' in render(plan).files["volcano-job.yaml"]
    assert source.reference.tag == content_tag(source.files[DOCKERFILE].decode())


def test_context_is_five_files(tmp_path: Path) -> None:
    source = build_input(plan_of("one-server"))
    write_context(source, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Dockerfile", "check_image.py", "entrypoint.sh", trainer_wheel().name, "requirements.lock"]
    assert source.context_bytes < 2_000_000


def test_missing_wheelhouse_is_named(tmp_path: Path) -> None:
    source = build_input(plan_of("plain-volcano"))
    with pytest.raises(ImageError, match="no such folder of wheels") as error:
        write_context(source, tmp_path)
    assert error.value.where == "/srv/wheels"


def test_finished_image_is_not_built() -> None:
    with pytest.raises(ImageError, match="nothing to build"):
        build_input(plan_of("two-servers-operator"))


def test_bill_of_materials_lists_what_goes_in() -> None:
    import json

    source = build_input(plan_of("one-server"))
    bill = json.loads(bill_of_materials(source))
    names = {component["name"]: component.get("version") for component in bill["components"]}
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert names["torch"] == names["torch_npu"] == "2.12.0"
    assert {"numpy", "tiktoken", "swanlab", "nanochat-npu-trainer", source.image.base} <= set(names)
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(references) == len(set(references)), "one version of each package"
    assert bill_of_materials(source) == bill_of_materials(build_input(plan_of("one-server")))


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_finds_nothing() -> None:
    # DL3002 (last user root), DL3008 and DL3041 (system packages without versions): NPU devices need root or 1000, and versions differ by base.
    command = ["hadolint", "--ignore", "DL3002", "--ignore", "DL3008", "--ignore", "DL3041", "-"]
    for name in BUILT:
        subprocess.run(command, input=dockerfile(name), text=True, check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    script = Path(__file__).parents[2] / "templates" / "entrypoint.sh"
    subprocess.run(["shellcheck", str(script)], check=True)
