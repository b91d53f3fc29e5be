"""Rank processes: started with their place in the world, tied to the launcher's life, their output in one file each."""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from nanochat.contract import ExitCode, from_returncode, layout
from nanochat.launch.settings import LaunchSettings
from nanochat.streams import never_fail

__all__ = ["RankProcess", "rank_environment", "start"]

_PR_SET_PDEATHSIG = 1
"""prctl(2): the kernel sends this process a signal when its parent dies."""


@dataclass
class RankProcess:
    """One rank on this node. `code` is None while it runs."""

    rank: int
    pid: int
    code: int | None = None

    def poll(self) -> bool:
        """True if this call saw the rank end."""
        if self.code is not None:
            return False
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return False
        self.code = from_returncode(os.waitstatus_to_exitcode(status))
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal unless the rank has ended; its pid is ours until it is reaped, so nobody else is hit."""
        if self.code is None:
            os.kill(self.pid, number)


def rank_environment(
    settings: LaunchSettings, *, local_rank: int, attempt: int, run_file: Path, port: int
) -> dict[str, str]:
    """What a rank finds in its environment: torch's names and ours."""
    return {
        "RANK": str(settings.first_rank + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(settings.world_size),
        "LOCAL_WORLD_SIZE": str(settings.ranks_per_node),
        "GROUP_RANK": str(settings.node_rank),
        "MASTER_ADDR": settings.master_addr,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # torch's word for: the store is hosted by the launcher, not by rank 0
        layout.ENV_JOB_DIR: str(settings.job_dir),
        layout.ENV_RUN_FILE: str(run_file),
        layout.ENV_ATTEMPT: str(attempt),
        # CANN's own logs: beside ours on the volume and one folder a rank, or they are gone with the pod.
        "ASCEND_PROCESS_LOG_PATH": str(layout.plog_dir(settings.job_dir, attempt, settings.first_rank + local_rank)),
    }


def start(environment: Mapping[str, str], log: Path, *, in_process: bool, close: socket.socket | None = None) -> int:
    """Process id of a new rank.

    Args:
        environment: From `rank_environment`.
        log: File for its stdout and stderr.
        in_process: Go on in the forked copy of this process, which has torch imported already (CPU: 24 imports cost a
            minute and 8 GB). Otherwise start a fresh interpreter: an NPU cannot be initialised after a fork.
        close: A socket that is the launcher's alone.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    launcher = os.getpid()
    pid = os.fork()
    if pid == 0:
        if close is not None:
            close.close()
        _become_rank(environment, log, launcher, in_process=in_process)
    return pid


def _become_rank(environment: Mapping[str, str], log: Path, launcher: int, *, in_process: bool) -> NoReturn:
    code = int(ExitCode.BUG)
    try:
        _detach(launcher)
        _redirect(log)
        never_fail()
        os.environ.update(environment)
        if not in_process:
            os.execv(sys.executable, [sys.executable, "-m", "nanochat", "rank"])  # noqa: S606 (no shell wanted)
        from nanochat.rank import main

        code = main([])
    finally:
        # Not sys.exit: the copies of the launcher's objects in this process must not be torn down a second time.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _detach(launcher: int) -> None:
    """Ctrl-C reaches the whole terminal; only the launcher answers it. And no rank outlives its launcher."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(int(ExitCode.BUG))


def _redirect(log: Path) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
