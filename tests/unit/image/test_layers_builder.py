"""Builder `layers` and the OCI layout against a scripted registry: what is sent, in which order, and what an interruption leaves."""

import dataclasses
import json
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from scripted_registry import State, digest_of, serving

from nanochat_npu.errors import ImageError
from nanochat_npu.image import layers
from nanochat_npu.image import registry as registry_module
from nanochat_npu.image.build import build, outlook
from nanochat_npu.image.context import BuildInput, build_input
from nanochat_npu.image.tarlayer import Entry, wheel_entries, write_layer
from nanochat_npu.plan import make_plan
from nanochat_npu.spec import JobSpec

INDEX = "application/vnd.oci.image.index.v1+json"
OCI = "application/vnd.oci.image.manifest.v1+json"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own: what one build leaves must not help or hurt another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "nanochat-npu"


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    monkeypatch.setattr(registry_module.time, "sleep", lambda _: None)
    with serving() as running:
        yield running


@pytest.fixture
def wheelhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # What is picked from a wheelhouse is tried in test_wheelhouse.py, by pip and with the hashes of a lock; here all of it is taken.
    monkeypatch.setattr(layers, "pick_wheels", lambda image, folder, scratch, show: sorted(folder.glob("*.whl")))
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "pkg-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("pkg/__init__.py", "x = 1\n")
        archive.writestr("pkg-1.0.data/scripts/tool", "#!python\n")
    return folder


def put_base(state: State, arch: str = "arm64", *, index: bool = True) -> None:
    config = json.dumps({"architecture": arch, "os": "linux", "config": {"Env": ["PATH=/bin", "PYTHONPATH=/cann"]}, "rootfs": {"type": "layers", "diff_ids": ["sha256:0"]}}).encode()
    layer = b"base layer"
    manifest = json.dumps({
        "schemaVersion": 2, "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest_of(config), "size": len(config)},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest_of(layer), "size": len(layer)}],
    }).encode()
    state.blobs |= {digest_of(config): config, digest_of(layer): layer}
    state.manifests[digest_of(manifest)] = (manifest, OCI)
    entries = [{"digest": "sha256:" + "9" * 64, "platform": {"os": "linux", "architecture": "s390x"}}, {"digest": digest_of(manifest), "platform": {"os": "linux", "architecture": arch}}]
    state.manifests["9.1"] = (json.dumps({"schemaVersion": 2, "manifests": entries}).encode(), INDEX) if index else (manifest, OCI)


def source_of(state: State, wheelhouse: Path, **image: Any) -> BuildInput:
    spec = JobSpec.model_validate({
        "name": "job", "owner": "li", "backend": "volcano", "resources": {"npus_per_node": 8, "npu": "910B3"},
        "image": {"base": f"{state.address}/ascend/cann:9.1", "registry": f"{state.address}/train", "repository": "image", "plain_http": True, "wheelhouse": str(wheelhouse), **image},
        "storage": {"output": {"claim": "c", "path": "/output"}},
    })
    import datetime

    return build_input(make_plan(spec, datetime.date(2026, 11, 30)))


def make(state: State, source: BuildInput, **options: Any) -> Any:
    return build(source, lambda _: None, builder="layers", plain_http_base=True, **options)


@pytest.mark.parametrize("index", [True, False])
def test_two_layers_are_appended_for_another_architecture(state: State, wheelhouse: Path, index: bool) -> None:
    put_base(state, index=index)
    source = source_of(state, wheelhouse)
    built = make(state, source)
    manifest = json.loads(state.manifests[built.digest][0])
    config = json.loads(state.blobs[manifest["config"]["digest"]])
    assert len(manifest["layers"]) == 3
    assert len(config["rootfs"]["diff_ids"]) == 3
    assert config["architecture"] == "arm64"
    assert config["config"]["Entrypoint"] == ["/opt/nanochat/entrypoint.sh"]
    assert "PYTHONPATH=/opt/nanochat/code:/opt/nanochat/packages:/cann" in config["config"]["Env"]
    assert config["config"]["Labels"]["nanochat-npu/content"] == source.reference.tag


def test_tag_is_moved_last_and_not_at_all_when_a_layer_fails(state: State, wheelhouse: Path) -> None:
    put_base(state)
    source = source_of(state, wheelhouse)
    state.script = lambda method, path, headers: (500, {}, b"") if method == "PUT" and "/uploads/" in path else None
    with pytest.raises(ImageError):
        make(state, source)
    assert source.reference.tag not in state.manifests


def test_same_input_same_digest(state: State, wheelhouse: Path) -> None:
    put_base(state)
    source = source_of(state, wheelhouse)
    assert make(state, source).digest == make(state, source, force=True).digest
    assert make(state, source).outcome == "present"


