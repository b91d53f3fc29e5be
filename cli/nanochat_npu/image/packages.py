"""The trainer's Python packages as a plain folder: on a volume they serve any image that has torch_npu, and nobody builds one."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _
from nanochat_npu.image.describe import ImagePlan
from nanochat_npu.image.tarlayer import wheel_entries
from nanochat_npu.image.wheelhouse import fill_wheelhouse

__all__ = ["unpack_packages"]


def unpack_packages(image: ImagePlan, folder: Path, show: Callable[[str], None]) -> int:
    """Fill a new folder with the packages, without torch and torch_npu, for the image's architecture; gives back the number of files.

    Raises:
        ImageError: The folder exists, or the wheels cannot be had.
    """
    if folder.exists():
        raise ImageError(_("exists already"), where=str(folder), hint=_("choose another path for --to"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            wheels = fill_wheelhouse(replace(image, torch_requirements=()), Path(scratch) / "wheels", show)
            target, count = Path(scratch) / "packages", 0
            for entry in wheel_entries(wheels, "."):
                path = target / entry.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(entry.content)
                path.chmod(0o755 if entry.executable else 0o644)
                count += 1
            target.rename(folder)
    except OSError as error:
        raise ImageError(_("cannot be written: {reason}").format(reason=error.strerror), where=str(error.filename or folder)) from error
    return count
