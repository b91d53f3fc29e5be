"""The other end of ``files`` and ``data push``: runs inside a helper pod, whatever image that has, with Python's library alone.

Its text is sent along with each command (`exec.agent_command`), so it fits this version of the command line and not the image.
``OPERATION ROOT PATH ...``; results on stdout, one JSON object a line, except the bytes of ``read``. Exit code 3: the message on
stderr is for a person. Nothing outside of ROOT is touched, symlinks included.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

CHUNK = 1 << 20
PART = ".nanochat-part"
"""Ending of an upload that is not complete."""


class RefusedError(Exception):
    """What the person asked for is not possible."""


def say(value: object) -> None:
    """One line of JSON on stdout."""
    print(json.dumps(value), flush=True)


def inside(root: str, path: str) -> Path:
    """The real path of something below root."""
    base = Path(root).resolve()
    real = (base / path.lstrip("/")).resolve()
    if real != base and base not in real.parents:
        raise RefusedError(f"{path} leads out of {root}")
    return real


def describe(base: Path, path: Path) -> dict[str, object]:
    """Path below base, kind, size and time of one entry."""
    info = path.lstat()
    kind = "link" if path.is_symlink() else "dir" if path.is_dir() else "file"
    return {"path": str(path.relative_to(base)), "kind": kind, "size": info.st_size, "mtime": info.st_mtime}


def ls(root: str, path: str, recursive: str = "0") -> None:
    """Entries of a folder, or the file itself."""
    top, base = inside(root, path), Path(root).resolve()
    if not top.is_dir():
        say(describe(base, top))
        return
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted([*files, *folders]):
            say(describe(base, Path(folder) / name))
        if recursive == "0":
            break


def digest(path: Path) -> str:
    """sha256 of a file."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            total.update(chunk)
    return total.hexdigest()


def sums(root: str, path: str) -> None:
    """Size and sha256 of every file below a folder; of unfinished uploads only the size."""
    top = inside(root, path)
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted(files):
            full = Path(folder) / name
            if full.is_symlink():
                continue
            say({"path": str(full.relative_to(top)), "size": full.stat().st_size, "sha256": "" if name.endswith(PART) else digest(full)})


def read(root: str, path: str, offset: str = "0") -> None:
    """Size and sha256 as a line, then the bytes from offset on."""
    full = inside(root, path)
    if full.is_dir():
        raise RefusedError(f"{path} is a folder")
    size = full.stat().st_size
    out = sys.stdout.buffer
    out.write(json.dumps({"size": size, "sha256": digest(full)}).encode() + b"\n")
    with full.open("rb") as file:
        file.seek(int(offset))
        left = size - int(offset)  # a log that grows is cut where it was when we looked
        while left > 0 and (chunk := file.read(min(CHUNK, left))):
            out.write(chunk)
            left -= len(chunk)
    out.flush()


def write(root: str, path: str, size: str, offset: str, sha256: str) -> None:
    """Take bytes from stdin, from offset up to size; the file appears under its name when its sum is right."""
    full = inside(root, path)
    if full.is_dir():
        raise RefusedError(f"{path} is a folder")
    full.parent.mkdir(parents=True, exist_ok=True)
    part, at, end = full.with_name(full.name + PART), int(offset), int(size)
    with part.open("ab") as file:
        file.truncate(at)
        say({"ready": at})
        while at < end and (chunk := os.read(0, min(CHUNK, end - at))):
            file.write(chunk)
            at += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    if at < end:
        raise RefusedError(f"{path}: {at} of {end} bytes came")
    found = digest(part)
    if found != sha256:
        part.unlink()
        raise RefusedError(f"{path}: sha256 is {found}, should be {sha256}")
    part.replace(full)
    say({"done": True})


def archive(root: str, path: str, into: str) -> None:
    """Put a folder aside under the next free number below `into`; says where, or null if there was no such folder."""
    full, goal = inside(root, path), inside(root, into)
    if not full.is_dir():
        say({"moved": None})
        return
    goal.mkdir(parents=True, exist_ok=True)
    number = max((int(found.name) for found in goal.iterdir() if found.name.isdigit()), default=0) + 1
    full.rename(goal / str(number))
    say({"moved": str(goal / str(number))})


def main(arguments: list[str]) -> int:
    """Run one operation."""
    operations = {"ls": ls, "sums": sums, "read": read, "write": write, "archive": archive}
    try:
        operations[arguments[0]](*arguments[1:])  # type: ignore[operator]
    except RefusedError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    except FileNotFoundError as error:
        sys.stderr.write(f"{error.filename} does not exist\n")
        return 3
    except OSError as error:
        sys.stderr.write(f"{error.filename or arguments[2]}: {error.strerror}\n")
        return 3
    return 0


if __name__ == "__main__":
    # sys.argv[0] is -c and [1] this text, packed.
    sys.exit(main(sys.argv[2:]))
