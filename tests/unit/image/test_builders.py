"""What each builder is called with and how its answers are taken, by programs that behave as the builders' command lines do.

buildah and podman, and docker where its daemon runs, really build in tests/image; this is about arguments, versions and failures.
"""

import json
import sys
from pathlib import Path

import pytest

from nanochat_npu.errors import ImageError
from nanochat_npu.image.builders import BUILDERS, find_builder
from nanochat_npu.main import main

DIGEST = "sha256:" + "5" * 64
SAYS = {
    "docker": "Docker version 28.2.2, build e6534b4", "buildah": "buildah version 1.28.2 (image-spec 1.1.0-dev, runtime-spec 1.0.2-dev)",
    "podman": "podman version 4.3.1", "nerdctl": "nerdctl version 2.0.4",
}
STAND_IN = """#!{python}
import json, os, pathlib, sys
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps([{name!r}, *arguments]) + "\\n")
if arguments == ["--version"]:
    print({version!r}); sys.exit({version_code})
if arguments[0] in {broken!r}:
    print({words!r}, file=sys.stderr); sys.exit(1)
if "--digestfile" in arguments:
    pathlib.Path(arguments[arguments.index("--digestfile") + 1]).write_text({digest!r})
if arguments[0] == "build" or arguments[:2] == ["buildx", "build"]:
    print("env DOCKER_BUILDKIT=" + os.environ.get("DOCKER_BUILDKIT", ""))
    print("files " + " ".join(sorted(os.listdir(arguments[-1]))))
for word in arguments:
    if word.startswith(("oci:", "type=oci")):
        place = pathlib.Path(word.rsplit("dest=", 1)[-1].removeprefix("oci:").split(":")[0])
        place.mkdir(exist_ok=True); (place / "index.json").write_text("{{}}")
"""


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing but what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("BUILDAH_ISOLATION", raising=False)
    return folder


def install(folder: Path, name: str, version: str | None = None, broken: tuple[str, ...] = (), words: str = "it broke", version_code: int = 0) -> None:
    text = STAND_IN.format(
        python=sys.executable, log=str(folder.parent / "calls"), name=name, version=SAYS[name] if version is None else version, version_code=version_code,
        broken=broken, words=words, digest=DIGEST,
    )
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def calls(folder: Path, word: str) -> list[list[str]]:
    """The commands with this word in second place."""
    log = folder.parent / "calls"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [line for line in lines if line[1:2] == [word]]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leave:
        main(list(arguments))
    out = capsys.readouterr()
    return int(leave.value.code or 0), out.out, out.err


def test_they_are_looked_for_in_this_order(bin_folder: Path) -> None:
    for name in reversed(list(BUILDERS)):
        install(bin_folder, name)
        assert find_builder().name == name
    assert list(BUILDERS) == ["docker", "buildah", "podman", "nerdctl"]


