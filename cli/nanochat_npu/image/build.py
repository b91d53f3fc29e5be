"""``build``: make the image of a spec, unless the registry has it already; say beforehand what would be made again."""

import contextlib
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _
from nanochat_npu.image.builders import Builder, find_builder, host_architecture, run_builder
from nanochat_npu.image.context import BuildInput, write_context
from nanochat_npu.image.describe import builds_image, describe_image, image_reference
from nanochat_npu.image.layers import build_layers
from nanochat_npu.image.oci_layout import OciLayout
from nanochat_npu.image.reference import Reference, parse_reference
from nanochat_npu.image.registry import Registry
from nanochat_npu.image.sbom import bill_of_materials
from nanochat_npu.plan import Plan
from nanochat_npu.render import render_dockerfile

__all__ = ["LAYERS", "Built", "Outlook", "build", "hand_off", "outlook", "pinned_image", "resolve_image", "state_folder"]

LAYERS = "layers"
Show = Callable[[str], None]


@dataclass(frozen=True)
class Built:
    """What a build came to."""

    reference: str
    digest: str
    outcome: Literal["built", "present", "written"]
    builder: str
    sbom: Path | None = None


@dataclass(frozen=True)
class Outlook:
    """What a build would do: which layers would be made again, why, and what would have to be sent."""

    reference: str
    present: bool
    changed: tuple[str, ...]
    reason: str
    context_bytes: int
    push_bytes: int | None
    """Known for what we pack ourselves; None where a builder makes the layer."""


def state_folder(environ: dict[str, str] | None = None) -> Path:
    """Where notes about builds are kept: beside the jobs."""
    env = dict(os.environ) if environ is None else environ
    home = env.get("NANOCHAT_NPU_HOME") or f"{env.get('XDG_STATE_HOME') or env.get('HOME', '') + '/.local/state'}/nanochat-npu"
    return Path(home) / "images"


def _registry(source: BuildInput) -> Registry:
    return Registry(source.reference, plain_http=source.plain_http)


_TIMES_WHEEL = 4
"""What a builder's layers of our code weigh, in wheels: the wheel itself, the installed files and their bytecode (measured: 3.98)."""


def outlook(source: BuildInput, builder: str | None = None) -> Outlook:
    """What a build would do now; asks the registry, changes nothing."""
    present = source.has_registry and _registry(source).head(source.reference.tag) is not None
    last = _last_build(source.reference)
    names = list(source.parts)
    first = next((place for place, name in enumerate(names) if last.get("parts", {}).get(name) != source.parts[name]), None)
    changed: tuple[str, ...] = ()
    if present:
        reason = _("the registry has this image")
    elif not last:
        changed, reason = tuple(name for name in names if name != "steps"), _("nothing was built from here before")
    elif first is None or names[first] == "steps":
        changed, reason = ("code",), _("the image is gone from the registry, or its last steps changed")
    else:
        changed, reason = tuple(name for name in names[first:] if name != "steps"), _("{part} changed").format(part=names[first])
    code_only = set(changed) <= {"code"}
    code_bytes = len(source.files[source.image.wheel]) * (1 if builder == LAYERS else _TIMES_WHEEL)
    size = code_bytes if code_only and changed else 0 if not changed else None
    return Outlook(str(source.reference), present, changed, reason, source.context_bytes, size)


def _note(reference: Reference) -> Path:
    return state_folder() / (reference.name.replace("/", "_").replace(":", "_") + ".json")


