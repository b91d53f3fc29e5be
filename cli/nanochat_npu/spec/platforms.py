"""What the platforms of an Ascend cluster do differently, as data: resource names, counts, labels.

Sources: facts of Ascend's MindCluster (Ascend/mind-cluster ``ascend-for-volcano`` and ``docs/zh/scheduling``), HAMi
(Project-HAMi/ascend-device-plugin ``ascend-device-configmap.yaml``) and Huawei Cloud CCE
(support.huaweicloud.com ``umn-cluster-modelarts-0014``).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

__all__ = [
    "DRIVER_MOUNTS", "NODE_TYPES", "PLATFORMS", "HostMount", "NodeType", "NpuType", "Platform", "PlatformProfile", "RankTableMap", "node_type_of",
    "resource_name",
]


class Platform(StrEnum):
    """Who hands out NPUs on the cluster."""

    MINDCLUSTER = "mindcluster"
    """Huawei's device plugin, operator and their own build of Volcano."""
    VOLCANO = "volcano"
    """Mainline Volcano over the device plugin: NPUs are a plain extended resource."""
    HAMI = "hami"
    """Project-HAMi's device plugin: one resource name per chip."""
    CCE = "cce"
    """Huawei Cloud CCE and ModelArts Lite."""


class NpuType(StrEnum):
    """Chips of the 910B family (Atlas A2), and the A3 whose NPU is two ranks."""

    A910B1 = "910B1"
    A910B2 = "910B2"
    A910B2C = "910B2C"
    A910B3 = "910B3"
    A910B4 = "910B4"
    A910B4_1 = "910B4-1"
    A910C = "910C"
    """Atlas A3; each of its two dies is one rank, so a server has 16."""


@dataclass(frozen=True)
class NodeType:
    """A server model, by the value of its node label ``accelerator-type``."""

    label: str
    product: str
    ranks: int
    """Ranks (device ids) of one server; jobs over several nodes take whole servers."""
    counts: frozenset[int]
    """What one pod may ask for."""
    schedule_policy: str
    """Value of annotation ``huawei.com/schedule_policy``."""


NODE_TYPES: dict[str, NodeType] = {
    kind.label: kind
    for kind in (
        NodeType("module-910b-8", "Atlas 800T A2, Atlas 900 A2 PoD", 8, frozenset(range(1, 9)), "chip8-node8"),
        NodeType("module-910b-16", "Atlas 200T A2 Box16", 16, frozenset({*range(1, 9), 10, 12, 14, 16}), "chip8-node16"),
        NodeType("card-910b-2", "Atlas 300T A2", 2, frozenset({1, 2}), "chip1-node2"),
        NodeType("module-a3-16", "Atlas 800T A3", 16, frozenset({1, *range(2, 17, 2)}), "chip2-node16"),
        NodeType("module-a3-16-super-pod", "Atlas 900 A3 SuperPoD", 16, frozenset({1, *range(2, 17, 2)}), "chip2-node16-sp"),
    )
}
"""Counts: MindCluster's base handler for 910b-8, Box16 and A3 (``ascend-for-volcano``, 26.1.0 line); policies: its
``docs/zh/scheduling/06_api/01_volcano.md``, table 3."""


def node_type_of(npu: NpuType | None, label: str | None = None) -> NodeType:
    """The server that a job runs on: the one named by `label`, else the usual one for the chip."""
    if label is not None:
        return NODE_TYPES[label]
    return NODE_TYPES["module-a3-16" if npu is NpuType.A910C else "module-910b-8"]


@dataclass(frozen=True)
class HostMount:
    """A path of the host that a container needs; mounted read-only at the same path."""

    name: str
    path: str
    kind: Literal["Directory", "File"]


