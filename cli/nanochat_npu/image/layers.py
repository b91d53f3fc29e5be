"""Builder ``layers``: appends two layers to a base image through the registry's API. No daemon, no root, no emulation.

One layer of dependencies, unpacked from wheels that pip resolved for the image's architecture, one of our code. Both are put
on PYTHONPATH, since where the base keeps its packages cannot be known without running it. What only a running container can
do is not done: no system packages, no user 1000 (use the base image's own, or another builder).
"""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nanochat_npu.bundle import ENTRYPOINT
from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _
from nanochat_npu.image.context import BuildInput
from nanochat_npu.image.reference import parse_reference
from nanochat_npu.image.registry import INDEX_TYPES, MANIFEST_TYPES, Manifest, Registry, sha256_of
from nanochat_npu.image.tarlayer import Entry, Layer, wheel_entries, write_layer
from nanochat_npu.image.wheelhouse import fill_wheelhouse, pick_wheels

__all__ = ["PACKAGES", "build_layers"]

PACKAGES = "opt/nanochat/packages"
CODE = "opt/nanochat/code"
_LAYER_TYPE = {
    MANIFEST_TYPES[0]: "application/vnd.oci.image.layer.v1.tar+gzip", MANIFEST_TYPES[1]: "application/vnd.docker.image.rootfs.diff.tar.gzip",
}
Show = Callable[[str], None]


class Target(Protocol):
    """Where an image goes: a registry or an OCI layout."""

    def has_blob(self, digest: str) -> bool: ...
    def mount(self, digest: str, repository: str) -> bool: ...
    def upload(self, digest: str, source: bytes | Path) -> None: ...
    def put_manifest(self, manifest: Manifest, version: str) -> str: ...


@dataclass(frozen=True)
class Base:
    """The base image of one architecture."""

    registry: Registry
    manifest: Manifest
    config: dict[str, Any]


def build_layers(source: BuildInput, target: Target, cache: Path, show: Show, *, plain_http_base: bool = False) -> str:
    """Make the image and push it; gives back its digest. The tag is moved last, so an interrupted push changes nothing.

    Args:
        source: What the image is made of.
        target: Where it goes.
        cache: Folder for wheels and layers between builds.
        show: Gets progress lines.
        plain_http_base: True if the base image's registry has no TLS.
    """
    if source.image.user != 0:
        raise ImageError(_("builder layers cannot make the user that security.run_as_user: 1000 needs"), where="security.run_as_user", hint=_("use 0, or docker, buildah, podman or nerdctl"))
    base = _read_base(source, plain_http_base)
    with tempfile.TemporaryDirectory(prefix="nanochat-npu-") as scratch:
        packages = _packages_layer(source, cache, Path(scratch), show)
        code = write_layer(_code_entries(source), Path(scratch) / "code.tar.gz")
        _copy_base(base, target, Path(scratch), show)
        for layer in (packages, code):
            show(_("layer {digest}: {size} bytes").format(digest=layer.digest[:19], size=layer.size_bytes))
            target.upload(layer.digest, layer.path)
        config = json.dumps(_config(base, source, (packages, code)), sort_keys=True, separators=(",", ":")).encode()
        target.upload(sha256_of(config), config)
        return target.put_manifest(_manifest(base, config, (packages, code)), source.reference.tag)


def _read_base(source: BuildInput, plain_http: bool) -> Base:
    reference = parse_reference(source.image.base)
    registry = Registry(reference, plain_http=plain_http)
    found = registry.manifest(reference.version)
    if found is not None and found.media_type in INDEX_TYPES:
        found = next((registry.manifest(entry["digest"]) for entry in found.parsed().get("manifests", []) if _is_for(entry, source.image.arch)), None)
    if found is None:
        raise ImageError(
            _("the base image does not exist for {arch}").format(arch=source.image.arch), where=source.image.base,
            hint=_("see image.base, image.mirrors.registry and nanochat-npu image matrix"),
        )
    if found.media_type not in MANIFEST_TYPES:
        raise ImageError(_("the base image has a form that is not known: {kind}").format(kind=found.media_type), where=source.image.base)
    config = _read_config(registry, found, source.image.base)
    if config.get("architecture") != source.image.arch:
        raise ImageError(_("the base image is for {found}, the spec says {wanted}").format(found=config.get("architecture"), wanted=source.image.arch), where=source.image.base)
    return Base(registry, found, config)


def _read_config(registry: Registry, manifest: Manifest, base: str) -> dict[str, Any]:
    try:
        config = json.loads(registry.blob(manifest.parsed()["config"]["digest"]))
        layers, diff_ids = manifest.parsed()["layers"], config["rootfs"]["diff_ids"]
    except (ValueError, KeyError, TypeError) as error:
        raise ImageError(_("the base image's description cannot be understood"), where=base) from error
    if len(layers) != len(diff_ids):
        raise ImageError(_("the base image's description cannot be understood"), where=base)
    return config  # type: ignore[no-any-return]


def _is_for(entry: dict[str, Any], arch: str) -> bool:
    platform = entry.get("platform") or {}
    return platform.get("architecture") == arch and platform.get("os") == "linux"


