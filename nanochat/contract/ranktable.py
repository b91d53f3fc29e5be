"""HCCL rank tables: read, check, build. Pure; the submitter makes them, the launcher checks them before HCCL sees one.

Two schemas: version 1.0 (Atlas A2, the 910B) and 1.2 (A3 super pods). Field rules follow the HCCL user guide
(``cluster_info_config/rank_table_config_a2.md``, ``…_a3.md``) and what HCCL's parser rejects as EI0004
(``topo/topoinfo_ranktableParser.cc``, ``topoinfo_ranktableConcise.cc``). Two rules are ours: ranks must not interleave over
servers (HCCL only runs slower), and placeholder addresses are refused (HCCL fails minutes later with EI0014).

torch passes its global rank to HCCL, so ``rank_id`` is torch's rank and ``device_id`` the physical id N of ``/dev/davinciN``.
"""

import hashlib
import ipaddress
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

__all__ = ["Device", "Finding", "RankTable", "RankTableError", "Rule", "Server", "check_member", "parse", "validate"]

MAX_SERVER_ID = 64
MAX_DEVICE_ID = {"1.0": 15, "1.2": 15}
"""Largest physical id that HCCL accepts (910B and A3 share the limit; an A2 server has 0-7)."""


class Rule(StrEnum):
    """What can be wrong with a rank table; the value is the id that messages carry."""

    NOT_JSON = "R01"
    VERSION = "R02"
    STATUS = "R03"
    NOT_STRING = "R04"
    SERVER_COUNT = "R05"
    NO_SERVERS = "R06"
    SERVER_ID = "R07"
    DUPLICATE_SERVER = "R08"
    NO_DEVICES = "R09"
    DEVICE_ID = "R10"
    DUPLICATE_DEVICE = "R11"
    DEVICE_IP_MISSING = "R12"
    DEVICE_IP = "R13"
    DUPLICATE_IP = "R14"
    MIXED_FAMILIES = "R15"
    IP_COUNT = "R16"
    RANK_ID = "R17"
    RANK_ORDER = "R18"
    INTERLEAVED = "R19"
    WORLD_SIZE = "R20"
    UNEQUAL_SERVERS = "R21"
    SUPER_DEVICE = "R22"
    SUPER_POD = "R23"
    DEVICE_PORT = "R24"
    NOT_MEMBER = "R25"
    PLACEHOLDER = "R26"
    FIELD_MISSING = "R27"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: rule, place in the table, what it is, what to do."""

    rule: Rule
    place: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.rule.value} {self.place}: {self.message}"
        return f"{text} ({self.hint})" if self.hint else text


class RankTableError(ValueError):
    """A rank table that HCCL would refuse, or that would make it wait. `findings` lists everything that is wrong."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(map(str, findings[:8])) + (f"; and {len(findings) - 8} more" if len(findings) > 8 else ""))
        self.findings = tuple(findings)


@dataclass(frozen=True)
class Device:
    """One NPU (on A3: one die), which is one rank.

    Attributes:
        device_id: Physical id, N of ``/dev/davinciN``.
        device_ip: Address of the NPU's own RoCE port; "" where one server needs none.
        rank_id: Global torch rank.
        super_device_id: Id within the super pod (A3 only), else "".
    """

    device_id: int
    device_ip: str
    rank_id: int
    super_device_id: str = ""


@dataclass(frozen=True)
class Server:
    """One node with its NPUs. `server_id` is any text that is unique in the job; `super_pod_id` is "" except on A3."""

    server_id: str
    devices: tuple[Device, ...]
    super_pod_id: str = ""


