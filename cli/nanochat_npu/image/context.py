"""The build context: the few files that an image is made from, and nothing else of anybody's disk."""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nanochat_npu.bundle import DOCKERFILE, ENTRYPOINT
from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _
from nanochat_npu.image.describe import ImagePlan, builds_image, content_tag, describe_image, requirements_lock
from nanochat_npu.image.reference import Reference, parse_reference
from nanochat_npu.image.source import source_commit
from nanochat_npu.image.trainer_wheel import content_sha256, trainer_wheel
from nanochat_npu.plan import Plan
from nanochat_npu.quoting import TEMPLATES
from nanochat_npu.render import render_dockerfile

__all__ = ["CHECK", "LOCK", "BuildInput", "build_input", "write_context"]

LOCK = "requirements.lock"
CHECK = "check_image.py"
WHEELHOUSE = "wheelhouse"
REVISION = "org.opencontainers.image.revision"
"""Label for the source's commit (OCI image-spec, ``annotations.md``)."""
NOWHERE = "localhost"
"""Registry in the name of an image that is not pushed (``--oci``, ``--handoff``): builders want one."""


@dataclass(frozen=True)
class BuildInput:
    """Everything that a builder needs to make one image.

    Attributes:
        image: The image's description.
        reference: Where it goes.
        files: The context by file name, without the wheelhouse.
        parts: Hash of each part, in the order of the layers: what changed tells what is rebuilt.
        labels: Labels that come on top of the Dockerfile's.
        wheelhouse: Folder of wheels, or None.
    """

    image: ImagePlan
    reference: Reference
    files: Mapping[str, bytes]
    parts: Mapping[str, str]
    labels: Mapping[str, str]
    wheelhouse: Path | None = None
    plain_http: bool = False
    proxy: str = ""
    allow_cuda_torch: bool = False

    @property
    def has_registry(self) -> bool:
        """False where the spec names no registry: then the image can be written, but not pushed."""
        return self.reference.registry != NOWHERE

    @property
    def context_bytes(self) -> int:
        """Size of the context without the wheelhouse."""
        return sum(map(len, self.files.values()))


def build_input(plan: Plan, *, allow_cuda_torch: bool = False) -> BuildInput:
    """What a spec's image is built from.

    Args:
        plan: The plan.
        allow_cuda_torch: For tests without an index of CPU builds; shows in the image's labels.

    Raises:
        ImageError: The spec uses a finished image, or cannot become an image.
    """
    image = plan.spec.image
    if not builds_image(plan):
        where = "image.ref" if image.ref else "image.code"
        raise ImageError(_("the spec uses a finished image, there is nothing to build"), where=where, hint=_("remove {field} to build one").format(field=where))
    description = describe_image(plan)
    if allow_cuda_torch:
        description = replace(description, check_arguments=(*description.check_arguments, "--allow-cuda-torch"))
    dockerfile = render_dockerfile(description)
    tag = content_tag(dockerfile)
    wheel = trainer_wheel()
    files = {
        DOCKERFILE: dockerfile.encode(), LOCK: requirements_lock().encode(), CHECK: (TEMPLATES / CHECK).read_bytes(),
        ENTRYPOINT: (TEMPLATES / ENTRYPOINT).read_bytes(), wheel.name: wheel.content,
    }
    # These are put on top when the image is made, and are no part of what the tag hashes: specs that differ in a name or an owner share
    # an image, and it keeps the spec and the commit that it was first made for.
    labels = {
        "nanochat-npu/content": tag, "nanochat-npu/trainer": content_sha256(), "nanochat-npu/spec": plan.spec_sha256, REVISION: source_commit(),
        **({"nanochat-npu/allow-cuda-torch": "true"} if allow_cuda_torch else {}),
    }
    reference = parse_reference(f"{(image.registry or NOWHERE).rstrip('/')}/{image.repository}:{image.tag or tag}")
    return BuildInput(
        description, reference, files, _parts(description, dockerfile, files), labels, Path(image.wheelhouse) if image.wheelhouse else None,
        plain_http=image.plain_http, proxy=image.mirrors.proxy or "", allow_cuda_torch=allow_cuda_torch,
    )


def _parts(image: ImagePlan, dockerfile: str, files: Mapping[str, bytes]) -> dict[str, str]:
    """Hash of what each layer depends on: a change rebuilds its layer and all below it in this list."""
    steps = [step for step in dockerfile.split("\n\n") if not step.startswith("LABEL")]
    entry = files[ENTRYPOINT] + content_sha256().encode()
    values = {
        "base": image.base, "system": " ".join(image.system_packages) + image.apt_mirror, "torch": " ".join(image.torch_requirements) + image.torch_index,
        "packages": files[LOCK].decode(), "code": hashlib.sha256(entry).hexdigest(), "steps": "\n\n".join(steps),
    }
    return {name: hashlib.sha256(value.encode()).hexdigest()[:16] for name, value in values.items()}


def write_context(source: BuildInput, folder: Path) -> None:
    """Fill an empty folder with the context.

    Raises:
        ImageError: The disk is full, or the wheelhouse is not there.
    """
    try:
        for name, content in source.files.items():
            (folder / name).write_bytes(content)
        (folder / ENTRYPOINT).chmod(0o755)
        if source.wheelhouse is not None:
            if not source.wheelhouse.is_dir():
                raise ImageError(_("there is no such folder of wheels"), where=str(source.wheelhouse), hint=_("fill it: nanochat-npu image wheelhouse SPEC --to PATH"))
            (folder / WHEELHOUSE).mkdir()
            for wheel in sorted(source.wheelhouse.glob("*.whl")):
                shutil.copy2(wheel, folder / WHEELHOUSE / wheel.name)
    except OSError as error:
        raise ImageError(_("the build context cannot be written: {reason}").format(reason=error.strerror or error), where=str(error.filename or folder)) from error