@pytest.mark.parametrize("name", list(BUILDERS))
def test_builders_options(bin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    install(bin_folder, name)
    code, out, err = run(capsys, "build", "d20", "--builder", name, "--oci", str(tmp_path / "image"), "-o", "json")
    assert code == 0, err
    assert json.loads(out)["outcome"] == "written"
    (build,) = [line for line in calls(bin_folder, "build") + calls(bin_folder, "buildx") if line[-1] != "version"]
    assert build[build.index("--platform") + 1] == "linux/arm64"
    context = Path(build[-1])
    assert build[build.index("-f") + 1] == str(context / "Dockerfile")
    assert "files Dockerfile check_image.py entrypoint.sh nanochat_npu_trainer-" in err, "the context is whole and holds nothing else"
    assert not context.exists(), "and is gone afterwards"
    labels = {build[i + 1].split("=")[0] for i, word in enumerate(build) if word == "--label"}
    assert labels == {"nanochat-npu/content", "nanochat-npu/trainer", "nanochat-npu/spec", "org.opencontainers.image.revision"}
    assert not [word for word in build if "tls-verify" in word or "insecure" in word], "a registry without TLS is never guessed"
    assert ("env DOCKER_BUILDKIT=1" in err) is (name == "docker"), "docker before 23.0 has to be asked for BuildKit"
    assert (tmp_path / "image" / "index.json").is_file()
    assert [path.name for path in tmp_path.glob(".image*")] == []


@pytest.mark.parametrize(
    ("name", "push"),
    [("docker", ["push", "REF"]), ("buildah", ["push", "--tls-verify=false", "--digestfile", "FILE", "REF", "docker://REF"]),
     ("podman", ["push", "--tls-verify=false", "--digestfile", "FILE", "REF", "docker://REF"]), ("nerdctl", ["push", "--insecure-registry", "REF"])],
)
def test_push_by_plain_http_only_when_told(bin_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, push: list[str]) -> None:
    monkeypatch.setattr("nanochat_npu.image.registry.Registry.head", lambda *_: None)
    install(bin_folder, name)
    code, out, err = run(capsys, "build", "d20", "--builder", name, "--set", "image.registry=registry.example.com/train", "--set", "image.plain_http=true", "-o", "json")
    assert code == 0, err
    (found,) = calls(bin_folder, "push")
    reference = json.loads(out)["reference"]
    digestfile = next((word for word in found if word.endswith("/digest")), "")
    assert found == [name, *(digestfile if word == "FILE" else word.replace("REF", reference) for word in push)]
    assert json.loads(out)["digest"] == (DIGEST if digestfile else "")


@pytest.mark.parametrize(
    ("name", "version", "oldest"),
    [("docker", "Docker version 19.03.15, build 99e3ed8919", "20.10"), ("buildah", "buildah version 1.23.1 (image-spec 1.0.1-dev)", "1.24"), ("podman", "podman version 3.4.4", "4.0")],
)
def test_too_old(bin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, version: str, oldest: str) -> None:
    install(bin_folder, name, version)
    code, out, err = run(capsys, "build", "d20", "--builder", name, "--oci", str(tmp_path / "image"))
    assert (code, out) == (5, "")
    assert f"is too old, {oldest} is the oldest that knows cache mounts" in err
    assert "--builder layers" in err
    assert calls(bin_folder, "build") == [] and not (tmp_path / "image").exists()


@pytest.mark.parametrize("version", ["", "no number here", "Docker version v28"])
def test_a_version_that_nobody_understands_is_no_obstacle(bin_folder: Path, version: str) -> None:
    install(bin_folder, "buildah", version, version_code=3)
    assert find_builder("buildah").name == "buildah"


@pytest.mark.parametrize(("name", "word"), [("docker", "version"), ("nerdctl", "info")])
def test_a_daemon_that_does_not_answer(bin_folder: Path, name: str, word: str) -> None:
    install(bin_folder, name, broken=(word,), words="cannot reach the daemon at unix:///run/x.sock")
    with pytest.raises(ImageError, match=rf"{name}: its daemon does not answer \(cannot reach the daemon") as error:
        find_builder(name)
    assert error.value.exit_code == 5


def test_docker_without_buildx(bin_folder: Path) -> None:
    install(bin_folder, "docker", broken=("buildx",))
    with pytest.raises(ImageError, match="buildx is missing"):
        find_builder("docker")
    install(bin_folder, "docker", "Docker version 20.10.24+dfsg1, build 297e128", broken=("buildx",))
    assert find_builder("docker").name == "docker", "before 23.0 BuildKit is part of it"


def test_docker_without_buildx_writes_no_layout(bin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(bin_folder, "docker", "Docker version 20.10.24+dfsg1, build 297e128", broken=("buildx",))
    code, _, err = run(capsys, "build", "d20", "--builder", "docker", "--oci", str(tmp_path / "image"))
    assert code == 5 and "buildx only, which is missing" in err and not (tmp_path / "image").exists()


def test_one_that_cannot_work_is_passed_over_and_named(bin_folder: Path) -> None:
    install(bin_folder, "docker", broken=("version",), words="no daemon")
    install(bin_folder, "buildah", "buildah version 1.20.0")
    install(bin_folder, "podman")
    lines: list[str] = []
    assert find_builder(show=lines.append).name == "podman"
    assert len(lines) == 2 and lines[0].startswith("docker: its daemon does not answer (no daemon)") and "1.20 is too old" in lines[1]
    (bin_folder / "podman").unlink()
    with pytest.raises(ImageError, match=r"docker: its daemon .*; buildah: version 1\.20 is too old"):
        find_builder()


def test_podman_that_answers_to_the_name_of_docker(bin_folder: Path) -> None:
    install(bin_folder, "docker", "Emulate Docker CLI using podman. Create /etc/containers/nodocker to quiet msg.\npodman version 4.3.1")
    install(bin_folder, "podman")
    assert find_builder().name == "podman"
    with pytest.raises(ImageError, match="podman under another name"):
        find_builder("docker")


@pytest.mark.parametrize("name", list(BUILDERS))
@pytest.mark.parametrize("step", ["build", "push"])
def test_failure_of_a_step_ends_with_5_and_the_builders_words(
    bin_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, step: str
) -> None:
    monkeypatch.setattr("nanochat_npu.image.registry.Registry.head", lambda *_: None)
    install(bin_folder, name, broken=(step,), words="write tcp 127.0.0.1:5000: connection reset by peer")
    code, out, err = run(capsys, "build", "d20", "--builder", name, "--set", "image.registry=registry.example.com/train")
    assert (code, out) == (5, "")
    assert f"{name} {step} failed with 1:" in err and "connection reset by peer" in err
    assert "run the command again" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "hint"),
    [("x509: certificate signed by unknown authority", "certs.d"), ("denied: authentication required", "log in"), ("dial tcp 10.0.0.1:5000: connect: connection refused", "cannot be reached"),
     ("lookup registry.example.com: no such host", "cannot be reached"), ("unexpected EOF", "run the command again"),
     ("invalid mount type \"cache\"", "too old"), ("OCI exporter is not supported for the docker driver", "no OCI layout"),
     ("docker: 'buildx' is not a docker command.", "install Docker's buildx"), ("http: server gave HTTP response to HTTPS client", "insecure-registries")],
)
def test_what_helps_against_what_they_say(bin_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, hint: str) -> None:
    install(bin_folder, "podman", broken=("build",), words=words)
    code, _, err = run(capsys, "build", "d20", "--builder", "podman", "--oci", str(tmp_path / "image"))
    assert code == 5 and words in err and hint in err
