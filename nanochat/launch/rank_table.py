"""Gets HCCL's rank table to the ranks of this node: waits for it or builds it, checks it, agrees on it, copies it.

torch_npu silently ignores a table whose path is a symlink (``HCCLUtils.cpp``), and every file of a mounted ConfigMap is one;
a table that says ``initializing`` makes HCCL wait for up to 30 minutes; and if one rank has the table and another has not,
both wait for ever. So the launcher reads the table itself, copies it to a regular file, and exports ``RANK_TABLE_FILE`` on all
nodes or on none. Ranks follow the table, since whoever wrote it may have ordered the servers by their place in the network.
"""

import gzip
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nanochat.contract import layout, ranktable
from nanochat.contract.ranktable import RankTable, RankTableError, Server
from nanochat.errors import BadConfig, NotReady
from nanochat.files import write_atomic
from nanochat.launch.control import ControlStore
from nanochat.launch.settings import LaunchSettings

__all__ = ["ENV_MODE", "ENV_SOURCE", "Placement", "is_wanted", "place", "read_addresses"]

ENV_MODE = layout.ENV_RANK_TABLE_MODE
ENV_SOURCE = layout.ENV_RANK_TABLE
ENV_HCCN = "NANOCHAT_HCCN_CONF"
"""Another place of /etc/hccn.conf, for tests and unusual hosts."""
POLL_S = 0.5
"""The kubelet refreshes a mounted ConfigMap about once a minute, so more often gains nothing."""

_CAUSES = (
    "known causes: the operator (ascend-operator) does not run; the device plugin was started with -volcanoType=false; or "
    "the device plugin could not get an NPU's address (its log says 'Get device ip failed', the pod lacks the annotation "
    "ascend.kubectl.kubernetes.io/ascend-910-configuration)"
)


@dataclass(frozen=True)
class Placement:
    """A table on this node: where the copy is, and which ranks it gives to this server."""

    file: Path
    first_rank: int
    fingerprint: str


def place(
    settings: LaunchSettings, control: ControlStore | None, *, timeout_s: float, attempt: int, env: Mapping[str, str] = os.environ,
    sleep: Callable[[float], None] = time.sleep,
) -> Placement | None:
    """This node's placement by the rank table, or None where HCCL negotiates.

    Args:
        settings: Place of this launcher in the job.
        control: Store of all launchers; None on a single node.
        timeout_s: Wait for the table, and for the other nodes' word on it.
        attempt: Part of the copy's name, so that no attempt reads another one's file.
        env: Environment.
        sleep: Waits between looks at the file.

    Raises:
        NotReady: The table, or another node, did not come in time.
        BadConfig: The table can never work for this job.
    """
    mode = env.get(ENV_MODE, "")
    if not mode:
        return None
    addresses = read_addresses(Path(env.get(ENV_HCCN) or "/etc/hccn.conf"))
    names = [env[name] for name in layout.ENV_OWN_NAMES if env.get(name)]
    if mode == "discover":
        table, own = _discover(settings, control, addresses, timeout_s)
    elif mode in ("operator", "static"):
        source = env.get(ENV_SOURCE)
        if not source:
            raise BadConfig("not set: it names the rank table's file", where=ENV_SOURCE)
        table, own = _await(Path(source), settings, addresses, names, timeout_s, sleep)
    else:
        raise BadConfig(f"{mode!r} is none of operator, static, discover", where=ENV_MODE)
    first_rank = _first_rank(own, settings)
    text = table.to_json()
    fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]
    _agree(settings, control, fingerprint, timeout_s)
    file = Path(tempfile.gettempdir()) / f"nanochat-rank-table-{os.getuid()}" / f"{settings.job_dir.name}-{attempt}-{own.server_id[:16]}.json"
    write_atomic(file, text)
    return Placement(file, first_rank, fingerprint)


def is_wanted(env: Mapping[str, str] = os.environ) -> bool:
    """True if the job uses a rank table."""
    return bool(env.get(ENV_MODE))


