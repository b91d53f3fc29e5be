"""HCCL's variables are in range: one that is not is EI0001 on every rank, minutes later.

Ranges for Atlas A2: hicann/hccl 09300b70 (``hccl_env/<NAME>.md``). What the spec sets was checked by the submitter; this
catches what an image or a platform adds.
"""

import ipaddress
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from nanochat.contract import RunFile
from nanochat.errors import BadConfig
from nanochat.launch.settings import LaunchSettings

__all__ = ["RANGES", "check"]

RANGES: dict[str, tuple[int, int, int]] = {
    "HCCL_CONNECT_TIMEOUT": (120, 7200, 1), "HCCL_EXEC_TIMEOUT": (0, 2_147_483_647, 1), "HCCL_IF_BASE_PORT": (1024, 65_520, 1),
    "HCCL_BUFFSIZE": (1, 1 << 20, 1), "HCCL_RDMA_TC": (0, 255, 4), "HCCL_RDMA_SL": (0, 7, 1), "HCCL_RDMA_TIMEOUT": (5, 20, 1),
    "HCCL_RDMA_RETRY_CNT": (1, 7, 1), "HCCL_RDMA_QPS_PER_CONNECTION": (1, 32, 1), "HCCL_WHITELIST_DISABLE": (0, 1, 1),
    "HCCL_INTRA_ROCE_ENABLE": (0, 1, 1),
}
"""Least, greatest, step."""


def check(settings: LaunchSettings, run: RunFile, env: Mapping[str, str] | None = None, root: Path = Path("/")) -> None:
    """Hold every HCCL variable to its range, and the address and NIC to what this container has.

    Raises:
        BadConfig: A value is out of range, the address is not an address, or the NIC does not exist.
    """
    if run.world.device != "npu":
        return
    found = os.environ if env is None else env
    for name, (least, greatest, step) in RANGES.items():
        text = found.get(name)
        if text is not None and not (text.isdigit() and least <= int(text) <= greatest and int(text) % step == 0):
            multiple = f", a multiple of {step}" if step > 1 else ""
            raise BadConfig(f"{text!r} is not a whole number from {least} to {greatest}{multiple}", where=name, hint="block hccl of the spec, or remove it from env")
    _check_address(found.get("HCCL_IF_IP"))
    _check_nic(found.get("HCCL_SOCKET_IFNAME"), root)


def _check_address(text: str | None) -> None:
    if not text:
        return
    try:
        address = ipaddress.ip_address(text)
        with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((text, 0))
    except (ValueError, OSError) as error:
        raise BadConfig(
            f"{text} is not an address of this container", where="HCCL_IF_IP", hint="set it with hostNetwork only (network.host: true does), else not at all",
        ) from error


def _check_nic(text: str | None, root: Path) -> None:
    """``=name`` is one NIC, ``name`` a prefix, ``^`` excludes; a list may name several."""
    nics = [path.name for path in (root / "sys/class/net").glob("*")]
    wanted = [part.strip() for part in (text or "").split(",") if part.strip() and not part.startswith("^")]
    if not wanted or not nics:
        return
    if not any(nic == part[1:] if part.startswith("=") else nic.startswith(part) for part in wanted for nic in nics):
        raise BadConfig(f"no NIC fits {text!r}; there are {', '.join(sorted(nics))}", where="HCCL_SOCKET_IFNAME", hint="set network.interface")


