"""CANN's environment is loaded, and its driver is new enough for what we switch on."""

import os
import re
from pathlib import Path

from nanochat.contract import RunFile
from nanochat.errors import BadConfig
from nanochat.launch.settings import LaunchSettings

__all__ = ["check", "driver_version"]

NEEDS: tuple[tuple[str, str, str, tuple[int, ...]], ...] = (
    ("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", "expandable segments", (23, 0, 0)),
    ("PYTORCH_NPU_ALLOC_CONF", "page_size:1g", "pages of 1 GB", (25, 0)),
    ("HCCL_NPU_SOCKET_PORT_RANGE", "", "ranges of NPU ports", (25, 0)),
)
"""Variable, what in it asks for a feature, the feature, and the first driver (HDK) that has it (Ascend/pytorch, PYTORCH_NPU_ALLOC_CONF;
HCCL_NPU_SOCKET_PORT_RANGE from 25.0.RC1). Which driver a CANN release needs at least was not to be read anywhere public."""


def driver_version(root: Path = Path("/")) -> tuple[int, ...] | None:
    """Version of the host's driver, or None where the container does not see its file (Ascend Docker Runtime leaves it out)."""
    try:
        text = (root / "usr/local/Ascend/driver/version.info").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^Version=([\d.]+)", text, re.MULTILINE)
    return tuple(int(part) for part in found[1].strip(".").split(".")) if found else None


def check(settings: LaunchSettings, run: RunFile, root: Path = Path("/")) -> None:
    """Look for the toolkit that set_env.sh names, and read the driver's version.

    Raises:
        BadConfig: set_env.sh was not sourced, names a folder that is not there, or the driver is too old.
    """
    if run.world.device != "npu":
        return
    home = os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME")
    if not home:
        raise BadConfig(
            "CANN's environment is not loaded", where="ASCEND_HOME_PATH",
            hint="start by entrypoint.sh: a Kubernetes command: replaces the ENTRYPOINT by which CANN images load it",
        )
    if not (root / home.lstrip("/")).is_dir():
        raise BadConfig("the folder of CANN is not in this image", where=home, hint="image.base must be a CANN image")
    driver = driver_version(root)
    for variable, setting, feature, oldest in NEEDS:
        text = os.environ.get(variable)
        if driver is not None and text and setting in text and driver < oldest:
            raise BadConfig(
                f"driver {_dotted(driver)} knows no {feature} ({_dotted(oldest)} does)", where=variable,
                hint="renew the node's driver, or " + (f"set env: {{{variable}: expandable_segments:False}}" if "segments" in setting else f"remove {variable} from env"),
            )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
