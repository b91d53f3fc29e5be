"""A folder of wheels for the image's architecture and Python, filled by pip: for sites without a network, and for `layers`."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _
from nanochat_npu.image.describe import ImagePlan, requirements_lock

__all__ = ["fill_wheelhouse", "pip_platforms"]

_MACHINE = {"arm64": "aarch64", "amd64": "x86_64"}
_MANYLINUX = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux_2_5", "manylinux1")
"""Newest first; Ubuntu 22.04 has glibc 2.35, openEuler 24.03 has 2.38."""


def pip_platforms(arch: str) -> list[str]:
    """Platform tags of wheels that run in the image."""
    return [f"{tag}_{_MACHINE[arch]}" for tag in _MANYLINUX]


def fill_wheelhouse(image: ImagePlan, folder: Path, show: Callable[[str], None]) -> list[Path]:
    """Download every wheel that the image installs, for its architecture, whatever this computer is; gives back the wheels.

    Wheels that are there already are kept. A folder gets all wheels or stays as it was.

    Raises:
        ImageError: pip is missing, or a wheel cannot be found or does not have its hash.
    """
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
        raise ImageError(_("pip is missing from this Python"), where=sys.executable, hint=_("python -m ensurepip"))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".wheels-", dir=folder) as scratch:
        lock = Path(scratch) / "requirements.lock"
        lock.write_text(requirements_lock(), "utf-8")
        fresh = Path(scratch) / "wheels"
        index = list(image.pip_options)
        _download(image, fresh, folder, [*index, "--require-hashes", "-r", str(lock)], show)
        for requirement in image.torch_requirements:
            from_torch_index = image.torch_index and requirement.startswith("torch==")
            _download(image, fresh, folder, [*(["--index-url", image.torch_index] if from_torch_index else index), requirement], show)
        for wheel in fresh.glob("*.whl"):
            shutil.move(wheel, folder / wheel.name)
    return sorted(folder.glob("*.whl"))


def _download(image: ImagePlan, fresh: Path, have: Path, what: list[str], show: Callable[[str], None]) -> None:
    target = [word for tag in pip_platforms(image.arch) for word in ("--platform", tag)]
    command = [
        sys.executable, "-m", "pip", "download", "--only-binary", ":all:", "--no-deps", "--python-version", image.python, "--implementation", "cp",
        *target, "--dest", str(fresh), "--find-links", str(have), "--progress-bar", "off", *what,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        lines = []
        for line in process.stdout or ():
            lines.append(line.rstrip())
            show(line.rstrip())
    if process.returncode != 0:
        said = "\n".join("  | " + line for line in lines[-12:] if line)
        raise ImageError(_("pip cannot download the wheels:\n{lines}").format(lines=said), hint=_("check the network, image.mirrors.pip and the proxy"))
