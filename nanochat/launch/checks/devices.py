"""The NPUs that the job asked for are in the container, and this user may open them."""

import os
import re
from pathlib import Path

from nanochat.contract import RunFile
from nanochat.errors import BadConfig, DeviceLost
from nanochat.launch.settings import LaunchSettings

__all__ = ["check", "npu_numbers"]

CONTROL = ("davinci_manager", "devmm_svm", "hisi_hdc")
"""Device nodes that every process with an NPU opens beside its own (Ascend Docker Runtime adds them)."""


def npu_numbers(root: Path = Path("/")) -> list[int]:
    """Physical numbers of the NPUs in this container: N of ``/dev/davinciN``, ascending."""
    found = (re.fullmatch(r"davinci(\d+)", path.name) for path in (root / "dev").glob("davinci*"))
    return sorted(int(match[1]) for match in found if match)


def check(settings: LaunchSettings, run: RunFile, root: Path = Path("/")) -> None:
    """Count device nodes and try their modes; opens nothing.

    Raises:
        DeviceLost: There are too few, or the driver's own nodes are missing; another node may be better.
        BadConfig: They are there, but this user may not open them, or the environment hides some.
    """
    if run.world.device != "npu":
        return
    numbers = npu_numbers(root)
    missing = [name for name in CONTROL if not (root / "dev" / name).exists()]
    if not numbers or missing:
        raise DeviceLost(
            f"no NPU in this container: {', '.join(['davinci*'] * (not numbers) + missing)} missing", where="/dev",
            hint="install the Ascend Docker Runtime on the node, or set cluster.driver_mount: hostpath",
        )
    if len(numbers) < settings.ranks_per_node:
        raise DeviceLost(
            f"{len(numbers)} NPUs ({', '.join(map(str, numbers))}) for {settings.ranks_per_node} ranks", where="/dev/davinci*",
            hint="compare the pod's annotation huawei.com/Ascend910 with the resource that it asked for",
        )
    closed = [number for number in numbers if not os.access(root / "dev" / f"davinci{number}", os.R_OK | os.W_OK)]
    if closed:
        raise BadConfig(
            f"user {os.getuid()} may not open NPU {', '.join(map(str, closed))}", where=f"/dev/davinci{closed[0]}",
            hint="security.run_as_user: 0 or 1000; nodes belong to HwHiAiUser (1000). With kubelet's static CPU manager: useAscendDocker=false",
        )
    _check_mask(len(numbers))


def _check_mask(count: int) -> None:
    """ASCEND_RT_VISIBLE_DEVICES drops wrong numbers without a word, and an unsorted list hides every NPU."""
    mask = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if not mask:
        return
    parts = mask.split(",")
    numbers = [int(part) for part in parts if part.strip().isdigit()]
    if len(numbers) != len(parts) or numbers != sorted(set(numbers)) or numbers[-1] >= count:
        raise BadConfig(
            f"{mask!r} is not an ascending list of numbers below {count}", where="ASCEND_RT_VISIBLE_DEVICES",
            hint="unset it: in a pod the platform has chosen already",
        )