@dataclass(frozen=True)
class RankTable:
    """A rank table whose shape is right; `validate` or `parse` say whether its content is."""

    servers: tuple[Server, ...]
    version: str = "1.0"

    @classmethod
    def build(cls, nodes: Iterable[tuple[str, Sequence[tuple[int, str]]]], *, version: str = "1.0") -> "RankTable":
        """Number the NPUs of some servers: ranks follow the servers' order, then the physical ids.

        Args:
            nodes: (server id, [(physical device id, NIC address), …]) per server.
            version: Schema, "1.0" for A2 and "1.2" for A3.

        Raises:
            RankTableError: The result would not be valid.
        """
        servers, rank = [], 0
        for server_id, npus in nodes:
            devices = []
            for device_id, device_ip in sorted(npus):
                devices.append(Device(device_id, device_ip, rank))
                rank += 1
            servers.append(Server(server_id, tuple(devices)))
        table = cls(tuple(servers), version)
        return parse(table.to_json())

    @property
    def world_size(self) -> int:
        """Ranks in the table."""
        return sum(len(server.devices) for server in self.servers)

    def node_rank(self, server_id: str) -> int | None:
        """Position of a server by its first rank, or None if the table lacks it."""
        order = sorted(self.servers, key=lambda server: min((d.rank_id for d in server.devices), default=0))
        return next((i for i, server in enumerate(order) if server.server_id == server_id), None)

    def to_dict(self) -> dict[str, Any]:
        """The table as HCCL's schema has it: every scalar is a string."""
        server_list = [
            {
                "server_id": server.server_id,
                "device": [
                    {"device_id": str(d.device_id), **({"device_ip": d.device_ip} if d.device_ip else {}), "rank_id": str(d.rank_id),
                     **({"super_device_id": d.super_device_id} if d.super_device_id else {})}
                    for d in server.devices
                ],
            }
            for server in self.servers
        ]
        table: dict[str, Any] = {"status": "completed", "version": self.version, "server_count": str(len(self.servers)), "server_list": server_list}
        pods: dict[str, list[dict[str, str]]] = {}
        for server in self.servers:
            if server.super_pod_id:
                pods.setdefault(server.super_pod_id, []).append({"server_id": server.server_id})
        if pods:
            table["super_pod_list"] = [{"super_pod_id": pod, "server_list": members} for pod, members in pods.items()]
        return table

    def to_json(self) -> str:
        """Compact JSON, the same bytes for the same table: about 74 bytes a rank."""
        return json.dumps(self.to_dict(), separators=(",", ":"), ensure_ascii=False)

    def fingerprint(self) -> str:
        """Hash of what HCCL compares between ranks (EI0005 if it differs), independent of layout and of extra keys."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


def parse(text: str, *, world_size: int | None = None) -> RankTable:
    """The table in a JSON text, valid in every respect that can be checked without the hardware.

    Args:
        text: Content of the file.
        world_size: Ranks that the job has; None skips that check.

    Raises:
        RankTableError: With every finding.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise RankTableError([Finding(Rule.NOT_JSON, "file", f"not JSON: {error}")]) from error
    findings = validate(data, world_size=world_size)
    if findings:
        raise RankTableError(findings)
    return _read(data)


def _read(data: dict[str, Any]) -> RankTable:
    pod_of = {m["server_id"]: pod["super_pod_id"] for pod in data.get("super_pod_list", []) for m in pod["server_list"]}
    servers = tuple(
        Server(
            s["server_id"],
            tuple(
                Device(int(d["device_id"]), d.get("device_ip", ""), int(d["rank_id"]), d.get("super_device_id", ""))
                for d in s["device"]
            ),
            pod_of.get(s["server_id"], ""),
        )
        for s in data["server_list"]
    )
    return RankTable(servers, data["version"])


def validate(data: Any, *, world_size: int | None = None) -> list[Finding]:
    """Everything that is wrong with a parsed table, [] if nothing is."""
    if not isinstance(data, dict):
        return [Finding(Rule.NOT_JSON, "file", f"a JSON object is needed, not {type(data).__name__}")]
    shape = _check_head(data) + _check_shape(data)
    if any(f.rule in (Rule.NOT_STRING, Rule.FIELD_MISSING, Rule.NO_SERVERS, Rule.NO_DEVICES, Rule.NOT_JSON) for f in shape):
        return shape  # the rest would only stumble over the same places
    servers: list[dict[str, Any]] = data["server_list"]
    return [
        *shape, *_check_servers(servers, data.get("version")), *_check_addresses(servers),
        *_check_ranks(servers, world_size), *_check_super_pods(data),
    ]


def _check_head(data: dict[str, Any]) -> list[Finding]:
    out = []
    if data.get("version") not in ("1.0", "1.2"):
        hint = "without a version HCCL reads it as the legacy form" if "version" not in data else "1.0 for A2 (910B), 1.2 for A3"
        out.append(Finding(Rule.VERSION, "version", f"{data.get('version')!r} is not a version that we write", hint))
    status = data.get("status")
    if status != "completed":
        hint = "whoever fills in the table (MindCluster's operator) is not done" if status == "initializing" else "completed means usable"
        out.append(Finding(Rule.STATUS, "status", f"is {status!r}, not 'completed': HCCL would wait up to 30 minutes", hint))
    return out


def _check_shape(data: dict[str, Any]) -> list[Finding]:
    servers = data.get("server_list")
    if not isinstance(servers, list) or not servers:
        return [Finding(Rule.NO_SERVERS, "server_list", "is missing, empty or not a list")]
    out: list[Finding] = []
    count = data.get("server_count")
    if count is not None and not isinstance(count, str):
        out.append(_not_string("server_count", count))
    elif count is not None and count != str(len(servers)):
        out.append(Finding(Rule.SERVER_COUNT, "server_count", f"says {count}, but there are {len(servers)} servers"))
    for i, server in enumerate(servers):
        out += _check_server_shape(f"server_list[{i}]", server)
    return out


