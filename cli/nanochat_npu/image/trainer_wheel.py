"""The trainer as a wheel, made from the files of this installation: the same bytes from a checkout and from site-packages.

Only package ``nanochat`` goes in: a change of the command line changes no image. Its dependencies are in requirements.lock,
so the metadata names none.
"""

import base64
import hashlib
import io
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nanochat
from nanochat_npu import __version__
from nanochat_npu.errors import ImageError
from nanochat_npu.i18n import _

__all__ = ["TrainerWheel", "content_sha256", "trainer_wheel", "wheel_name"]

DISTRIBUTION = "nanochat_npu_trainer"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The oldest time a zip can hold; a real one would make every build another file."""


@dataclass(frozen=True)
class TrainerWheel:
    """A wheel in memory."""

    name: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Hash of the file."""
        return hashlib.sha256(self.content).hexdigest()


def wheel_name() -> str:
    """File name of the wheel of this version."""
    return f"{DISTRIBUTION}-{__version__}-py3-none-any.whl"


@cache
def trainer_wheel() -> TrainerWheel:
    """The wheel of the trainer that is installed here.

    Raises:
        ImageError: The package's files cannot be read.
    """
    folder = Path(nanochat.__path__[0])
    try:
        files = {f"nanochat/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in sorted(folder.rglob("*")) if _belongs(path)}
    except OSError as error:
        raise ImageError(_("the trainer's files cannot be read: {reason}").format(reason=error.strerror), where=str(error.filename)) from error
    info = f"{DISTRIBUTION}-{__version__}.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {DISTRIBUTION.replace('_', '-')}\nVersion: {__version__}\nRequires-Python: >=3.11\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: nanochat-npu\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    return TrainerWheel(wheel_name(), _zip(files))


def _belongs(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".orig", ".rej") and not path.name.startswith(".")


def _record(files: dict[str, bytes], own: str) -> bytes:
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}")
    return "\n".join([*lines, f"{own},,", ""]).encode()


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o100644 << 16
            entry.create_system = 3  # Unix, whatever this runs on
            # Level 9 of the same zlib gives the same bytes; another zlib may not, so the tag hashes the files, not the zip.
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()


@cache
def content_sha256() -> str:
    """Hash over the wheel's files: the same wherever the same trainer is installed, whatever zlib packs it."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(trainer_wheel().content)) as archive:
        digest.update(archive.read(f"{DISTRIBUTION}-{__version__}.dist-info/RECORD"))
    return digest.hexdigest()
