"""Checks before any rank starts, in this order. One file each: a function ``check(settings, run)`` that raises.

A check looks at this node only, takes well under a second, and says what to do. Add a file and a line here. All are run, so
that a table shows everything that is wrong at once; the first failure is the node's verdict.
"""

import sys
import time
from collections.abc import Callable

from nanochat.contract import RunFile, events
from nanochat.errors import TrainerError
from nanochat.launch.checks import (
    batch,
    budget,
    busy,
    cann,
    data_folder,
    devices,
    hccl_settings,
    memory_disk,
    output_folder,
    peers,
    platform_variables,
    retries,
    user,
    versions,
)
from nanochat.launch.settings import LaunchSettings

__all__ = ["CHECKS", "run_checks"]

Check = Callable[[LaunchSettings, RunFile], None]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("platform's variables", platform_variables.check),
    ("output folder", output_folder.check),
    ("retries", retries.check),
    ("budget", budget.check),
    ("batch", batch.check),
    ("data folder", data_folder.check),
    ("user", user.check),
    ("NPUs", devices.check),
    ("NPUs free", busy.check),
    ("CANN and driver", cann.check),
    ("torch and torch_npu", versions.check),
    ("HCCL settings", hccl_settings.check),
    ("shared memory", memory_disk.check_shm),
    ("disk", memory_disk.check_disk),
    ("open files", memory_disk.check_files),
    ("clock", peers.check_clock),
    ("workers' names", peers.check_names),
)
"""Name in the table, and check. The last may wait, so it comes last and only if the others are content."""


def run_checks(settings: LaunchSettings, run: RunFile) -> None:
    """Run all checks, show them in a table where one failed or the job is on NPUs, and raise the first failure."""
    started = time.monotonic()
    results: list[tuple[str, TrainerError | None]] = []
    for name, check in CHECKS:
        failed = [error for _, error in results if error is not None]
        if failed and check is peers.check_names:
            continue
        try:
            check(settings, run)
            results.append((name, None))
        except TrainerError as error:
            results.append((name, error))
    first = next((error for _, error in results if error is not None), None)
    if first is not None or run.world.device == "npu":
        _show(settings, results, time.monotonic() - started)
    if first is not None:
        raise first


def _show(settings: LaunchSettings, results: list[tuple[str, TrainerError | None]], took_s: float) -> None:
    width = max(len(name) for name, _ in results)
    print(f"checks of node {settings.node_rank}, {took_s:.1f} s", file=sys.stderr)
    for name, error in results:
        print(f"  {name.ljust(width)}  {'ok' if error is None else error}", file=sys.stderr)
    found = [{"check": name, "ok": error is None, **({"code": int(error.code), "message": str(error)} if error else {})} for name, error in results]
    fields = {"node": settings.node_rank, "took_s": round(took_s, 3), "checks": found}
    sys.stdout.write(events.encode("checks", stage="", t=time.time(), rank=settings.first_rank, attempt=settings.attempt or 0, fields=fields))
    sys.stdout.flush()
