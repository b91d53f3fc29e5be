"""stdout and stderr that never fail: a log on a full disk, or a reader that has left, must not decide how a job ends."""

import contextlib
import io
import os
import sys
from typing import Any

__all__ = ["never_fail"]

_replaced: list[Any] = []
"""Streams that were there before: one that is collected closes its descriptor, which the next file opened would then get."""


class _Unfailing(io.RawIOBase):
    """A file descriptor that takes everything, and drops what the system does not.

    Args:
        descriptor: Of the stream; it is not closed.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any) -> int:
        """All of it is taken."""
        size = len(memoryview(data).cast("B"))
        try:
            return os.write(self._descriptor, data)
        except OSError:
            return size


def never_fail() -> None:
    """Give this process a stdout and a stderr that drop what cannot be written, instead of raising wherever somebody prints."""
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        try:
            descriptor = stream.fileno()
            with contextlib.suppress(OSError):  # what it holds cannot be written: just then it must not stay
                stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, none at all, or no file
            continue
        _replaced.append(stream)
        raw = io.BufferedWriter(_Unfailing(descriptor))
        setattr(sys, name, io.TextIOWrapper(raw, encoding=stream.encoding or "utf-8", errors="backslashreplace", line_buffering=True))
