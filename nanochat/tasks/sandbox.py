"""Runs a program that a model wrote, in a process of its own with limits, and says whether it came to its end.

What this bounds: time, memory, the size and number of files, processes that are left over. The process starts in an empty folder,
with an empty environment and without site-packages.

What this does **not** protect from: the program runs as the same user, so it can read whatever that user can read, write to
folders that user can write to (in small files), and use the network. It is good against programs that are wrong, not against
programs that are hostile. Run evaluations of untrusted models in a container without network and without secrets.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Literal

__all__ = ["Limits", "Outcome", "run_program"]

SHOWN_CHARS = 500


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    wall_s: float = 5.0
    memory_bytes: int = 256 * 1024 * 1024
    file_bytes: int = 1024 * 1024
    files: int = 32


@dataclass(frozen=True)
class Outcome:
    """How a program ended; `message` is the end of what it wrote to stderr."""

    end: Literal["ok", "failed", "timeout"]
    message: str = ""


def run_program(program: str, limits: Limits = Limits()) -> Outcome:
    """How a Python program ended."""
    def restrict() -> None:
        for what, value in (
            (resource.RLIMIT_AS, limits.memory_bytes), (resource.RLIMIT_CPU, int(limits.wall_s) + 1), (resource.RLIMIT_FSIZE, limits.file_bytes),
            (resource.RLIMIT_NOFILE, limits.files), (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(what, (value, value))

    with tempfile.TemporaryDirectory(prefix="nanochat-program-") as folder, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, cwd=folder, env={},
            start_new_session=True, preexec_fn=restrict,
        )
        try:
            process.communicate(program.encode("utf-8", "replace"), timeout=limits.wall_s)
        except subprocess.TimeoutExpired:
            return Outcome("timeout", f"more than {limits.wall_s:g} s")
        finally:
            _end_group(process)
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - SHOWN_CHARS))
        message = errors.read().decode("utf-8", "replace").strip()
    return Outcome("ok" if process.returncode == 0 else "failed", message)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the program and whatever it started and left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
