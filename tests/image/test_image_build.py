"""Images built for real, pushed, read back and run: our Dockerfile by buildah, and the same image without any builder."""

import base64
import io
import json
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from standin import run
from trial import layers_of, plan_of, say

from nanochat_npu.bundle import CONFIGMAPS, JOB
from nanochat_npu.errors import ImageError
from nanochat_npu.image import trainer_wheel as wheels
from nanochat_npu.image.build import (
    Built,
    build,
    hand_off,
    image_labels,
    outlook,
    resolve_image,
)
from nanochat_npu.image.builders import find_builder
from nanochat_npu.image.context import REVISION, BuildInput, build_input
from nanochat_npu.image.describe import describe_image
from nanochat_npu.image.packages import unpack_packages
from nanochat_npu.image.reference import parse_reference
from nanochat_npu.image.registry import Registry
from nanochat_npu.load import load_spec
from nanochat_npu.plan import Plan
from nanochat_npu.render import render

pytestmark = pytest.mark.image

@pytest.fixture(scope="module")
def by_buildah(registry: str, base: str) -> tuple[BuildInput, Built]:
    source = build_input(plan_of(registry, base), allow_cuda_torch=True)
    return source, build(source, say, builder="buildah")


@pytest.fixture(scope="module")
def by_layers(registry: str, base: str) -> tuple[BuildInput, Built]:
    source = build_input(plan_of(registry, base, base_has_torch=True, repository="by-layers"), allow_cuda_torch=True)
    return source, build(source, say, builder="layers", plain_http_base=True)


def inspect(built: Built) -> dict[str, Any]:
    name = built.reference.rsplit(":", 1)[0]
    return json.loads(run("skopeo", "inspect", "--tls-verify=false", f"docker://{name}@{built.digest}"))


def trained_in(built: Built, folder: Path, plan: Plan) -> list[dict[str, Any]]:
    """Events of the job, run by the image's own entry script in a chroot of it."""
    (folder / "job").mkdir(parents=True)
    (folder / "output").mkdir()
    (folder / "job" / "run.json").write_text(render(plan).files["run.json"])
    container = run("buildah", "from", "--tls-verify=false", built.reference.rsplit(":", 1)[0] + "@" + built.digest)
    try:
        command = [
            "buildah", "run", "--isolation", "chroot", "--volume", f"{folder}/output:/output", "--volume", f"{folder}/job:/opt/nanochat/job:ro",
            "--env", "NANOCHAT_JOB_DIR=/output/jobs/image-job", "--env", "NANOCHAT_RUN_FILE=/opt/nanochat/job/run.json", "--env", "OMP_NUM_THREADS=1",
            container, "/opt/nanochat/entrypoint.sh", "launch",
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    finally:
        run("buildah", "rm", container)
    lines = (folder / "output/jobs/image-job/attempts/0/events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_pushed_image_is_what_the_build_says(by_buildah: tuple[BuildInput, Built]) -> None:
    source, built = by_buildah
    found = inspect(built)
    assert found["Digest"] == built.digest
    assert found["Architecture"] == "amd64"
    labels = found["Labels"]
    assert labels["nanochat-npu/content"] == source.reference.tag
    assert labels["nanochat-npu/allow-cuda-torch"] == "true", "an image with a CUDA torch says so"
    assert labels["nanochat-npu/torch-npu"] == "2.12.0"
    assert labels["nanochat-npu/spec"] == source.labels["nanochat-npu/spec"] and len(labels["nanochat-npu/spec"]) == 64
    assert labels[REVISION] == source.labels[REVISION]


def test_second_build_does_nothing(by_buildah: tuple[BuildInput, Built]) -> None:
    source, built = by_buildah
    again = build(source, say, builder="buildah")
    assert (again.outcome, again.digest) == ("present", built.digest)
    assert outlook(source).changed == ()


def test_job_refers_to_the_image_by_digest(by_buildah: tuple[BuildInput, Built], registry: str, base: str) -> None:
    source, built = by_buildah
    plan = plan_of(registry, base)
    reference = resolve_image(plan, str(source.reference))
    assert reference == f"{source.reference.name}@{built.digest}"
    job = yaml.safe_load(render(plan, image=reference).files["volcano-job.yaml"])
    assert job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["image"] == reference


def test_image_trains(by_buildah: tuple[BuildInput, Built], tmp_path: Path, registry: str, base: str) -> None:
    events = trained_in(by_buildah[1], tmp_path, plan_of(registry, base))
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2, 3, 4, 5]
    assert events[-1]["event"] == "done"


def test_image_without_a_builder_trains(by_layers: tuple[BuildInput, Built], tmp_path: Path, registry: str, base: str) -> None:
    events = trained_in(by_layers[1], tmp_path, plan_of(registry, base))
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2, 3, 4, 5]


