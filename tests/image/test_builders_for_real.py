"""The builders' own command lines, run: an image without a base for what is not about the base, so that each takes a second.

docker and nerdctl run where their daemons do, and are skipped with the reason where they cannot.
"""

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest
from cutting_proxy import CuttingProxy
from standin import run
from trial import layers_of, plan_of, say

from nanochat_npu.bundle import DOCKERFILE
from nanochat_npu.errors import ImageError
from nanochat_npu.image.build import build
from nanochat_npu.image.builders import BUILDERS, find_builder
from nanochat_npu.image.context import BuildInput, build_input
from nanochat_npu.image.reference import parse_reference
from nanochat_npu.image.registry import Registry

pytestmark = pytest.mark.image


@pytest.fixture(params=list(BUILDERS))
def builder(request: pytest.FixtureRequest) -> str:
    """Every builder that can work here."""
    try:
        return find_builder(request.param).name
    except ImageError as error:
        pytest.skip(f"cannot build here: {error}")


def tiny(address: str, name: str, payload: bytes = b"payload", *, plain_http: bool = True) -> BuildInput:
    """An image of one file, with all the labels of a real one."""
    source = build_input(plan_of(address, "registry.example.com/no/base:here"))
    return dataclasses.replace(
        source, files={**source.files, DOCKERFILE: b"FROM scratch\nCOPY payload /payload\n", "payload": payload}, plain_http=plain_http,
        reference=parse_reference(f"{address}/train/{name}:{source.reference.tag}"),
    )


def test_build_push_and_nothing_the_second_time(builder: str, registry: str) -> None:
    source = tiny(registry, f"tiny-{builder}")
    built = build(source, say, builder=builder)
    assert built.outcome == "built"
    found = json.loads(run("skopeo", "inspect", "--tls-verify=false", f"docker://{source.reference.name}@{built.digest}"))
    assert found["Digest"] == built.digest == Registry(source.reference, plain_http=True).head(source.reference.tag)
    assert source.labels.items() <= found["Labels"].items()
    started = time.perf_counter()
    assert build(source, say, builder=builder).outcome == "present"
    print(f"{builder}: no change, {time.perf_counter() - started:.2f} s")


def test_oci_layout(builder: str, tmp_path: Path) -> None:
    source = tiny("127.0.0.1:1", f"oci-{builder}")
    try:
        built = build(source, say, builder=builder, oci=tmp_path / "image")
    except ImageError as error:
        if builder == "docker" and ("OCI layout" in (error.hint or "") or "buildx" in (error.hint or "")):
            pytest.skip(f"this {builder} writes none, and says so: {error.hint}")
        raise
    assert built.outcome == "written"
    assert [path.name for path in tmp_path.glob("*image*")] == ["image"]
    found = json.loads(run("skopeo", "inspect", f"oci:{tmp_path}/image:{source.reference.tag}"))
    assert source.labels.items() <= found["Labels"].items()


def test_push_that_is_cut_off(builder: str, cutting_proxy: CuttingProxy, registry: str) -> None:
    source = tiny(cutting_proxy.address, f"cut-{builder}", os.urandom(8_000_000))
    cutting_proxy.left = 2_000_000
    with pytest.raises(ImageError, match=rf"{builder} push failed with \d+:\n  \| ") as error:
        build(source, say, builder=builder, force=True)
    assert error.value.exit_code == 5
    assert cutting_proxy.cuts > 0
    there = Registry(parse_reference(str(source.reference).replace(cutting_proxy.address, registry)), plain_http=True)
    assert there.head(source.reference.tag) is None, "the tag is what it was: nothing"
    cutting_proxy.left = None
    assert build(source, say, builder=builder).outcome == "built"
    assert there.head(source.reference.tag) is not None


def test_registry_that_is_down(builder: str) -> None:
    source = tiny("127.0.0.1:9", f"down-{builder}")
    with pytest.raises(ImageError, match="cannot be reached"):
        build(source, say, builder=builder)
    with pytest.raises(ImageError, match=rf"{builder} push failed") as error:
        build(source, say, builder=builder, force=True)  # not asked before: the builder itself finds out
    assert "cannot be reached" in (error.value.hint or "")


def test_registry_whose_certificate_nobody_knows(
    builder: str, registry_with_tls: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, certificate = registry_with_tls
    source = tiny(address, f"tls-{builder}", plain_http=False)
    with pytest.raises(ImageError, match="certificate is not accepted") as refused:
        build(source, say, builder=builder)
    assert "SSL_CERT_FILE" in (refused.value.hint or "")
    if builder == "docker":
        pytest.skip("docker's daemon takes any certificate of a registry on loopback")
    with pytest.raises(ImageError, match=f"{builder} push failed") as error:
        build(source, say, builder=builder, force=True)
    assert "CA" in (error.value.hint or "")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert build(source, say, builder=builder).outcome == "built", "with the site's CA both are content"


def test_registry_without_tls_is_not_guessed(builder: str, registry: str) -> None:
    if builder == "docker":
        pytest.skip("docker's daemon guesses it for registries on loopback")
    with pytest.raises(ImageError, match=f"{builder} push failed") as error:
        build(tiny(registry, f"guess-{builder}", plain_http=False), say, builder=builder, force=True)
    assert "plain_http" in (error.value.hint or "")


def test_step_that_fails_leaves_no_image_and_no_container(builder: str, registry: str) -> None:
    source = tiny(registry, f"fails-{builder}")
    source = dataclasses.replace(source, files={**source.files, DOCKERFILE: b"FROM scratch\nCOPY nowhere /nowhere\n"})
    with pytest.raises(ImageError, match=rf"{builder} build failed with \d+:\n(.*\n)*.*nowhere"):
        build(source, say, builder=builder)
    assert Registry(source.reference, plain_http=True).head(source.reference.tag) is None
    if builder in ("buildah", "podman"):
        assert run("buildah", "containers", "--quiet") == ""
        assert f"fails-{builder}" not in run("buildah", "images")


def test_layers_of_a_tiny_image_are_its_one_file(builder: str, registry: str) -> None:
    source = tiny(registry, f"one-{builder}", b"x" * 1000)
    assert len(layers_of(source, build(source, say, builder=builder).digest)) == 1
