"""What the image of a spec consists of: base, versions, packages, labels. Pure; the Dockerfile and all builders read this.

Sources: Ascend/cann-container-image c5a67b3a (tags, contents), Ascend/pytorch 9e73e708 (CPU build of exactly one torch;
Python packages that CANN needs), vllm-project/vllm-ascend#9490 (user 1000 needs a passwd entry).
"""

import hashlib
import urllib.parse
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nanochat_npu import __version__
from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _
from nanochat_npu.image.matrix import ImageSet, check, nearest
from nanochat_npu.image.trainer_wheel import content_sha256, wheel_name
from nanochat_npu.plan import Plan
from nanochat_npu.quoting import TEMPLATES
from nanochat_npu.spec import NpuType

__all__ = ["ImagePlan", "builds_image", "check_versions", "content_tag", "describe_image", "image_reference", "requirements_lock"]

CANN_REGISTRY = "quay.io/ascend"
"""Where Huawei publishes CANN images (Ascend/cann-container-image); ``image.mirrors.registry`` replaces it."""
SYSTEM_PACKAGES = {
    "ubuntu22.04": ("ca-certificates", "libgomp1", "libnuma1", "numactl", "procps"),
    "openeuler24.03": ("ca-certificates", "libgomp", "numactl", "numactl-libs", "procps-ng", "shadow"),
}
"""What torch and CANN load (OpenMP, NUMA), and tools to look at a running worker."""


@dataclass(frozen=True)
class ImagePlan:
    """One image, completely described; optional parts are empty, never None."""

    version: str
    base: str
    cann: str
    torch: str
    torch_npu: str
    python: str
    os: str
    arch: str
    user: int
    torch_requirements: tuple[str, ...]
    """torch and torch_npu; empty where the base image brings them."""
    system_packages: tuple[str, ...]
    apt: bool
    apt_mirror: str
    torch_index: str
    pip_options: tuple[str, ...]
    wheelhouse: str
    wheel: str
    check_arguments: tuple[str, ...]
    labels: dict[str, str]
    warnings: tuple[str, ...] = ()

    @property
    def platform(self) -> str:
        """The platform as builders and registries call it."""
        return f"linux/{self.arch}"


def describe_image(plan: Plan) -> ImagePlan:
    """The image that a spec describes.

    Raises:
        ImageError: The description cannot become an image.
    """
    image = plan.spec.image
    warnings = check_versions(plan)
    _refuse_passwords(plan)
    torch = image.torch_npu.split(".post")[0].split("rc")[0]
    index = image.mirrors.pip_torch or ""
    if image.arch == "amd64" and not index and not image.wheelhouse and not image.base_has_torch:
        raise ImageError(
            _("for x86 the package index has CUDA builds of torch only, beside which torch_npu refuses to load"), where="image.mirrors.pip_torch",
            hint=_("name an index of CPU wheels (PyTorch's installation page has one), or image.wheelhouse"),
        )
    return ImagePlan(
        version=__version__, base=image.base or _official_base(plan), cann=image.cann, torch=torch, torch_npu=image.torch_npu,
        python=image.python, os=image.os, arch=image.arch, user=plan.spec.security.run_as_user,
        torch_requirements=() if image.base_has_torch else (f"torch=={torch}", f"torch_npu=={image.torch_npu}"),
        system_packages=() if image.wheelhouse else SYSTEM_PACKAGES[image.os], apt=image.os.startswith("ubuntu"), apt_mirror=image.mirrors.apt or "",
        torch_index=index, pip_options=("--index-url", image.mirrors.pip) if image.mirrors.pip else (),
        wheelhouse=image.wheelhouse or "", wheel=wheel_name(), check_arguments=(torch, image.torch_npu, image.python), labels=_labels(plan, torch),
        warnings=warnings,
    )


def check_versions(plan: Plan) -> tuple[str, ...]:
    """Warnings about the versions of a spec's image.

    Raises:
        ImageError: They cannot work together; the nearest sets that do are in the hint.
    """
    image = plan.spec.image
    wanted = ImageSet(image.torch_npu, image.cann, image.python, _chip(plan), image.arch)
    known = [ImageSet(entry.torch_npu, entry.cann, entry.python) for entry in image.known_sets]
    findings = check(wanted, known, own_base=image.base is not None)
    refused = [finding for finding in findings if finding.level == "refuse"]
    if refused:
        raise ImageError(
            "; ".join(finding.message for finding in refused), where=f"image.{refused[0].field}",
            hint=_("sets that work: {sets}; see nanochat-npu image matrix").format(sets=" | ".join(map(str, nearest(wanted)))),
            details={"nearest": [{"torch_npu": entry.torch_npu, "cann": entry.cann, "python": entry.python} for entry in nearest(wanted)]},
        )
    return tuple(finding.message for finding in findings)


def _refuse_passwords(plan: Plan) -> None:
    """An index URL becomes part of the image's history, which everybody who can pull it can read."""
    mirrors = plan.spec.image.mirrors
    for name in ("pip", "pip_torch", "apt"):
        if "@" in urllib.parse.urlsplit(getattr(mirrors, name) or "").netloc:
            raise ImageError(
                _("a password in this address would stay readable in the image"), where=f"image.mirrors.{name}",
                hint=_("use an index without a login, or image.wheelhouse"),
            )


def _chip(plan: Plan) -> str:
    return "a3" if plan.spec.resources.npu is NpuType.A910C else "910b"


def _official_base(plan: Plan) -> str:
    image = plan.spec.image
    return f"{(image.mirrors.registry or CANN_REGISTRY).rstrip('/')}/cann:{image.cann.lower()}-{_chip(plan)}-{image.os}-py{image.python}"


def _labels(plan: Plan, torch: str) -> dict[str, str]:
    image = plan.spec.image
    return {
        "org.opencontainers.image.title": "nanochat-npu",
        "org.opencontainers.image.version": __version__,
        "nanochat-npu/cann": image.cann,
        "nanochat-npu/torch": torch,
        "nanochat-npu/torch-npu": image.torch_npu,
        "nanochat-npu/python": image.python,
    }


def builds_image(plan: Plan) -> bool:
    """False where the job runs on an image that somebody else made."""
    return plan.spec.image.ref is None and plan.spec.image.code == "image"


def content_tag(dockerfile: str) -> str:
    """A tag that follows from everything that goes into the image; the same input gives the same tag on any machine.

    The base's digest counts when the Dockerfile names it; a base by tag counts as that tag.
    """
    parts = [dockerfile, requirements_lock(), (TEMPLATES / "check_image.py").read_text("utf-8"), (TEMPLATES / "entrypoint.sh").read_text("utf-8"), content_sha256()]
    digest = hashlib.sha256("\0".join(hashlib.sha256(part.encode()).hexdigest() for part in parts).encode())
    return f"{__version__}-{digest.hexdigest()[:12]}"


@cache
def requirements_lock() -> str:
    """Text of the lock file: every Python package of the image but torch, torch_npu and ours, with hashes."""
    return (Path(__file__).parent / "requirements.lock").read_text("utf-8")


def image_reference(plan: Plan, dockerfile: str) -> str:
    """Reference by which the job names its image: the spec's own, or registry, repository and a tag that follows from the content."""
    image = plan.spec.image
    if image.ref:
        return image.ref
    tag = image.tag or content_tag(dockerfile)
    return f"{image.registry.rstrip('/')}/{image.repository}:{tag}" if image.registry else f"{image.repository}:{tag}"
