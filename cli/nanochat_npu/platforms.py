"""What differs between NPU types, server types and cluster platforms, as data: resource names, labels, counts, mounts.

Nothing here decides; the spec layer reads the count rules, the renderer the rest. A new platform is one more `Platform`.

Sources (read 2026-08): Ascend/mind-cluster 22bb3d98 (``component/ascend-for-volcano`` constants and handlers,
``docs/zh/scheduling/06_api``, ``ascend-docker-runtime/build/scripts/base.list``), Ascend/mindxdl-deploy 7803c2b1 (sample
vcjobs), Project-HAMi/ascend-device-plugin ed35e1c4 (``ascend-device-configmap.yaml``), Huawei Cloud CCE user manual
``umn-cluster-modelarts-0014``, hicann/hccl 09300b70.
"""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

__all__ = [
    "CHECK_MOUNTS", "CHIPS", "DRIVER_MOUNTS", "NODE_TYPES", "PLATFORMS", "Chip", "HostMount", "NodeType", "NpuName", "Platform", "PlatformName",
    "RankTableMap", "chip_of", "node_type_of", "platform_of",
]

PlatformName = Literal["mindcluster", "volcano", "hami", "cce"]
"""mindcluster: Huawei's device plugin, operator and Volcano build. volcano: the same device plugin under mainline Volcano.
hami: HAMi's device plugin. cce: Huawei Cloud CCE and ModelArts clusters."""

NpuName = Literal["910A", "910B1", "910B2", "910B2C", "910B3", "910B4", "910B4-1", "910C"]
"""NPU types as ``torch.npu.get_device_name()`` and node label ``node.kubernetes.io/npu.chip.name`` spell them, without "Ascend"."""


@dataclass(frozen=True)
class NodeType:
    """A kind of server: how many NPUs (ranks) it has, how many a pod may ask for, how the scheduler names it."""

    name: str
    """Value of node label ``accelerator-type``."""
    npus: int
    """Ranks of a whole node; on A3 each of the two dies of a package is one rank."""
    counts: frozenset[int]
    """Counts that the scheduler's plugin grants to a one-node job; a job over several nodes takes whole nodes."""
    schedule_policy: str | None
    """Value of annotation ``huawei.com/schedule_policy``, the newer way of naming the node type; None where there is none."""


NODE_TYPES: MappingProxyType[str, NodeType] = MappingProxyType({
    node.name: node
    for node in (
        NodeType("module", 8, frozenset({1, 2, 4, 8}), "chip4-node8"),
        NodeType("card-910b-2", 2, frozenset({1, 2}), None),
        NodeType("module-910b-8", 8, frozenset(range(1, 9)), "chip8-node8"),
        NodeType("module-910b-16", 16, frozenset({*range(1, 9), 10, 12, 14, 16}), "chip8-node16"),
        NodeType("module-a3-16", 16, frozenset({1, *range(2, 17, 2)}), "chip2-node16"),
        NodeType("module-a3-16-super-pod", 16, frozenset({1, *range(2, 17, 2)}), "chip2-node16-sp"),
    )
})
"""Server types by the value of their node label ``accelerator-type``."""


@dataclass(frozen=True)
class Chip:
    """An NPU type."""

    name: str
    node_type: str
    """The server it usually sits in; a node selector ``accelerator-type`` in the spec overrides it."""
    ring_label: str
    """Value of label ``ring-controller.atlas``."""
    image_chip: str
    """How the tags of CANN images call it."""
    bfloat16: bool = True


CHIPS: MappingProxyType[str, Chip] = MappingProxyType({
    "910A": Chip("910A", "module", "ascend-910", "910", bfloat16=False),
    **{name: Chip(name, "module-910b-8", "ascend-910b", "910b") for name in ("910B1", "910B2", "910B2C", "910B3", "910B4", "910B4-1")},
    "910C": Chip("910C", "module-a3-16", "ascend-910b", "a3"),
})
"""NPU types by name."""


@dataclass(frozen=True)
class HostMount:
    """A path of the host that a container needs."""

    name: str
    path: str
    kind: Literal["Directory", "File", "DirectoryOrCreate", "FileOrCreate"]