def read_addresses(file: Path) -> dict[int, str]:
    """Physical device id → address of its RoCE port, from a host's hccn.conf; {} if it cannot be read."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        key, mark, value = line.strip().partition("=")
        number = key.strip().removeprefix("address_")
        if mark and key.strip().startswith("address_") and number.isdigit() and value.strip():
            found[int(number)] = value.strip()
    return found


def _await(
    source: Path, settings: LaunchSettings, addresses: dict[int, str], names: list[str], timeout_s: float, sleep: Callable[[float], None]
) -> tuple[RankTable, Server]:
    """The table once it is completed and lists this pod.

    A table of an earlier attempt looks finished, so a table without this pod is waited on like one that is not there.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            table = ranktable.parse(_read(source), world_size=settings.world_size)
            return table, ranktable.check_member(table, addresses=addresses, server_ids=names)
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        except UnicodeDecodeError:
            problem = "is not text"
        except RankTableError as error:
            problem = str(error)
        if time.monotonic() >= deadline:
            raise NotReady(f"no usable rank table within {timeout_s:.0f} s: {problem}", where=str(source), hint=_CAUSES)
        sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))


def _read(source: Path) -> str:
    """Text of a table; large ones are compressed to fit a ConfigMap."""
    content = source.read_bytes()
    try:
        return (gzip.decompress(content) if source.suffix == ".gz" else content).decode("utf-8")
    except EOFError as error:
        raise OSError(0, "is cut short") from error


def _discover(
    settings: LaunchSettings, control: ControlStore | None, addresses: dict[int, str], timeout_s: float
) -> tuple[RankTable, Server]:
    """The table that the first node builds from what all nodes read in their own hccn.conf; the same bytes on all."""
    if len(addresses) < settings.ranks_per_node:
        raise BadConfig(
            f"lists {len(addresses)} NPU addresses, {settings.ranks_per_node} are needed", where="/etc/hccn.conf",
            hint="rank_table.mode discover needs cluster.driver_mount: hostpath, and addresses set with hccn_tool",
        )
    mine = json.dumps({"server_id": f"node_{settings.node_rank}", "npus": sorted(addresses.items())[: settings.ranks_per_node]})
    if control is None:
        everyone = [mine]
    else:
        control.put(f"nanochat/hccn/{settings.node_rank}", mine)
        everyone = control.collect([f"nanochat/hccn/{node}" for node in range(settings.nodes)], timeout_s, what="NPU addresses")
    nodes = [(item["server_id"], [(int(i), ip) for i, ip in item["npus"]]) for item in map(json.loads, everyone)]
    try:
        table = RankTable.build(nodes)
    except RankTableError as error:
        raise BadConfig(str(error), where="/etc/hccn.conf") from error
    return table, next(server for server in table.servers if server.server_id == f"node_{settings.node_rank}")


def _first_rank(own: Server, settings: LaunchSettings) -> int:
    """First rank of this server; local rank i is the i-th physical id, so ranks must rise with the ids."""
    ranks = [device.rank_id for device in sorted(own.devices, key=lambda device: device.device_id)]
    if len(ranks) != settings.ranks_per_node:
        raise BadConfig(f"gives {len(ranks)} NPUs to this server, the job runs {settings.ranks_per_node} ranks on each", where="rank table")
    if ranks != list(range(ranks[0], ranks[0] + len(ranks))):
        raise BadConfig(f"ranks {ranks} do not rise with the device ids, so LOCAL_RANK would open the wrong NPU", where=f"rank table, server {own.server_id}")
    return ranks[0]


def _agree(settings: LaunchSettings, control: ControlStore | None, fingerprint: str, timeout_s: float) -> None:
    """Make sure that every node has the same table (else HCCL ends with EI0005, or hangs where one has none)."""
    if control is None:
        return
    control.put(f"nanochat/rank-table/{settings.node_rank}", fingerprint)
    everyone = control.collect([f"nanochat/rank-table/{node}" for node in range(settings.nodes)], timeout_s, what="the rank table's hash")
    others = [f"node {node} has {value}" for node, value in enumerate(everyone) if value != fingerprint]
    if others:
        raise NotReady(f"nodes have different rank tables: this one has {fingerprint}, {', '.join(others[:4])}", where="rank table")