def test_what_a_wheelhouse_holds_is_not_kept_for_builds_without_it(state: State, wheelhouse: Path, cache: Path) -> None:
    """Its wheels are the user's; a layer of them under the lock's name would be taken for the lock's own packages."""
    put_base(state)
    make(state, source_of(state, wheelhouse))
    assert not list(cache.glob("packages-*"))


def test_outlook_knows_what_an_edit_of_the_code_costs(state: State, wheelhouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_base(state)
    source = source_of(state, wheelhouse)
    assert outlook(source).push_bytes is None and outlook(source).changed[0] == "base"
    make(state, source)
    assert (outlook(source).push_bytes, outlook(source).changed) == (0, ())
    parts = {**source.parts, "code": "another"}
    edited = dataclasses.replace(source, parts=parts, reference=dataclasses.replace(source.reference, tag="edited"))
    size = len(source.files[source.image.wheel])
    assert outlook(edited, "layers").changed == ("code",)
    assert (outlook(edited, "layers").push_bytes, outlook(edited).push_bytes) == (size, 4 * size)
    assert 4 * size < 2_000_000


def test_two_builds_at_once_share_a_cache(state: State, wheelhouse: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both pack the same packages; none takes the other's file away (a fixed name for the unfinished file did)."""
    put_base(state)
    together = Barrier(2, timeout=30)

    def packed_together(entries: Iterator[Entry], to: Path) -> Any:
        layer = write_layer(entries, to)
        if to.name != "code.tar.gz":
            together.wait()  # both have written before one of them gives its file the final name
        return layer

    # The wheels come from the test's folder: a download is not what is tried here.
    monkeypatch.setattr(layers, "fill_wheelhouse", lambda *_: sorted(wheelhouse.glob("*.whl")))
    monkeypatch.setattr(layers, "write_layer", packed_together)
    source = dataclasses.replace(source_of(state, wheelhouse), wheelhouse=None)
    with ThreadPoolExecutor(2) as pool:
        digests = {built.digest for built in pool.map(lambda _: make(state, source, force=True), range(2))}
    assert len(digests) == 1
    assert sorted(path.suffix for path in cache.glob("packages-*")) == [".gz", ".json"]
    assert not list(cache.glob(".packing-*"))


@pytest.mark.parametrize("note", ["", "[]", "{\"digest\": 1}", "{\"digest\": \"sha256:0\", \"diff_id\": \"x\", \"size_bytes\": \"many\"}"])
def test_a_cache_entry_that_was_cut_short_is_packed_anew(state: State, wheelhouse: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, note: str) -> None:
    put_base(state)
    monkeypatch.setattr(layers, "fill_wheelhouse", lambda *_: sorted(wheelhouse.glob("*.whl")))
    source = dataclasses.replace(source_of(state, wheelhouse), wheelhouse=None)
    first = make(state, source)
    next(cache.glob("packages-*.json")).write_text(note, "utf-8")
    assert make(state, source, force=True).digest == first.digest


def test_base_of_another_architecture_is_refused(state: State, wheelhouse: Path) -> None:
    put_base(state, arch="amd64")
    with pytest.raises(ImageError, match="does not exist for arm64"):
        make(state, source_of(state, wheelhouse))
    put_base(state, arch="amd64", index=False)
    with pytest.raises(ImageError, match="is for amd64"):
        make(state, source_of(state, wheelhouse))


def test_user_1000_needs_a_builder(state: State, wheelhouse: Path) -> None:
    put_base(state)
    source = source_of(state, wheelhouse)
    with pytest.raises(ImageError, match="cannot make the user"):
        make(state, dataclasses.replace(source, image=dataclasses.replace(source.image, user=1000)))


def test_oci_layout_is_whole_or_not_there(state: State, wheelhouse: Path, tmp_path: Path) -> None:
    put_base(state)
    source = source_of(state, wheelhouse)
    built = make(state, source, oci=tmp_path / "out" / "image")
    index = json.loads((tmp_path / "out" / "image" / "index.json").read_text())
    assert index["manifests"][0]["digest"] == built.digest
    for blob in (tmp_path / "out" / "image" / "blobs" / "sha256").iterdir():
        assert digest_of(blob.read_bytes()) == f"sha256:{blob.name}"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["image"]
    with pytest.raises(ImageError, match="not an empty folder"):
        make(state, source, oci=tmp_path / "out" / "image")


def test_oci_layout_that_fails_leaves_nothing(state: State, wheelhouse: Path, tmp_path: Path) -> None:
    """It was written into a hidden folder beside the wanted one, which stayed with all the base's layers in it."""
    put_base(state)
    source = source_of(state, wheelhouse)
    (wheelhouse / "broken-1-py3-none-any.whl").write_bytes(b"junk")
    with pytest.raises(ImageError, match="cannot be read"):
        make(state, source, oci=tmp_path / "out" / "image")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("config", [b"no json", b"{}", b'{"architecture": "arm64", "rootfs": {"diff_ids": []}}', b"[]"])
def test_base_whose_description_makes_no_sense(state: State, wheelhouse: Path, config: bytes) -> None:
    manifest = json.dumps({"config": {"digest": digest_of(config)}, "layers": [{"digest": digest_of(b"x")}]}).encode()
    state.blobs[digest_of(config)] = config
    state.manifests["9.1"] = (manifest, OCI)
    with pytest.raises(ImageError, match="cannot be understood"):
        make(state, source_of(state, wheelhouse))


def test_upload_that_is_cut_off_is_tried_again_and_then_leaves_the_tag_alone(state: State, wheelhouse: Path) -> None:
    put_base(state)
    source, cuts = source_of(state, wheelhouse), iter(range(3))

    def cut(method: str, path: str, headers: dict[str, str]) -> None:
        if method == "PUT" and "/uploads/" in path and next(cuts, None) is not None:
            raise ConnectionResetError  # the connection ends without an answer

    state.script = cut
    with pytest.raises(ImageError, match="cannot be reached") as error:
        make(state, source)
    assert error.value.exit_code == 5
    assert source.reference.tag not in state.manifests
    assert make(state, source).outcome == "built", "the next try succeeds"


def test_tag_of_somebody_else_is_not_overwritten(state: State, wheelhouse: Path) -> None:
    put_base(state)
    other = json.dumps({"config": {"digest": digest_of(b"{}")}, "layers": []}).encode()
    state.blobs[digest_of(b"{}")] = b"{}"
    state.manifests["mine"] = state.manifests[digest_of(other)] = (other, OCI)
    with pytest.raises(ImageError, match="exists with other content"):
        make(state, source_of(state, wheelhouse, tag="mine"))
    make(state, source_of(state, wheelhouse, tag="mine"), force=True)


def test_layer_bytes_depend_on_the_content_only(tmp_path: Path) -> None:
    entries = [Entry("a/b/one", b"1"), Entry("a/two", b"2", executable=True)]
    first, second = write_layer(entries, tmp_path / "one"), write_layer(entries, tmp_path / "two")
    assert (first.digest, first.diff_id) == (second.digest, second.diff_id)


def test_same_file_in_two_wheels_is_taken_once_and_a_clash_is_refused(tmp_path: Path) -> None:
    write_layer([Entry("a", b"1"), Entry("a", b"1")], tmp_path / "one")
    with pytest.raises(ImageError, match="different files of one name"):
        write_layer([Entry("a", b"1"), Entry("a", b"2")], tmp_path / "two")


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../evil"])
def test_wheel_that_reaches_outside_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "evil-1-py3-none-any.whl", "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(ImageError, match="outside itself"):
        list(wheel_entries([tmp_path / "evil-1-py3-none-any.whl"], "root"))


def test_what_is_not_a_wheel_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"junk")
    with pytest.raises(ImageError) as error:
        list(wheel_entries([tmp_path / "x.whl"], "root"))
    assert error.value.where == str(tmp_path / "x.whl")


def test_a_job_names_what_was_built_by_digest(state: State, wheelhouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datetime

    from nanochat_npu.image.build import pinned_image

    put_base(state)
    source = source_of(state, wheelhouse)
    plan = make_plan(JobSpec.model_validate({
        "name": "job", "owner": "li", "backend": "volcano", "resources": {"npus_per_node": 8, "npu": "910B3"},
        "image": {"base": f"{state.address}/ascend/cann:9.1", "registry": f"{state.address}/train", "repository": "image", "plain_http": True, "wheelhouse": str(wheelhouse)},
        "storage": {"output": {"claim": "c", "path": "/output"}},
    }), datetime.date(2026, 11, 30))
    assert pinned_image(plan) is None
    built = make(state, source)
    assert pinned_image(plan) == f"{state.address}/train/image@{built.digest}"
    # On another computer, where nothing was built: `build` finds the image there, and that is enough.
    monkeypatch.setenv("NANOCHAT_NPU_HOME", str(tmp_path / "another-computer"))
    assert pinned_image(plan) is None
    assert make(state, source).outcome == "present"
    assert pinned_image(plan) == f"{state.address}/train/image@{built.digest}"
    assert sorted(path.suffix for path in (tmp_path / "another-computer" / "images").iterdir()) == [".json", ".json"], "the note and the bill of materials, whole"
