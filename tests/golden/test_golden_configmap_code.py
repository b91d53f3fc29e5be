"""``image.code: configmap``: the trainer rides along, on an image that nobody has to build."""

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from golden_support import plan_of

from nanochat_npu.bundle import CONFIGMAPS, DOCKERFILE, JOB
from nanochat_npu.cluster.serving import Server, server_objects
from nanochat_npu.errors import ImageError
from nanochat_npu.image.context import build_input
from nanochat_npu.image.trainer_wheel import trainer_wheel
from nanochat_npu.render import render

OFFICIAL = "quay.io/ascend/torch-npu:2.12.0-cann9.1.0-910b-ubuntu22.04-py3.12"
OPTIONS = ("image.code=configmap", f"image.ref={OFFICIAL}", "image.packages=/data/packages")


def test_official_image_and_our_wheel() -> None:
    bundle = render(plan_of("one-server", *OPTIONS))
    assert DOCKERFILE not in bundle.files
    pod = yaml.safe_load(bundle.files[JOB])["spec"]["tasks"][0]["template"]["spec"]
    container = pod["containers"][0]
    assert container["image"] == OFFICIAL
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert env["PYTHONPATH"] == f"/opt/nanochat/job/{trainer_wheel().name}:/data/packages"
    assert {"name": "job", "configMap": {"name": "one-server-run"}} in pod["volumes"]


def test_a_chat_server_of_the_job_has_the_wheel_too() -> None:
    """It has a ConfigMap of its own for its entry script, where the job's, which the wheel is in, was mounted."""
    job = yaml.safe_load(render(plan_of("one-server", *OPTIONS)).files[JOB])
    _name, _identity, (own, server) = server_objects(job, Server(), "entry")
    pod = server["spec"]["tasks"][0]["template"]["spec"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "job"]
    sources = [source["configMap"] for source in volume["projected"]["sources"]]
    assert sources[0] == {"name": own["metadata"]["name"]}
    assert sources[1] == {"name": "one-server-run", "items": [{"key": trainer_wheel().name, "path": trainer_wheel().name}]}
    (mount,) = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "job"]
    path = next(entry["value"] for entry in pod["containers"][0]["env"] if entry["name"] == "PYTHONPATH")
    assert path.startswith(f"{mount['mountPath']}/{trainer_wheel().name}:")


def test_a_chat_server_of_a_job_with_the_code_in_its_image_has_its_own_map_alone() -> None:
    job = yaml.safe_load(render(plan_of("one-server")).files[JOB])
    _name, _identity, (own, server) = server_objects(job, Server(), "entry")
    volumes = server["spec"]["tasks"][0]["template"]["spec"]["volumes"]
    assert [volume for volume in volumes if volume["name"] == "job"] == [{"name": "job", "configMap": {"name": own["metadata"]["name"]}}]


def test_map_holds_the_wheel_byte_for_byte() -> None:
    documents = {d["metadata"]["name"]: d for d in yaml.safe_load_all(render(plan_of("one-server", *OPTIONS)).files[CONFIGMAPS])}
    held = documents["one-server-run"]["binaryData"][trainer_wheel().name]
    assert base64.b64decode(held) == trainer_wheel().content
    assert len(trainer_wheel().content) < 1024 * 1024


def test_python_imports_the_trainer_from_the_wheel_behind_a_link(tmp_path: Path) -> None:
    # As kubelet mounts a ConfigMap: the file is a link to a folder that changes.
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / trainer_wheel().name).write_bytes(trainer_wheel().content)
    link = tmp_path / trainer_wheel().name
    link.symlink_to(Path("..data") / trainer_wheel().name)
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{link}:{packages}"}
    script = "import nanochat, nanochat.contract; print(nanochat.__file__)"
    result = subprocess.run([sys.executable, "-S", "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert str(link) in result.stdout
    version = subprocess.run([sys.executable, "-S", "-m", "nanochat", "--version"], env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert version.stdout.startswith("nanochat ")


def test_there_is_nothing_to_build() -> None:
    with pytest.raises(ImageError, match="nothing to build"):
        build_input(plan_of("one-server", *OPTIONS))
