"""Processes of local jobs: starting them so that they cannot outlive their parent unseen, and finding every one that is left.

A job's processes are recognised by ``NANOCHAT_JOB_DIR`` in their environment, which all descendants of a launcher inherit.
Parentage would not do: ranks are started in sessions of their own, and orphans are adopted. Linux only, as the product is.
"""

import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nanochat.contract import layout

__all__ = ["adopt_orphans", "free_port", "job_processes", "kill_job", "start", "tied_to_us"]

PR_SET_PDEATHSIG = 1
"""prctl(2): signal this process when the thread that started it ends."""
PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphaned descendants become children of this process, not of init."""
PORTS = range(20_000, 32_768)
"""Below Linux's range for outgoing connections (ip_local_port_range), so no client takes the port in between."""
KILL_PATIENCE_S = 10.0
"""SIGKILL takes effect at once, save for a process in uninterruptible sleep (a hung file system or driver)."""

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies, so that they can be reaped here."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def tied_to_us() -> Callable[[], None]:
    """For ``preexec_fn``: the child gets SIGTERM when this process dies, however it does. Nothing but system calls."""
    parent = os.getpid()

    def prepare() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        # The supervisor blocks signals to wait for them; a mask is inherited through exec.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if os.getppid() != parent:  # it died before prctl took effect
            os._exit(128 + signal.SIGTERM)

    return prepare


def start(command: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path) -> subprocess.Popen[bytes]:
    """A process in its own session that gets SIGTERM when this one dies, with its output appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            list(command), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=tied_to_us(),
        )


def job_processes(job: Path) -> list[int]:
    """Ids of all living processes of the job in this folder; never this process or one above it (a shell with our variables)."""
    mark = f"{layout.ENV_JOB_DIR}={job}".encode()
    found: list[int] = []
    spared = _ancestors(os.getpid())
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) in spared:
            continue
        try:
            environ = (process / "environ").read_bytes()
        except OSError:  # gone, or another user's
            continue
        if mark in environ.split(b"\0"):
            found.append(int(process.name))
    return found


def _ancestors(pid: int) -> set[int]:
    """A process and all above it."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            # The name in parentheses may hold anything; state and parent follow the last one (proc_pid_stat(5)).
            pid = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


def kill_job(job: Path) -> int:
    """Kill every process of a job; how many there were. Returns when they are gone, or after `KILL_PATIENCE_S`."""
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_PATIENCE_S
    # Again until none is left: a process may have forked while the list was made.
    while (alive := job_processes(job)) and time.monotonic() < deadline:
        for pid in alive:
            killed.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    return len(killed)


def free_port() -> int:
    """A TCP port on which nobody listens now, chosen at random so that two jobs rarely meet."""
    for port in random.sample(PORTS, 100):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port on loopback")