DRIVER_MOUNTS: tuple[HostMount, ...] = (
    HostMount("ascend-driver", "/usr/local/Ascend/driver", "Directory"),
    HostMount("dcmi", "/usr/local/dcmi", "Directory"),
    HostMount("npu-smi", "/usr/local/bin/npu-smi", "File"),
    HostMount("ascend-install-info", "/etc/ascend_install.info", "File"),
    HostMount("hccn-conf", "/etc/hccn.conf", "File"),
)
"""What a container needs from the host where no Ascend Docker Runtime adds it, and what the start-up checks read."""


@dataclass(frozen=True)
class RankTableMap:
    """The ConfigMap into which the platform's controller writes the rank table."""

    prefix: str
    """Its name is this and the job's name; the controller looks for exactly that."""
    key: str
    mount: str


@dataclass(frozen=True)
class PlatformProfile:
    """How a platform wants to be asked for NPUs."""

    resource: str
    """Extended resource; ``{npu}`` is the chip where the platform names it."""
    writes_device_annotation: bool = False
    """True if the scheduler writes ``huawei.com/Ascend910`` on the pod, so that the downward API can pass it on. Mainline
    Volcano does not: there ASCEND_VISIBLE_DEVICES must not be taken from it."""
    ring_label: tuple[str, str] | None = None
    """Label that job, pods and rank-table ConfigMap share, so that the platform's controller sees them."""
    job_labels: dict[str, str] = field(default_factory=dict)
    plugins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Volcano job plugins beyond env and svc, with their arguments."""
    uses_schedule_policy: bool = False
    """True if nodes are chosen by ``accelerator-type`` and ``huawei.com/schedule_policy``; without either, MindCluster applies the
    rules of the 910A."""
    runtime_class: str | None = None
    node_selector: dict[str, str] = field(default_factory=dict)
    rank_table: RankTableMap | None = None
    """None: nothing on the cluster writes rank tables."""
    rank_plugins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Volcano job plugins that help what writes the rank table, and that Volcano has had only since 1.12.3: each is added
    when the job is submitted, if the server's dry run accepts it."""

    @property
    def rank_table_operator(self) -> bool:
        """True if something on the cluster writes the rank table for us."""
        return self.rank_table is not None


PLATFORMS: dict[Platform, PlatformProfile] = {
    Platform.MINDCLUSTER: PlatformProfile(
        "huawei.com/Ascend910", writes_device_annotation=True, uses_schedule_policy=True,
        ring_label=("ring-controller.atlas", "ascend-910b"), job_labels={"fault-scheduling": "grace"},
        rank_table=RankTableMap("rings-config-", "hccl.json", "/user/serverid/devindex/config"), rank_plugins={"hcclrank": ()},
    ),
    Platform.VOLCANO: PlatformProfile("huawei.com/Ascend910"),
    Platform.HAMI: PlatformProfile("huawei.com/Ascend{npu}", runtime_class="ascend", node_selector={"ascend": "on"}),
    Platform.CCE: PlatformProfile(
        "huawei.com/ascend-1980", ring_label=("ring-controller.cce", "ascend-1980"), plugins={"configmap1980": ("--rank-table-version=v2",)},
        node_selector={"accelerator/huawei-npu": "ascend-1980"}, rank_table=RankTableMap("configmap1980-", "jobstart_hccl.json", "/user/config"),
    ),
}
"""Sources: mind-cluster ``ascendcommon.go`` and ascend-operator (``rings-config-``), mindxdl-deploy's 910b sample vcjobs, HAMi's
``ascend-device-configmap.yaml``, the CCE manual above. "grace": the scheduler evicts the pods of a broken node with their grace period. Volcano ``hcclrank.go``: it writes the annotation
``hccl/rankIndex`` from a pod's index in the task "worker", by which ascend-operator numbers the table's ranks."""


def resource_name(platform: Platform, npu: NpuType | None, override: str | None = None) -> str:
    """Name of the extended resource that a pod asks for."""
    return override or PLATFORMS[platform].resource.format(npu=npu or NpuType.A910B3)
