"""What the image of a spec consists of: base, versions, packages, labels. Pure; the Dockerfile and all builders read this.

Sources: Ascend/cann-container-image c5a67b3a (tags, contents), Ascend/pytorch 9e73e708 (CPU build of exactly one torch;
Python packages that CANN needs), vllm-project/vllm-ascend#9490 (user 1000 needs a passwd entry).
"""

import hashlib
from dataclasses import dataclass

from nanochat_npu import __version__
from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _
from nanochat_npu.plan import Plan
from nanochat_npu.spec import NpuType

__all__ = ["ImagePlan", "describe_image", "image_reference"]

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
    job: str
    base: str
    cann: str
    torch: str
    torch_npu: str
    python: str
    os: str
    arch: str
    user: int
    torch_requirements: tuple[str, str]
    system_packages: tuple[str, ...]
    apt: bool
    apt_mirror: str
    torch_index: str
    pip_options: tuple[str, ...]
    wheelhouse: str
    wheel: str
    check_arguments: tuple[str, ...]
    labels: dict[str, str]

    @property
    def platform(self) -> str:
        """The platform as builders and registries call it."""
        return f"linux/{self.arch}"


def wheel_name() -> str:
    """File name of our own wheel of this version."""
    return f"nanochat_npu-{__version__}-py3-none-any.whl"


def describe_image(plan: Plan) -> ImagePlan:
    """The image that a spec describes.

    Raises:
        ImageError: The description cannot become an image.
    """
    image = plan.spec.image
    torch = image.torch_npu.split(".post")[0].split("rc")[0]
    index = image.mirrors.pip_torch or ""
    if image.arch == "amd64" and not index and not image.wheelhouse:
        raise ImageError(
            _("for x86 the package index has CUDA builds of torch only, beside which torch_npu refuses to load"), where="image.mirrors.pip_torch",
            hint=_("name an index of CPU wheels (PyTorch's installation page has one), or image.wheelhouse"),
        )
    return ImagePlan(
        version=__version__, job=plan.name, base=image.base or _official_base(plan), cann=image.cann, torch=torch, torch_npu=image.torch_npu,
        python=image.python, os=image.os, arch=image.arch, user=plan.spec.security.run_as_user,
        torch_requirements=(f"torch=={torch}", f"torch_npu=={image.torch_npu}"),
        system_packages=() if image.wheelhouse else SYSTEM_PACKAGES[image.os], apt=image.os.startswith("ubuntu"), apt_mirror=image.mirrors.apt or "",
        torch_index=index, pip_options=("--index-url", image.mirrors.pip) if image.mirrors.pip else (),
        wheelhouse=image.wheelhouse or "", wheel=wheel_name(), check_arguments=(torch, image.torch_npu, image.python), labels=_labels(plan, torch),
    )


def _official_base(plan: Plan) -> str:
    image = plan.spec.image
    chip = "a3" if plan.spec.resources.npu is NpuType.A910C else "910b"
    return f"{(image.mirrors.registry or CANN_REGISTRY).rstrip('/')}/cann:{image.cann.lower()}-{chip}-{image.os}-py{image.python}"


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


def image_reference(plan: Plan, dockerfile: str) -> str:
    """Reference by which the job names its image: the spec's own, or registry, repository and a tag that follows from the content."""
    image = plan.spec.image
    if image.ref:
        return image.ref
    tag = image.tag or f"{__version__}-{hashlib.sha256(dockerfile.encode()).hexdigest()[:12]}"
    return f"{image.registry.rstrip('/')}/{image.repository}:{tag}" if image.registry else f"{image.repository}:{tag}"
