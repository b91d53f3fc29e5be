"""Writing a result to the file that a person named, with an error that says what to do where that cannot be."""

import os
import shlex
import shutil
from contextlib import suppress
from pathlib import Path

from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _

__all__ = ["write_result"]


def write_result(path: Path, text: str, *, where: str | None = "--to") -> None:
    """Write a text as UTF-8. A disk that fills up meanwhile costs nothing of what the file held, and leaves no half of a new one.

    Args:
        path: The file; what it held is replaced.
        text: The content.
        where: Option that named it, for the error.

    Raises:
        UsageError: It is a folder, its folder is missing, or it cannot be written.
    """
    if path.is_dir():
        raise UsageError(_("'{path}' is a folder").format(path=path), where=where, hint=_("name a file: {file}").format(file=path / "NAME"))
    try:
        _write(path, text)
    except FileNotFoundError as error:
        raise UsageError(_("there is no folder '{path}'").format(path=path.parent), where=where, hint=shlex.join(["mkdir", "-p", str(path.parent)])) from error
    except OSError as error:
        raise UsageError(_("cannot write '{path}': {reason}").format(path=path, reason=error.strerror), where=where) from error


def _write(path: Path, text: str) -> None:
    target = Path(os.path.realpath(path))  # a link stays one
    is_new = not target.exists()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    if is_new or (target.is_file() and os.access(target, os.W_OK)):  # else a device, a pipe, or a file that is not to be changed
        with suppress(PermissionError, FileNotFoundError):  # a folder that takes no new file may still hold one that can be changed
            temporary.touch()
            _replace(temporary, target, text, is_new=is_new)
            return
    path.write_text(text, encoding="utf-8")


def _replace(temporary: Path, target: Path, text: str, *, is_new: bool) -> None:
    try:
        temporary.write_text(text, encoding="utf-8")
        if not is_new:
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