DRIVER_MOUNTS: tuple[HostMount, ...] = (
    HostMount("ascend-driver", "/usr/local/Ascend/driver", "Directory"),
    HostMount("dcmi", "/usr/local/dcmi", "Directory"),
    HostMount("npu-smi", "/usr/local/bin/npu-smi", "File"),
    HostMount("ascend-install-info", "/etc/ascend_install.info", "File"),
    HostMount("hccn-conf", "/etc/hccn.conf", "File"),
)
"""What a container needs from the host where no Ascend Docker Runtime adds it."""

CHECK_MOUNTS: tuple[HostMount, ...] = (
    HostMount("driver-version", "/usr/local/Ascend/driver/version.info", "File"),
    HostMount("hccn-conf", "/etc/hccn.conf", "File"),
)
"""What the runtime's own list (base.list) leaves out and the start-up checks and mode ``discover`` read."""


@dataclass(frozen=True)
class RankTableMap:
    """The ConfigMap into which the platform's controller writes the rank table."""

    prefix: str
    """Its name is this and the job's name; a controller looks for exactly that."""
    key: str
    mount: str


@dataclass(frozen=True)
class Platform:
    """How one platform names things."""

    name: str
    resource: str
    """Extended resource; ``{npu}`` is filled with the NPU type."""
    chips: frozenset[str]
    """NPU types that it can hand out."""
    ring_label_key: str | None = None
    """Label that job, pods and ConfigMap must share so that the platform's controller sees them."""
    ring_label_value: str | None = None
    """Its value, or None for the chip's own."""
    job_labels: MappingProxyType[str, str] = field(default_factory=lambda: MappingProxyType({}))
    plugins: MappingProxyType[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Volcano job plugins beyond env and svc."""
    node_type_selector: bool = False
    """Select nodes by ``accelerator-type`` and name the schedule policy: without either, MindCluster applies the rules of the 910A."""
    node_selector: MappingProxyType[str, str] = field(default_factory=lambda: MappingProxyType({}))
    visible_devices_annotation: str | None = None
    """Pod annotation in which the scheduler writes its choice; the Ascend Docker Runtime wants it as ASCEND_VISIBLE_DEVICES."""
    rank_table: RankTableMap | None = None
    """None: no controller writes rank tables here."""
    runtime_class: str | None = None


_A2: frozenset[str] = frozenset(CHIPS) - {"910A", "910C"}

PLATFORMS: MappingProxyType[str, Platform] = MappingProxyType({
    "mindcluster": Platform(
        "mindcluster", "huawei.com/Ascend910", frozenset(CHIPS),
        ring_label_key="ring-controller.atlas",
        job_labels=MappingProxyType({"fault-scheduling": "grace"}),
        node_type_selector=True,
        visible_devices_annotation="huawei.com/Ascend910",
        rank_table=RankTableMap("rings-config-", "hccl.json", "/user/serverid/devindex/config"),
    ),
    # Mainline Volcano sees a plain extended resource and writes no annotation, so ASCEND_VISIBLE_DEVICES must not be taken from one.
    "volcano": Platform("volcano", "huawei.com/Ascend910", frozenset(CHIPS)),
    "hami": Platform(
        "hami", "huawei.com/Ascend{npu}", frozenset({"910A", "910B2", "910B3", "910B4", "910B4-1", "910C"}),
        node_selector=MappingProxyType({"ascend": "on"}),
        runtime_class="ascend",
    ),
    "cce": Platform(
        "cce", "huawei.com/ascend-1980", _A2,
        ring_label_key="ring-controller.cce", ring_label_value="ascend-1980",
        plugins=MappingProxyType({"configmap1980": ("--rank-table-version=v2",)}),
        node_selector=MappingProxyType({"accelerator/huawei-npu": "ascend-1980"}),
        rank_table=RankTableMap("configmap1980-", "jobstart_hccl.json", "/user/config"),
    ),
})
"""Platforms by name; a test holds the keys equal to `PlatformName`."""


def chip_of(npu: str) -> Chip:
    """The NPU type of this name; KeyError if there is none."""
    return CHIPS[npu]


def platform_of(name: str) -> Platform:
    """The platform of this name; KeyError if there is none."""
    return PLATFORMS[name]


def node_type_of(npu: str, node_selector: dict[str, str] | None = None) -> NodeType:
    """The server type that a job gets: the one its node selector names, else the usual one of the NPU type."""
    wanted = (node_selector or {}).get("accelerator-type")
    return NODE_TYPES[wanted] if wanted in NODE_TYPES else NODE_TYPES[CHIPS[npu].node_type]