def _last_build(reference: Reference) -> dict[str, Any]:
    try:
        found = json.loads(_note(reference).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def build(source: BuildInput, show: Show, *, builder: str | None = None, oci: Path | None = None, force: bool = False, plain_http_base: bool = False) -> Built:
    """Make the image and push it, or write it as an OCI layout.

    Args:
        source: What it is made of.
        show: Gets progress lines.
        builder: docker, buildah, podman, nerdctl or layers; default: the first that is installed.
        oci: Folder for an OCI layout, instead of a push.
        force: Build even if the registry has this tag.
        plain_http_base: For `layers`: the base image's registry has no TLS.

    Raises:
        ImageError: A step failed; the tag in the registry is what it was before.
    """
    if oci is None and not source.has_registry:
        raise ImageError(_("where does the image go?"), where="image.registry", hint=_("set image.registry: registry.example.com/project, or use --oci PATH"))
    if oci is None and not force and (present := _present(source)):
        # Noted as well: somebody else may have built it, and the job is to name it by digest from here, too.
        return Built(str(source.reference), present, "present", "", _remember(source, present))
    with _whole_or_not(oci) if oci else contextlib.nullcontext() as target:
        if builder == LAYERS:
            to = _registry(source) if target is None else OciLayout(target)
            digest = build_layers(source, to, _cache_folder(), show, plain_http_base=plain_http_base)
        else:
            builder, digest = _with_builder(find_builder(builder, show), source, show, target)
    if oci is None and not digest:
        digest = _registry(source).head(source.reference.tag) or ""
    return Built(str(source.reference), digest, "written" if oci else "built", builder or "", _remember(source, digest))


def _present(source: BuildInput) -> str:
    """Digest of the image in the registry, or ""; a tag that holds something else is nobody's to overwrite."""
    registry = _registry(source)
    digest = registry.head(source.reference.tag)
    if digest is None:
        return ""
    labels = image_labels(registry, digest)
    found, wanted = labels.get("nanochat-npu/content"), source.labels["nanochat-npu/content"]
    if found != wanted:
        raise ImageError(
            _("this tag exists with other content ({found}, not {wanted})").format(found=found or _("not made by nanochat-npu"), wanted=wanted),
            where=str(source.reference), hint=_("leave image.tag out, choose another, or overwrite it with --force"),
        )
    return digest


def image_labels(registry: Registry, digest: str) -> dict[str, str]:
    """Labels of an image in a registry; empty for an index or where there are none."""
    manifest = registry.manifest(digest)
    config = (manifest.parsed().get("config") or {}).get("digest") if manifest else None
    if not config:
        return {}
    found = json.loads(registry.blob(config)).get("config") or {}
    return dict(found.get("Labels") or {})


def _cache_folder() -> Path:
    """Where wheels and layers are kept between builds."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nanochat-npu"


def _with_builder(chosen: Builder, source: BuildInput, show: Show, target: Path | None) -> tuple[str, str]:
    """Build with a program; gives back its name and the digest, or "" where it does not say it."""
    if source.image.arch != host_architecture():
        show(_("this computer is {host}, the image {arch}: {name} needs emulation for that; --builder layers does not").format(
            host=host_architecture(), arch=source.image.arch, name=chosen.name))
    with tempfile.TemporaryDirectory(prefix="nanochat-npu-image-") as scratch:
        write_context(source, Path(scratch))
        return chosen.name, run_builder(chosen, source, Path(scratch), show, push=target is None, oci=target)


@contextlib.contextmanager
def _whole_or_not(wanted: Path) -> Iterator[Path]:
    """A folder beside the wanted one, which takes its place when all is done, and is removed when something fails.

    Raises:
        ImageError: The wanted one has something in it, or cannot be made.
    """
    if wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
        raise ImageError(_("is not an empty folder"), where=str(wanted), hint=_("choose another path"))
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        target = Path(tempfile.mkdtemp(prefix=f".{wanted.name}.", dir=wanted.parent))
    except OSError as error:
        raise ImageError(_("cannot be written: {reason}").format(reason=error.strerror), where=str(wanted.parent)) from error
    try:
        yield target
        target.chmod(0o755)
        if wanted.is_dir():
            wanted.rmdir()
        target.rename(wanted)
    except OSError as error:
        raise ImageError(_("cannot be written: {reason}").format(reason=error.strerror or error), where=str(error.filename or wanted)) from error
    finally:
        shutil.rmtree(target, ignore_errors=True)  # nothing is there any more where all went well


def _remember(source: BuildInput, digest: str) -> Path | None:
    """Note what was built, for the next outlook, with its bill of materials; None where the state folder cannot be written."""
    folder = state_folder()
    name = _note(source.reference).stem
    sbom = folder / f"{name}-{source.reference.tag}.cdx.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(sbom, bill_of_materials(source))
        _write(_note(source.reference), json.dumps({"reference": str(source.reference), "digest": digest, "parts": dict(source.parts)}, indent=2))
    except OSError:
        return None
    return sbom


def _write(path: Path, text: str) -> None:
    """Whole, or not at all: another build may read it at any time, or write its own."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(text)
            file.close()
            Path(file.name).replace(path)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise


def hand_off(source: BuildInput, folder: Path) -> list[Path]:
    """Write a self-contained folder with which somebody else can build and push the image; gives back its files.

    Raises:
        ImageError: The folder has something in it, or cannot be written.
    """
    with _whole_or_not(folder) as target:
        write_context(source, target)
        (target / "build.sh").write_text(_hand_off_script(source), "utf-8")
        (target / "build.sh").chmod(0o755)
        (target / "sbom.cdx.json").write_text(bill_of_materials(source), "utf-8")
        (target / ".dockerignore").write_text("build.sh\nsbom.cdx.json\nREADME.md\n", "utf-8")
        (target / "README.md").write_text(
            f"# {source.reference}\n\nRun `./build.sh` (or `REGISTRY=registry.example.com/project ./build.sh`) where there is a builder, a login and a way to the base image\n"
            f"{source.image.base}. The tag follows from the content: do not change it, or the job will not find the image.\n", "utf-8",
        )
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _hand_off_script(source: BuildInput) -> str:
    reference = source.reference
    labels = " ".join(f"--label {shlex.quote(f'{key}={value}')}" for key, value in sorted(source.labels.items()))
    insecure = (
        'insecure=()\ncase $builder in  # the registry has no TLS (image.plain_http)\n    *buildah|*podman) insecure=(--tls-verify=false) ;;\n'
        "    *nerdctl) insecure=(--insecure-registry) ;;\nesac\n"
    ) if source.plain_http else "insecure=()\n"
    return (
        "#!/usr/bin/env bash\n# Builds and pushes the image of a nanochat-npu spec. Any of docker, podman, nerdctl, buildah will do: BUILDER=podman ./build.sh\n"
        f'set -eo pipefail\ncd "$(dirname "$0")"\nbuilder=${{BUILDER:-docker}}\nimage=${{REGISTRY:-{reference.registry}}}/{reference.repository}:{reference.tag}\n'
        f"{insecure}export DOCKER_BUILDKIT=1 BUILDAH_LAYERS=true  # what Dockerfile needs of an old docker; cached layers\n"
        f'build_insecure=()\ncase $builder in *buildah|*podman) build_insecure=("${{insecure[@]}}") ;; esac\n'
        f'"$builder" build "${{build_insecure[@]}}" --platform {source.image.platform} {labels} -t "$image" .\n"$builder" push "${{insecure[@]}}" "$image"\n'
    )


def resolve_image(plan: Plan, reference: str) -> str:
    """The reference by digest, which is what a job should name: nobody can move it, and it is part of the submission's identity.

    Args:
        plan: For ``image.plain_http``.
        reference: By tag or digest; by digest it comes back as it is.

    Raises:
        ImageError: The registry does not have it.
    """
    parsed = parse_reference(reference)
    if parsed.digest:
        return parsed.at(parsed.digest)
    digest = Registry(parsed, plain_http=plan.spec.image.plain_http).head(parsed.version)
    if digest is None:
        hint = _("build it: nanochat-npu build SPEC") if not plan.spec.image.ref else _("check image.ref")
        raise ImageError(_("the registry does not have this image"), where=reference, hint=hint)
    return parsed.at(digest)




def pinned_image(plan: Plan) -> str | None:
    """The plan's image by digest where it was built from here, so that nobody can move it under a job; None keeps the tag.

    Reads the note that `build` left; asks no registry, so that looking at a submission needs no network.
    """
    image = plan.spec.image
    if not builds_image(plan) or not image.registry:
        return None
    reference = parse_reference(image_reference(plan, render_dockerfile(describe_image(plan))))
    last = _last_build(reference)
    return reference.at(last["digest"]) if last.get("reference") == str(reference) and last.get("digest") else None