def test_wheel_in_a_configmap_trains_on_an_image_that_nobody_built(registry: str, base: str, tmp_path: Path) -> None:
    """The job as it is rendered, on the base as it is: its ConfigMap's files, a folder of packages on a volume, its variables and its command."""
    plan = plan_of(registry, base, ref=base, code="configmap", packages="/packages")
    files = render(plan).files
    container = yaml.safe_load(files[JOB])["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    assert container["image"] == base
    (config_map,) = [document for document in yaml.safe_load_all(files[CONFIGMAPS]) if document]
    (tmp_path / "job").mkdir()
    (tmp_path / "output").mkdir()
    for name, text in config_map["data"].items():
        (tmp_path / "job" / name).write_text(text)
    for name, encoded in config_map["binaryData"].items():
        (tmp_path / "job" / name).write_bytes(base64.b64decode(encoded))
    unpack_packages(describe_image(plan), tmp_path / "packages", say)
    (place,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "job"]
    env = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry} | {"OMP_NUM_THREADS": "1"}
    started = run("buildah", "from", "--tls-verify=false", base)
    try:
        run("buildah", "run", "--isolation", "chroot", "--volume", f"{tmp_path}/output:/output", "--volume", f"{tmp_path}/job:{place}:ro",
            "--volume", f"{tmp_path}/packages:/packages:ro", *[word for name, value in env.items() for word in ("--env", f"{name}={value}")],
            started, *container["command"], *container["args"])
    finally:
        run("buildah", "rm", started)
    (found,) = (tmp_path / "output").rglob("attempts/0/events.jsonl")
    events = [json.loads(line) for line in found.read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2, 3, 4, 5]
    assert events[-1]["event"] == "done"


def test_both_builders_put_the_same_code_in(by_buildah: tuple[BuildInput, Built], by_layers: tuple[BuildInput, Built]) -> None:
    def code(source: BuildInput, digest: str, marker: str) -> dict[str, bytes]:
        registry, found = Registry(source.reference, plain_http=True), {}
        for layer in layers_of(source, digest)[-4:]:
            if layer["size"] > 5_000_000:
                continue
            with tarfile.open(fileobj=io.BytesIO(registry.blob(layer["digest"]))) as archive:
                for member in archive:
                    if member.isfile() and marker in member.name and member.name.endswith(".py"):
                        found[member.name.split(marker, 1)[1]] = archive.extractfile(member).read()  # type: ignore[union-attr]
        return found

    buildah = code(*(by_buildah[0], by_buildah[1].digest), "dist-packages/nanochat/")
    layers = code(*(by_layers[0], by_layers[1].digest), "opt/nanochat/code/nanochat/")
    assert len(buildah) > 20
    assert buildah == layers


def test_both_builders_start_the_same_thing(by_buildah: tuple[BuildInput, Built], by_layers: tuple[BuildInput, Built]) -> None:
    """What differs is where packages lie (site-packages, or a folder on PYTHONPATH) and what needs a running container."""
    one, other = (json.loads(run("skopeo", "inspect", "--config", "--tls-verify=false", f"docker://{built.reference.rsplit(':', 1)[0]}@{built.digest}"))
                  for _, built in (by_buildah, by_layers))
    for key in ("Entrypoint", "Cmd", "User", "WorkingDir"):
        assert one["config"].get(key) == other["config"].get(key), key
    assert (one["architecture"], one["os"]) == (other["architecture"], other["os"])
    # Repository and base_has_torch differ, so the specs and the Dockerfiles do.
    own = {"nanochat-npu/content", "nanochat-npu/spec", "io.buildah.version"}
    labels = [{key: value for key, value in config["config"]["Labels"].items() if key not in own} for config in (one, other)]
    assert labels[0] == labels[1]
    environment = [dict(entry.split("=", 1) for entry in config["config"]["Env"]) for config in (one, other)]
    assert environment[1].pop("PYTHONPATH") == "/opt/nanochat/code:/opt/nanochat/packages"
    assert environment[0] == environment[1]


