"""Writing files so that a reader, a crash or a full disk never sees half of one, and telling whether one is whole."""

import hashlib
import os
import threading
from pathlib import Path

__all__ = ["fsync_dir", "sha256_of", "write_atomic", "write_once"]


def fsync_dir(path: Path) -> None:
    """Make the names in a folder durable: without it a rename may be undone by a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_temporary(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def write_atomic(path: Path, text: str) -> None:
    """Replace the content of a file at once; readers see the old text or the new one."""
    temporary = _write_temporary(path, text)
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def write_once(path: Path, text: str) -> bool:
    """True if this call created the file; False if somebody else was first, whose content then stays.

    A hard link refuses an existing name atomically, over NFS too, where ``O_EXCL`` has a history of not doing so.
    """
    temporary = _write_temporary(path, text)
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    fsync_dir(path.parent)
    return True
