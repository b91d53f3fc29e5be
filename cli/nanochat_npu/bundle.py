"""The bundle: the exact files of one submission, and how they are written to a folder or shown as one text."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nanochat_npu.errors import RenderError
from nanochat_npu.i18n import _

__all__ = ["CONFIGMAPS", "DOCKERFILE", "ENTRYPOINT", "JOB", "RUN_JSON", "Bundle", "write"]

DOCKERFILE = "Dockerfile"
ENTRYPOINT = "entrypoint.sh"
RUN_JSON = "run.json"
CONFIGMAPS = "configmaps.yaml"
JOB = "volcano-job.yaml"

_EXECUTABLE = frozenset({ENTRYPOINT})


@dataclass(frozen=True)
class Bundle:
    """Files by relative path, in the order in which a person would read them.

    Attributes:
        files: Exact text of each file; the same plan gives the same bytes on any machine.
        submission_id: Hash of the resolved spec and the image.
    """

    files: Mapping[str, str]
    submission_id: str

    def text(self) -> str:
        """All files in one text. Only comments are added, so the Kubernetes objects in it are still YAML documents."""
        parts = [f"---\n# file: {path}\n{content if content.endswith(chr(10)) else content + chr(10)}" for path, content in self.files.items()]
        return "".join(parts)


def write(bundle: Bundle, folder: Path) -> list[Path]:
    """Write the files below a folder and return their paths; each file appears whole or not at all.

    Files of other names in the folder stay. A file that already has the same bytes is not touched, so build tools see
    no change.

    Raises:
        RenderError: The folder cannot be made or written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for relative, content in bundle.files.items():
            target = folder / PurePosixPath(relative)
            target.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(target, content.encode(), 0o755 if target.name in _EXECUTABLE else 0o644)
            written.append(target)
    except OSError as error:
        raise RenderError(
            _("cannot write: {reason}").format(reason=error.strerror or error), where=str(error.filename or folder), hint=_("choose another folder with --to")
        ) from error
    return written


def _write_whole(target: Path, content: bytes, mode: int) -> None:
    if target.is_file() and target.read_bytes() == content:
        target.chmod(mode)
        return
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.chmod(mode)
        temporary.replace(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