def test_podman_builds_the_same_dockerfile(registry: str, base: str, by_buildah: tuple[BuildInput, Built], edited_wheel: None) -> None:
    """Upper layers come from the storage that both share; the edited code makes podman run the last steps itself."""
    try:
        find_builder("podman")
    except ImageError as error:
        pytest.skip(f"cannot build here: {error}")
    source = build_input(plan_of(registry, base, repository="by-podman", tag="edited"), allow_cuda_torch=True)
    built = build(source, say, builder="podman")
    assert source.labels.items() <= inspect(built)["Labels"].items()
    before = {layer["digest"] for layer in layers_of(by_buildah[0], by_buildah[1].digest)}
    fresh = [layer for layer in layers_of(source, built.digest) if layer["digest"] not in before]
    assert fresh and sum(layer["size"] for layer in fresh) < 2_000_000
    container = run("buildah", "from", "--tls-verify=false", f"{source.reference.name}@{built.digest}")
    try:
        command = ("/opt/nanochat/entrypoint.sh", "--version")
        assert run("buildah", "run", "--isolation", "chroot", container, *command).startswith("nanochat ")
        assert run("buildah", "run", "--isolation", "chroot", container, "python3", "-c", "import nanochat.errors; print(nanochat.errors.EDITED)") == "True"
    finally:
        run("buildah", "rm", container)


def test_layers_leave_the_base_alone(by_layers: tuple[BuildInput, Built], base: str) -> None:
    source, built = by_layers
    base_layers = [layer["digest"] for layer in layers_of(source, built.digest)][:-2]
    assert base_layers == json.loads(run("skopeo", "inspect", "--tls-verify=false", f"docker://{base}"))["Layers"]
    assert inspect(built)["Env"][0].startswith("PATH=")


def test_layers_give_the_same_digest_again(by_layers: tuple[BuildInput, Built]) -> None:
    source, built = by_layers
    assert build(source, say, builder="layers", force=True, plain_http_base=True).digest == built.digest


def contents(source: BuildInput, layers: list[dict[str, Any]]) -> dict[str, bytes]:
    """The files in some layers."""
    registry, found = Registry(source.reference, plain_http=True), {}
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(registry.blob(layer["digest"]))) as archive:
            for member in archive:
                if member.isfile():
                    found[member.name] = archive.extractfile(member).read()  # type: ignore[union-attr]
    return found


