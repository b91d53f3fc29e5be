"""The workers' names resolve, and their clocks agree with the file server's."""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable

from nanochat.contract import RunFile
from nanochat.errors import BadConfig, NotReady
from nanochat.launch.settings import LaunchSettings

__all__ = ["check_clock", "check_names"]

CLOCK_MAX_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
"""Pauses between looks double: resolvers remember for some seconds that a name was unknown, and hundreds of pods ask one server."""
TELL_EVERY_S = 60.0


def check_names(settings: LaunchSettings, run: RunFile, resolve: Callable[[str], object] | None = None) -> None:
    """Resolve every worker's name; names of pods that are still starting are waited for.

    Raises:
        NotReady: Names are still unknown after the time that the spec allows for starting.
    """
    hosts = [host for host in os.environ.get("VC_WORKER_HOSTS", "").split(",") if host]
    if settings.nodes == 1 or not hosts:
        return
    begun = told = time.monotonic()
    deadline, unknown, pause = begun + run.start_timeout_s, hosts, FIRST_PAUSE_S
    while unknown := _unresolved(unknown, resolve or socket.gethostbyname):
        now = time.monotonic()
        missing = f"{len(unknown)} of {len(hosts)} workers have no address"
        shown = ", ".join(unknown[:8]) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
        if now >= deadline:
            raise NotReady(f"{missing}: {shown}", where="VC_WORKER_HOSTS", hint="are their pods scheduled? nanochat-npu explain JOB")
        if now - told >= TELL_EVERY_S:
            told = now
            print(f"launch: waiting for {now - begun:.0f} s of at most {run.start_timeout_s:.0f} s, {missing}: {shown}", file=sys.stderr, flush=True)
        time.sleep(min(pause, deadline - now))
        pause = min(LONGEST_PAUSE_S, 2 * pause)


def _unresolved(hosts: Iterable[str], resolve: Callable[[str], object]) -> list[str]:
    found = []
    for host in hosts:
        try:
            resolve(host)
        except OSError:
            found.append(host)
    return found


def check_clock(settings: LaunchSettings, run: RunFile) -> None:
    """Compare this node's clock with the time that the output volume gives a new file; budgets and logs count on it.

    Raises:
        BadConfig: They are more than a minute apart.
    """
    if run.world.device != "npu":
        return
    probe = settings.job_dir / f".clock-node{settings.node_rank}-{os.getpid()}"
    try:
        try:
            before = time.time()
            probe.write_bytes(b"x")
            written = probe.stat().st_mtime
            after = time.time()
        finally:
            probe.unlink(missing_ok=True)
    except OSError:
        return  # output_folder says what is wrong with it
    apart = max(before - written, written - after)
    if apart > CLOCK_MAX_S:
        raise BadConfig(f"this node's clock and the file server's are {apart:.0f} s apart", where=str(settings.job_dir), hint="synchronise the node's time (chrony, ntp)")
