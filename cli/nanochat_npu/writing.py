"""Writing a result to the file that a person named, with an error that says what to do where that cannot be."""

import shlex
from pathlib import Path

from nanochat_npu.errors import UsageError
from nanochat_npu.i18n import _

__all__ = ["write_result"]


def write_result(path: Path, text: str, *, where: str | None = "--to") -> None:
    """Write a text as UTF-8.

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
        path.write_text(text, encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(_("there is no folder '{path}'").format(path=path.parent), where=where, hint=shlex.join(["mkdir", "-p", str(path.parent)])) from error
    except OSError as error:
        raise UsageError(_("cannot write '{path}': {reason}").format(path=path, reason=error.strerror), where=where) from error
