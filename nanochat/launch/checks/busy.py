"""No other container holds the NPUs: these drivers let one at a time open them."""

import shutil
import subprocess

from nanochat.contract import RunFile
from nanochat.errors import DeviceLost
from nanochat.launch.settings import LaunchSettings

__all__ = ["check"]

TIMEOUT_S = 4.0
BUSY = ("-8005", "is busy", "device is being used")
"""What dcmi and npu-smi say then (-8005: occupied, or rights are missing)."""


def check(settings: LaunchSettings, run: RunFile) -> None:
    """Ask npu-smi, where there is one; says nothing where it does not answer in time.

    Raises:
        DeviceLost: An NPU is held by somebody else.
    """
    program = shutil.which("npu-smi") if run.world.device == "npu" else None
    if program is None:
        return
    try:
        answer = subprocess.run([program, "info"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    said = answer.stdout + answer.stderr
    line = next((line.strip() for line in said.splitlines() if any(word in line for word in BUSY)), None)
    if line is not None:
        raise DeviceLost(
            f"an NPU is held by another container: {line[:200]}", where="npu-smi info",
            hint="find it on the node (npu-smi info), or a process that a former pod left behind",
        )
