"""``build`` and ``image`` as a person types them: what is said when something is missing or fails."""

import json
import os
from pathlib import Path

import pytest

from nanochat_npu.main import main

SET = ["--set", "image.registry=127.0.0.1:9/train", "--set", "image.plain_http=true"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leave:
        main(list(arguments))
    out = capsys.readouterr()
    return int(leave.value.code or 0), out.out, out.err


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing but what a test puts there, and a shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_no_builder_at_all(capsys: pytest.CaptureFixture[str], only: Path, tmp_path: Path) -> None:
    code, out, err = run(capsys, "build", "d20", "--oci", str(tmp_path / "image"))
    assert (code, out) == (5, "")
    assert "no builder is installed: docker, buildah, podman, nerdctl" in err
    assert "--builder layers" in err


def test_builder_that_is_not_installed_or_not_known(capsys: pytest.CaptureFixture[str], only: Path, tmp_path: Path) -> None:
    assert "podman is not installed" in run(capsys, "build", "d20", "--builder", "podman", "--oci", str(tmp_path / "i"))[2]
    code, _, err = run(capsys, "build", "d20", "--builder", "kaniko", "--oci", str(tmp_path / "i"))
    assert code == 5
    assert "there is no builder kaniko" in err


@pytest.mark.parametrize(
    ("said", "hint"),
    [("write /var/lib: no space left on device", "free some disk"), ("exec /bin/sh: exec format error", "needs no emulation"), ("manifest unknown", "does not exist under that name"),
     ("unknown flag: --layers", "too old"), ("Cannot connect to the Docker daemon", "start the daemon")],
)
def test_failed_build_shows_the_builders_last_lines_and_what_helps(capsys: pytest.CaptureFixture[str], only: Path, tmp_path: Path, said: str, hint: str) -> None:
    program(only, "buildah", f'i=0; while [ $i -lt 100 ]; do echo "line $i"; i=$((i+1)); done; echo "{said}" >&2; exit 125')
    code, _, err = run(capsys, "build", "d20", "--builder", "buildah", "--oci", str(tmp_path / "image"))
    assert code == 5
    assert not [path for path in tmp_path.iterdir() if "image" in path.name], "nothing half-made, hidden or not"
    message = err.split("error: ")[1]
    assert "buildah build failed with 125" in message
    assert said in message
    assert "line 99" in message and "line 3\n" not in message, "the last lines only"
    assert hint in message


def test_builder_is_given_what_it_needs_and_no_secret(capsys: pytest.CaptureFixture[str], only: Path, tmp_path: Path) -> None:
    program(only, "docker", f'case "$1 $2" in "buildx build") echo "$@" > {tmp_path}/arguments;; *) exit 0;; esac; exit 1')
    run(capsys, "build", "d20", "--oci", str(tmp_path / "image"), "--set", "image.mirrors.proxy=http://proxy.example.com:3128")
    arguments = (tmp_path / "arguments").read_text()
    assert "--platform linux/arm64" in arguments
    assert "--build-arg http_proxy=http://proxy.example.com:3128" in arguments
    assert "--label nanochat-npu/content=" in arguments


def test_image_without_a_registry_cannot_be_pushed(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "build", "d20")
    assert code == 5
    assert "image.registry: where does the image go?" in err


def test_registry_that_is_down(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanochat_npu.image.registry.time.sleep", lambda _: None)
    code, out, err = run(capsys, "build", "d20", *SET)
    assert (code, out) == (5, "")
    assert "127.0.0.1:9: the registry cannot be reached" in err


def test_options_that_exclude_each_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "build", "d20", "--plan", "--oci", str(tmp_path / "x"))[0] == 2


def test_plan_says_what_would_be_built(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "build", "d20", "--plan", "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert found["changed"] == ["base", "system", "torch", "packages", "code"]
    assert found["context_bytes"] < 2_000_000


def test_hand_off_is_self_contained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "build", "d20", "--handoff", str(tmp_path / "folder"))
    assert code == 0
    names = {Path(line).name for line in out.split()}
    assert {"Dockerfile", "requirements.lock", "entrypoint.sh", "check_image.py", "build.sh", "README.md", "sbom.cdx.json", ".dockerignore"} <= names
    assert os.access(tmp_path / "folder" / "build.sh", os.X_OK)
    code, _, err = run(capsys, "build", "d20", "--handoff", str(tmp_path / "folder"))
    assert code == 5
    assert "not an empty folder" in err


def test_hand_off_that_fails_leaves_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "build", "d20", "--handoff", str(tmp_path / "folder"), "--set", f"image.wheelhouse={tmp_path}/nowhere")
    assert (code, out) == (5, "")
    assert "no such folder of wheels" in err
    assert not [path for path in tmp_path.iterdir() if "folder" in path.name]


def test_handed_off_script_calls_its_builder(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    run(capsys, "build", "d20", "--handoff", str(tmp_path / "folder"))
    program(tmp_path / "bin", "podman", f'echo "$@" >> {tmp_path}/calls')
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "BUILDER": "podman", "REGISTRY": "registry.example.com/train"}
    subprocess.run([str(tmp_path / "folder" / "build.sh")], env=env, check=True)
    build, push = (tmp_path / "calls").read_text().splitlines()
    assert build.startswith("build --platform linux/arm64") and build.endswith(".")
    assert push.startswith("push registry.example.com/train/nanochat-npu:")


def test_matrix_in_all_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert "2.12.0" in run(capsys, "image", "matrix")[1]
    rows = json.loads(run(capsys, "image", "matrix", "--all", "-o", "json")[1])["builds"]
    assert len(rows) == 57
    assert run(capsys, "image", "matrix", "-o", "markdown")[1].splitlines()[1].startswith("|---|")


def test_bill_of_materials_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "image", "sbom", "d20")
    assert code == 0
    assert json.loads(out)["bomFormat"] == "CycloneDX"


def test_ctrl_c_leaves_no_builder_behind(only: Path, tmp_path: Path) -> None:
    from nanochat_npu.image.builders import BUILDERS, _run

    (only / "sleep").symlink_to("/bin/sleep")
    program(only, "buildah", f"echo $$ > {tmp_path}/pid; echo started; exec sleep 600")

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(["buildah", *BUILDERS["buildah"].build[1:]], interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