@pytest.fixture
def edited_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer with one more line in one file."""
    original = wheels.trainer_wheel()
    edited = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(original.content)) as old, zipfile.ZipFile(edited, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            if not name.endswith("RECORD"):
                new.writestr(name, old.read(name) + (b"\nEDITED = True\n" if name == "nanochat/errors.py" else b""))
            else:
                new.writestr(name, "".join(f"{entry},,\n" for entry in old.namelist()))
    changed = wheels.TrainerWheel(original.name, edited.getvalue())
    monkeypatch.setattr("nanochat_npu.image.context.trainer_wheel", lambda: changed)


@pytest.mark.parametrize("builder", ["buildah", "layers"])
def test_edit_of_one_line_changes_the_last_small_layers_only(
    builder: str, by_buildah: tuple[BuildInput, Built], by_layers: tuple[BuildInput, Built], registry: str, base: str, edited_wheel: None
) -> None:
    source, built = by_buildah if builder == "buildah" else by_layers
    options = {} if builder == "buildah" else {"base_has_torch": True, "repository": "by-layers"}
    after = build_input(plan_of(registry, base, **options, tag=f"edited-{builder}"), allow_cuda_torch=True)
    started = time.perf_counter()
    rebuilt = build(after, say, builder=builder, plain_http_base=True)
    took_s = time.perf_counter() - started
    before = {layer["digest"] for layer in layers_of(source, built.digest)}
    fresh = [layer for layer in layers_of(after, rebuilt.digest) if layer["digest"] not in before]
    assert fresh, "the edit must be in the image"
    assert sum(layer["size"] for layer in fresh) < 2_000_000
    assert [name for name in contents(after, fresh) if "nanochat" not in name] == [], "nothing but ours is in them"
    stamped = [name for name, content in contents(after, fresh).items() if name.endswith(".pyc") and content[4] == 0]
    assert stamped == [], "bytecode with a time stamp is another file in every build"
    started = time.perf_counter()
    assert build(after, say, builder=builder, plain_http_base=True).outcome == "present"
    print(f"{builder}: {len(fresh)} layers, {sum(layer['size'] for layer in fresh)} bytes, {took_s:.1f} s; no change {time.perf_counter() - started:.3f} s; "
          f"context {after.context_bytes} bytes")


def test_tag_with_other_content_is_not_overwritten(by_layers: tuple[BuildInput, Built], registry: str, base: str) -> None:
    taken = build_input(plan_of(registry, base, base_has_torch=True, repository="by-layers", tag="mine"), allow_cuda_torch=True)
    build(taken, say, builder="layers", plain_http_base=True)
    other = build_input(plan_of(registry, base, base_has_torch=True, repository="by-layers", tag="mine", torch_npu="2.11.0"), allow_cuda_torch=True)
    with pytest.raises(ImageError, match="exists with other content"):
        build(other, say, builder="layers", plain_http_base=True)


def test_oci_layout_is_the_same_image(by_layers: tuple[BuildInput, Built], tmp_path: Path) -> None:
    source, built = by_layers
    written = build(source, say, builder="layers", oci=tmp_path / "out" / "image", plain_http_base=True)
    assert written.digest == built.digest
    assert run("skopeo", "inspect", "--format", "{{.Digest}}", f"oci:{tmp_path}/out/image:{source.reference.tag}") == built.digest
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["image"], "nothing half-made beside it"


def test_a_check_that_fails_stops_the_build_and_nothing_is_pushed(registry: str, base: str, by_buildah: tuple[BuildInput, Built]) -> None:
    source = build_input(plan_of(registry, base, repository="refused"))
    with pytest.raises(ImageError, match="is a CUDA build") as error:
        build(source, say, builder="buildah")
    assert error.value.exit_code == 5
    assert Registry(source.reference, plain_http=True).head(source.reference.tag) is None
    assert "refused" not in run("buildah", "images"), "nothing half-made stays"
    assert run("buildah", "containers", "--quiet") == ""


def test_base_that_does_not_exist_is_named(registry: str, base: str) -> None:
    for builder in ("buildah", "layers"):
        source = build_input(plan_of(registry, f"{registry}/ascend/cann:nowhere", repository="nobase", base_has_torch=True))
        with pytest.raises(ImageError, match=r"does not exist|manifest unknown|not found"):
            build(source, say, builder=builder, plain_http_base=True)


def test_handed_off_folder_builds_by_itself(by_buildah: tuple[BuildInput, Built], tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = by_buildah
    hand_off(source, tmp_path / "folder")
    monkeypatch.setenv("BUILDER", "buildah")
    monkeypatch.setenv("REGISTRY", f"{registry}/administrator")
    output = run("./build.sh", cwd=tmp_path / "folder")
    assert "Using cache" in output, "the same layers as our own build"
    there = Registry(parse_reference(f"{registry}/administrator/{source.reference.repository}:{source.reference.tag}"), plain_http=True)
    digest = there.head(source.reference.tag)
    assert digest is not None
    assert source.labels.items() <= image_labels(there, digest).items(), "what the job's own build would look for"


def test_load_spec_is_what_a_person_would_use(registry: str, base: str, tmp_path: Path) -> None:
    plan = plan_of(registry, base)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(plan.spec.model_dump(mode="json", exclude_defaults=True)))
    assert load_spec(str(path)).spec.image == plan.spec.image


def test_cpu_image_for_trials_is_built_the_same_way(base: str, by_buildah: tuple[BuildInput, Built]) -> None:
    root = Path(__file__).parents[2]
    run(
        "buildah", "build", "--isolation", "chroot", "--tls-verify=false", "--build-arg", f"BASE={base}", "--ignorefile", "docker/cpu.Dockerfile.dockerignore",
        "-f", "docker/cpu.Dockerfile", "-t", "cpu-trial", ".", cwd=root,
    )
    container = run("buildah", "from", "--pull-never", "cpu-trial")
    try:
        assert run("buildah", "run", "--isolation", "chroot", container, "/bin/bash", "/opt/nanochat/entrypoint.sh", "--version").startswith("nanochat ")
        assert run("buildah", "run", "--isolation", "chroot", container, "id", "-u") == "1000"
        assert run("buildah", "run", "--isolation", "chroot", container, "sh", "-c", "ls /opt/nanochat/code").split() == ["nanochat"]
    finally:
        run("buildah", "rm", container)
        run("buildah", "rmi", "--force", "cpu-trial")
