"""Images built for real, pushed, read back and run: our Dockerfile by buildah, and the same image without any builder."""

import datetime
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from standin import run

from nanochat_npu.image import trainer_wheel as wheels
from nanochat_npu.image.build import Built, build, hand_off, outlook, resolve_image
from nanochat_npu.image.context import BuildInput, build_input
from nanochat_npu.image.registry import Registry
from nanochat_npu.load import load_spec
from nanochat_npu.plan import Plan, make_plan
from nanochat_npu.render import render
from nanochat_npu.spec import JobSpec

pytestmark = pytest.mark.image
TODAY = datetime.date(2026, 11, 30)


def plan_of(registry: str, base: str, **image: Any) -> Plan:
    """A small CPU job on an image made from the stand-in; torch is in the base, so its index is never asked."""
    spec = {
        "spec_version": 1, "name": "image-job", "owner": "li", "backend": "volcano",
        "run": {
            "stages": ["tokenizer", "pretrain"], "data": {"source": "toy", "toy_documents": 300}, "tokenizer": {"vocab_size": 512},
            "model": {"depth": 2, "aspect_ratio": 16, "head_dim": 16, "sequence_len": 64},
            "pretrain": {"device_batch": 4, "steps": 5, "tokens_per_step": 256, "eval_tokens": 1024},
        },
        "resources": {"nodes": 1, "npus_per_node": 0},
        "image": {
            "cann": "9.0.1", "python": f"3.{sys.version_info.minor}", "arch": "amd64", "base": base, "registry": f"{registry}/train", "plain_http": True,
            "mirrors": {"pip_torch": "http://127.0.0.1:1/not-asked"}, **image,
        },
        "storage": {"output": {"host_path": "/srv/output", "path": "/output"}},
    }
    return make_plan(JobSpec.model_validate(spec), TODAY)


def say(line: str) -> None:
    print(line)


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


def layers_of(source: BuildInput, digest: str) -> list[dict[str, Any]]:
    manifest = Registry(source.reference, plain_http=True).manifest(digest)
    assert manifest is not None
    return manifest.parsed()["layers"]


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


def test_layers_leave_the_base_alone(by_layers: tuple[BuildInput, Built], base: str) -> None:
    source, built = by_layers
    base_layers = [layer["digest"] for layer in layers_of(source, built.digest)][:-2]
    assert base_layers == json.loads(run("skopeo", "inspect", "--tls-verify=false", f"docker://{base}"))["Layers"]
    assert inspect(built)["Env"][0].startswith("PATH=")


def test_layers_give_the_same_digest_again(by_layers: tuple[BuildInput, Built]) -> None:
    source, built = by_layers
    assert build(source, say, builder="layers", force=True, plain_http_base=True).digest == built.digest


@pytest.mark.parametrize("builder", ["buildah", "layers"])
def test_edit_of_one_line_changes_the_last_small_layers_only(
    builder: str, by_buildah: tuple[BuildInput, Built], by_layers: tuple[BuildInput, Built], registry: str, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, built = by_buildah if builder == "buildah" else by_layers
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
    options = {} if builder == "buildah" else {"base_has_torch": True, "repository": "by-layers"}
    after = build_input(plan_of(registry, base, **options, tag=f"edited-{builder}"), allow_cuda_torch=True)
    rebuilt = build(after, say, builder=builder, plain_http_base=True)
    before = {layer["digest"] for layer in layers_of(source, built.digest)}
    fresh = [layer for layer in layers_of(after, rebuilt.digest) if layer["digest"] not in before]
    assert fresh, "the edit must be in the image"
    assert sum(layer["size"] for layer in fresh) < 2_000_000
    print(f"{builder}: {len(fresh)} layers, {sum(layer['size'] for layer in fresh)} bytes")


def test_tag_with_other_content_is_not_overwritten(by_layers: tuple[BuildInput, Built], registry: str, base: str) -> None:
    from nanochat_npu.errors import ImageError

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
    from nanochat_npu.errors import ImageError

    source = build_input(plan_of(registry, base, repository="refused"))
    with pytest.raises(ImageError, match="is a CUDA build") as error:
        build(source, say, builder="buildah")
    assert error.value.exit_code == 5
    assert Registry(source.reference, plain_http=True).head(source.reference.tag) is None
    assert "refused" not in run("buildah", "images"), "nothing half-made stays"
    assert run("buildah", "containers", "--quiet") == ""


def test_base_that_does_not_exist_is_named(registry: str, base: str) -> None:
    from nanochat_npu.errors import ImageError

    for builder in ("buildah", "layers"):
        source = build_input(plan_of(registry, f"{registry}/ascend/cann:nowhere", repository="nobase", base_has_torch=True))
        with pytest.raises(ImageError, match=r"does not exist|manifest unknown|not found"):
            build(source, say, builder=builder, plain_http_base=True)


def test_handed_off_folder_builds_by_itself(by_buildah: tuple[BuildInput, Built], tmp_path: Path, registry: str) -> None:
    source, _ = by_buildah
    hand_off(source, tmp_path / "folder")
    script = tmp_path / "folder" / "build.sh"
    text = script.read_text()
    assert str(source.reference) in text.replace("${REGISTRY:-" + source.reference.registry + "}", source.reference.registry)
    subprocess.run(["bash", "-n", str(script)], check=True)
    output = run("buildah", "build", "--layers", "--isolation", "chroot", "--tls-verify=false", "-t", "handed-off", ".", cwd=script.parent)
    assert "Using cache" in output, "the same layers as our own build"
    run("buildah", "rmi", "--force", "handed-off")


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
