"""A folder of wheels for the image's architecture and Python, filled by pip: for sites without a network, and for `layers`."""

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _
from nanochat_npu.image.describe import ImagePlan, requirements_lock

__all__ = ["fill_wheelhouse", "pick_wheels", "pip_platforms"]

_MACHINE = {"arm64": "aarch64", "amd64": "x86_64"}
_MANYLINUX = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux_2_5", "manylinux1")
"""Newest first; Ubuntu 22.04 has glibc 2.35, openEuler 24.03 has 2.38."""


def pip_platforms(arch: str) -> list[str]:
    """Platform tags of wheels that run in the image."""
    return [f"{tag}_{_MACHINE[arch]}" for tag in _MANYLINUX]


def fill_wheelhouse(image: ImagePlan, folder: Path, show: Callable[[str], None]) -> list[Path]:
    """Download every wheel that the image installs, for its architecture, whatever this computer is; gives back the wheels.

    Wheels that are there already are kept and not fetched again. A folder gets all wheels or stays as it was; what pip fetched before it
    failed is in pip's own cache, so another try goes on from there.

    Raises:
        ImageError: pip is missing, a wheel cannot be found or does not have its hash, or the folder cannot be written.
    """
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(prefix=".wheels-", dir=folder) as scratch:
                for wheel in _collect(image, Path(scratch), folder, show, _("check the network, image.mirrors.pip and the proxy; run it again, what arrived is kept")):
                    wheel.replace(folder / wheel.name)
        except BaseException:  # Ctrl-C, too
            if is_new:
                with contextlib.suppress(OSError):  # another build may have begun to fill it
                    folder.rmdir()
            raise
        return sorted(folder.glob("*.whl"))
    except OSError as error:
        raise ImageError(_("cannot be written: {reason}").format(reason=error.strerror or error), where=str(error.filename or folder)) from error


def pick_wheels(image: ImagePlan, wheelhouse: Path, scratch: Path, show: Callable[[str], None]) -> list[Path]:
    """The wheels of a wheelhouse that the image installs, each with its hash checked; others may lie beside them. Asks no network.

    Raises:
        ImageError: The folder is not there, or a wheel is missing or damaged.
    """
    if not wheelhouse.is_dir():
        raise ImageError(_("there is no such folder of wheels"), where=str(wheelhouse), hint=_("fill it: nanochat-npu image wheelhouse SPEC --to PATH"))
    offline = replace(image, pip_options=("--no-index",), torch_index="")
    return _collect(offline, scratch, wheelhouse, show, _("fill it: nanochat-npu image wheelhouse SPEC --to PATH"))


def _collect(image: ImagePlan, scratch: Path, have: Path, show: Callable[[str], None], hint: str) -> list[Path]:
    """All wheels of the image in a folder below scratch; those in `have` are copied from there."""
    if importlib.util.find_spec("pip") is None:
        raise ImageError(_("pip is missing from this Python"), where=sys.executable, hint=_("python -m ensurepip"))
    lock, fresh = scratch / "requirements.lock", scratch / "wheels"
    lock.write_text(requirements_lock(), "utf-8")
    index = list(image.pip_options)
    _download(image, fresh, have, [*index, "--require-hashes", "-r", str(lock)], show, hint)
    own_index = [word for word in image.torch_requirements if image.torch_index and word.startswith("torch==")]
    if own_index:
        _download(image, fresh, have, ["--index-url", image.torch_index, *own_index], show, hint)
    rest = [word for word in image.torch_requirements if word not in own_index]
    if rest:
        _download(image, fresh, have, [*index, *rest], show, hint)
    return sorted(fresh.glob("*.whl"))


def _download(image: ImagePlan, fresh: Path, have: Path, what: list[str], show: Callable[[str], None], hint: str) -> None:
    target = [word for tag in pip_platforms(image.arch) for word in ("--platform", tag)]
    command = [
        sys.executable, "-m", "pip", "download", "--only-binary", ":all:", "--no-deps", "--python-version", image.python, "--implementation", "cp",
        *target, "--dest", str(fresh), "--find-links", str(have), "--progress-bar", "off", "--disable-pip-version-check", *what,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        lines = []
        for line in process.stdout or ():
            lines.append(line.rstrip())
            show(line.rstrip())
    if process.returncode != 0:
        said = "\n".join("  | " + line for line in lines[-12:] if line)
        raise ImageError(_("pip cannot download the wheels:\n{lines}").format(lines=said), where=str(have), hint=hint)