def _check_server_shape(place: str, server: Any) -> list[Finding]:
    if not isinstance(server, dict):
        return [Finding(Rule.NOT_JSON, place, "is not an object")]
    out = _need_strings(place, server, ("server_id",))
    devices = server.get("device")
    if not isinstance(devices, list) or not devices:
        return [*out, Finding(Rule.NO_DEVICES, f"{place}.device", "is missing, empty or not a list")]
    for k, device in enumerate(devices):
        if not isinstance(device, dict):
            out.append(Finding(Rule.NOT_JSON, f"{place}.device[{k}]", "is not an object"))
            continue
        out += _need_strings(f"{place}.device[{k}]", device, ("device_id", "rank_id"))
        optional = [name for name in ("device_ip", "device_port", "super_device_id") if name in device]
        out += _need_strings(f"{place}.device[{k}]", device, optional)
    return out


def _need_strings(place: str, item: dict[str, Any], names: Iterable[str]) -> list[Finding]:
    out = []
    for name in names:
        if name not in item:
            out.append(Finding(Rule.FIELD_MISSING, f"{place}.{name}", "is missing"))
        elif not isinstance(item[name], str):
            out.append(_not_string(f"{place}.{name}", item[name]))
    return out


def _not_string(place: str, value: Any) -> Finding:
    return Finding(Rule.NOT_STRING, place, f"{value!r} is not a string", "HCCL wants every scalar in quotes")


def _check_servers(servers: list[dict[str, Any]], version: Any) -> list[Finding]:
    out: list[Finding] = []
    for name, times in Counter(s["server_id"] for s in servers).items():
        if times > 1:
            out.append(Finding(Rule.DUPLICATE_SERVER, "server_list", f"server_id {name!r} stands there {times} times"))
    limit = MAX_DEVICE_ID.get(str(version), 15)
    for i, server in enumerate(servers):
        place = f"server_list[{i}]"
        if not 0 < len(server["server_id"]) <= MAX_SERVER_ID:
            out.append(Finding(Rule.SERVER_ID, f"{place}.server_id", f"has {len(server['server_id'])} characters, 1 to {MAX_SERVER_ID} are allowed"))
        ids = [d["device_id"] for d in server["device"]]
        out += [
            Finding(Rule.DEVICE_ID, f"{place}.device[{k}].device_id", f"{value!r} is not a number from 0 to {limit}", "N of /dev/davinciN")
            for k, value in enumerate(ids) if not (_is_number(value) and int(value) <= limit)
        ]
        out += [Finding(Rule.DUPLICATE_DEVICE, f"{place}.device", f"device_id {v!r} stands there {n} times") for v, n in Counter(ids).items() if n > 1]
        out += [
            Finding(Rule.DEVICE_PORT, f"{place}.device[{k}].device_port", f"{d['device_port']!r} is not a port from 1 to 65535")
            for k, d in enumerate(server["device"])
            if "device_port" in d and not (_is_number(d["device_port"]) and 1 <= int(d["device_port"]) <= 65535)
        ]
    sizes = Counter(len(s["device"]) for s in servers)
    if len(sizes) > 1:
        out.append(Finding(Rule.UNEQUAL_SERVERS, "server_list", f"servers have different numbers of NPUs: {sorted(sizes)}", "we start the same number of ranks on every node"))
    return out


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _check_addresses(servers: list[dict[str, Any]]) -> list[Finding]:
    out: list[Finding] = []
    seen: dict[str, str] = {}
    families: set[int] = set()
    counts: set[int] = set()
    for i, server in enumerate(servers):
        for k, device in enumerate(server["device"]):
            place = f"server_list[{i}].device[{k}].device_ip"
            value = device.get("device_ip", "")
            if not value:
                if len(servers) > 1:
                    out.append(Finding(Rule.DEVICE_IP_MISSING, place, "is needed with several servers", "address_N in /etc/hccn.conf"))
                continue
            addresses = value.split(",")
            counts.add(len(addresses))
            for text in addresses:
                out += _check_address(place, text, seen, families)
    if len(families) > 1:
        out.append(Finding(Rule.MIXED_FAMILIES, "server_list", "IPv4 and IPv6 addresses are mixed"))
    if len(counts) > 1:
        out.append(Finding(Rule.IP_COUNT, "server_list", f"NPUs have different numbers of addresses: {sorted(counts)}"))
    return out


def _check_address(place: str, text: str, seen: dict[str, str], families: set[int]) -> list[Finding]:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        hint = "the NPU's port has no address: set it with hccn_tool on that node" if set(text) <= set("-. ") else ""
        rule = Rule.PLACEHOLDER if hint else Rule.DEVICE_IP
        return [Finding(rule, place, f"{text!r} is not an address", hint)]
    families.add(address.version)
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        return [Finding(Rule.PLACEHOLDER, place, f"{text} cannot be the address of an NPU's port", "address_N in /etc/hccn.conf")]
    if str(address) in seen:
        return [Finding(Rule.DUPLICATE_IP, place, f"{text} also belongs to {seen[str(address)]}")]
    seen[str(address)] = place
    return []


