"""Writing a result to the file that a person named, with an error that says what to do where that cannot be."""

import os
import shlex
import shutil
from contextlib import suppress
from pathlib import Path

from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _

__all__ = ["replace_text", "write_result"]


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


def replace_text(path: Path, text: str, *, mode_of: Path | None = None) -> None:
    """Write a file as UTF-8 in one step: a reader never sees half of it, and where it fails the old one stands.

    Args:
        path: The file, new or not; not a link that is to stay one.
        text: The content.
        mode_of: The file whose permissions it gets; None: those of a new file.

    Raises:
        OSError: It cannot be written; nothing is left beside it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        if mode_of is not None:
            shutil.copymode(mode_of, temporary)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):  # of a folder that may not be entered, the first error is the one to tell
            temporary.unlink(missing_ok=True)
        raise


def _write(path: Path, text: str) -> None:
    target = Path(os.path.realpath(path))  # a link stays one
    is_new = not target.exists()
    if is_new or (target.is_file() and os.access(target, os.W_OK)):  # else a device, a pipe, or a file that is not to be changed
        with suppress(PermissionError, FileNotFoundError):  # a folder that takes no new file may still hold one that can be changed
            replace_text(target, text, mode_of=None if is_new else target)
            return
    path.write_text(text, encoding="utf-8")