def _packages_layer(source: BuildInput, cache: Path, scratch: Path, show: Show) -> Layer:
    """The layer of dependencies, from the cache where an earlier build left it.

    A wheelhouse is the user's own and its wheels may change under the same lock, so what is packed from it is not kept.
    """
    if source.wheelhouse is not None:
        return _pack(pick_wheels(source.image, source.wheelhouse, scratch, show), scratch / "packages.tar.gz", show)
    key = f"{source.image.arch}-{source.image.python}-{source.parts['torch']}-{source.parts['packages']}"
    packed, note = cache / f"packages-{key}.tar.gz", cache / f"packages-{key}.json"
    known = _known_layer(packed, note)
    if known is not None:
        return known
    cache.mkdir(parents=True, exist_ok=True)
    wheels = fill_wheelhouse(source.image, cache / f"wheels-{key}", show)
    # Two builds at once each pack their own file: the bytes are the same, so it does not matter whose stays.
    with tempfile.TemporaryDirectory(prefix=".packing-", dir=cache) as folder:
        layer = _pack(wheels, Path(folder) / "layer.tar.gz", show)
        described = Path(folder) / "layer.json"
        described.write_text(json.dumps({"digest": layer.digest, "diff_id": layer.diff_id, "size_bytes": layer.size_bytes}), "utf-8")
        layer.path.replace(packed)
        described.replace(note)
    return dataclasses.replace(layer, path=packed)


def _known_layer(packed: Path, note: Path) -> Layer | None:
    """The layer of an earlier build; None where there is none, or where it was cut short."""
    if not packed.is_file() or not note.is_file():
        return None
    try:
        known = json.loads(note.read_text("utf-8"))
        layer = Layer(packed, str(known["digest"]), str(known["diff_id"]), int(known["size_bytes"]))
    except (ValueError, TypeError, KeyError):
        return None
    return layer if packed.stat().st_size == layer.size_bytes else None


def _pack(wheels: list[Path], to: Path, show: Show) -> Layer:
    show(_("packing {count} wheels").format(count=len(wheels)))
    return write_layer(wheel_entries(wheels, PACKAGES), to)


def _code_entries(source: BuildInput) -> Iterator[Entry]:
    with tempfile.TemporaryDirectory(prefix="nanochat-npu-") as scratch:
        wheel = Path(scratch) / source.image.wheel
        wheel.write_bytes(source.files[source.image.wheel])
        yield from wheel_entries([wheel], CODE)
    yield Entry(f"opt/nanochat/{ENTRYPOINT}", source.files[ENTRYPOINT], executable=True)


def _copy_base(base: Base, target: Target, scratch: Path, show: Show) -> None:
    """See to it that the target has the base's layers: mounted from a neighbour repository, or copied one by one."""
    for entry in base.manifest.parsed()["layers"]:
        digest = entry["digest"]
        same_registry = isinstance(target, Registry) and target.reference.registry == base.registry.reference.registry
        if target.has_blob(digest) or (same_registry and target.mount(digest, base.registry.reference.repository)):
            continue
        show(_("copying base layer {digest}: {size} bytes").format(digest=digest[:19], size=entry.get("size", 0)))
        _copy_blob(base.registry, digest, target, scratch / "blob")


def _copy_blob(registry: Registry, digest: str, target: Target, path: Path) -> None:
    import hashlib

    seen = hashlib.sha256()
    try:
        with path.open("wb") as file:
            for chunk in registry.blob_chunks(digest):
                seen.update(chunk)
                file.write(chunk)
    except OSError as error:
        raise ImageError(_("a base layer cannot be stored: {reason}").format(reason=error.strerror), where=str(path)) from error
    if f"sha256:{seen.hexdigest()}" != digest:
        raise ImageError(_("a base layer arrived damaged"), where=digest)
    target.upload(digest, path)
    path.unlink()


def _config(base: Base, source: BuildInput, layers: tuple[Layer, ...]) -> dict[str, Any]:
    config = json.loads(json.dumps(base.config))
    inner = config.setdefault("config", {})
    environment = dict(entry.split("=", 1) for entry in inner.get("Env") or [])
    paths = [f"/{CODE}", f"/{PACKAGES}", environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = ":".join(path for path in paths if path)
    inner["Env"] = [f"{name}={value}" for name, value in environment.items()]
    inner["Entrypoint"], inner["Cmd"], inner["User"], inner["WorkingDir"] = [f"/opt/nanochat/{ENTRYPOINT}"], ["launch"], str(source.image.user), "/"
    inner["Labels"] = {**(inner.get("Labels") or {}), **source.image.labels, **source.labels}
    config["rootfs"] = {"type": "layers", "diff_ids": [*config["rootfs"]["diff_ids"], *(layer.diff_id for layer in layers)]}
    # A fixed time: the same input gives the same digest.
    made = [{"created": "1970-01-01T00:00:00Z", "created_by": f"nanochat-npu layers: {what}"} for what in ("packages", "code")]
    config["history"], config["created"] = [*(config.get("history") or []), *made], "1970-01-01T00:00:00Z"
    return config  # type: ignore[no-any-return]


def _manifest(base: Base, config: bytes, layers: tuple[Layer, ...]) -> Manifest:
    manifest = base.manifest.parsed()
    kind = base.manifest.media_type
    manifest["config"] = {**manifest["config"], "digest": sha256_of(config), "size": len(config)}
    manifest["layers"] = [*manifest["layers"], *({"mediaType": _LAYER_TYPE[kind], "digest": layer.digest, "size": layer.size_bytes} for layer in layers)]
    return Manifest(json.dumps(manifest, separators=(",", ":")).encode(), kind)