def _check_ranks(servers: list[dict[str, Any]], world_size: int | None) -> list[Finding]:
    texts = [(i, k, d["rank_id"]) for i, s in enumerate(servers) for k, d in enumerate(s["device"])]
    wrong = [Finding(Rule.RANK_ID, f"server_list[{i}].device[{k}].rank_id", f"{t!r} is not a number") for i, k, t in texts if not _is_number(t)]
    if wrong:
        return wrong
    ranks = sorted(int(t) for _, _, t in texts)
    out: list[Finding] = []
    if ranks != list(range(len(ranks))):
        missing = sorted(set(range(len(ranks))) - set(ranks))[:5]
        double = sorted(v for v, n in Counter(ranks).items() if n > 1)[:5]
        out.append(Finding(Rule.RANK_ORDER, "rank_id", f"ranks are not 0 to {len(ranks) - 1}: missing {missing}, double {double}"))
    else:
        for i, server in enumerate(servers):
            own = sorted(int(d["rank_id"]) for d in server["device"])
            if own != list(range(own[0], own[0] + len(own))):
                out.append(Finding(Rule.INTERLEAVED, f"server_list[{i}]", f"ranks {own} interleave with another server's", "neighbouring ranks belong on one server"))
    if world_size is not None and len(ranks) != world_size:
        out.append(Finding(Rule.WORLD_SIZE, "server_list", f"lists {len(ranks)} ranks, the job has {world_size}"))
    return out


def _check_super_pods(data: dict[str, Any]) -> list[Finding]:
    pods = data.get("super_pod_list")
    if pods is None:
        return []
    if data.get("version") != "1.2":
        return [Finding(Rule.SUPER_POD, "super_pod_list", "belongs to version 1.2 (A3) only")]
    well_formed = isinstance(pods, list) and all(
        isinstance(p, dict) and isinstance(p.get("super_pod_id"), str) and isinstance(p.get("server_list"), list)
        and all(isinstance(m, dict) and isinstance(m.get("server_id"), str) for m in p["server_list"]) for p in pods
    )
    if not well_formed:
        return [Finding(Rule.SUPER_POD, "super_pod_list", "must be a list of {super_pod_id, server_list: [{server_id}]}")]
    out: list[Finding] = []
    devices = {s["server_id"]: s["device"] for s in data["server_list"]}
    members = [m["server_id"] for p in pods for m in p["server_list"]]
    if sorted(members) != sorted(devices):
        out.append(Finding(Rule.SUPER_POD, "super_pod_list", "its servers are not those of server_list"))
        return out
    for pod in pods:
        ids = [d.get("super_device_id", "") for m in pod["server_list"] for d in devices[m["server_id"]]]
        if "" in ids:
            out.append(Finding(Rule.SUPER_DEVICE, f"super pod {pod['super_pod_id']}", "a device has no super_device_id"))
        double = [value for value, n in Counter(ids).items() if n > 1 and value]
        if double:
            out.append(Finding(Rule.SUPER_DEVICE, f"super pod {pod['super_pod_id']}", f"super_device_id {double[0]!r} stands there twice"))
    pod_of = {m["server_id"]: p["super_pod_id"] for p in pods for m in p["server_list"]}
    order = [pod_of[s["server_id"]] for s in data["server_list"]]
    if len([name for name, _group in groupby(order)]) != len(set(order)):
        out.append(Finding(Rule.SUPER_POD, "server_list", "servers of one super pod must stand together"))
    return out


def check_member(table: RankTable, *, addresses: dict[int, str], server_ids: Iterable[str] = ()) -> Server:
    """The server of a table that is this pod, found by its NPUs' own addresses or by its ids.

    Args:
        table: A valid table.
        addresses: Physical device id → NIC address, from this host's ``/etc/hccn.conf``; {} where it cannot be read.
        server_ids: Names that this pod may have in the table (host address, pod UID, node name).

    Raises:
        RankTableError: This pod is not in the table: it is another attempt's or another job's (R25).
    """
    if addresses:
        own = set(addresses.items())
        for server in table.servers:
            if {(d.device_id, d.device_ip) for d in server.devices} <= own:
                return server
    names = [name for name in server_ids if name]
    if not addresses:
        for server in table.servers:
            if server.server_id in names:
                return server
    have = ", ".join(f"{k}={v}" for k, v in sorted(addresses.items())) or ", ".join(names) or "nothing"
    raise RankTableError([
        Finding(Rule.NOT_MEMBER, "server_list", f"this pod ({have}) is not in the table", "a stale table of another attempt or job")
    ])
