"""What the platforms of an Ascend cluster do differently, as data: resource names, counts, labels.

Sources: facts of Ascend's MindCluster (Ascend/mind-cluster ``ascend-for-volcano`` and ``docs/zh/scheduling``), HAMi
(Project-HAMi/ascend-device-plugin ``ascend-device-configmap.yaml``) and Huawei Cloud CCE
(support.huaweicloud.com ``umn-cluster-modelarts-0014``).
"""

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["NODE_TYPES", "PLATFORMS", "NodeType", "NpuType", "Platform", "PlatformProfile", "node_type_of", "resource_name"]


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
        NodeType("card-910b-2", "Atlas 300T A2", 2, frozenset({1, 2}), "chip2-node2"),
        NodeType("module-a3-16", "Atlas 800T A3", 16, frozenset({1, *range(2, 17, 2)}), "chip2-node16"),
        NodeType("module-a3-16-super-pod", "Atlas 900 A3 SuperPoD", 16, frozenset({1, *range(2, 17, 2)}), "chip2-node16-sp"),
    )
}
"""Counts: MindCluster's base handler for 910b-8, Box16 and A3 (``ascend-for-volcano``, 26.1.0 line)."""


def node_type_of(npu: NpuType | None, label: str | None = None) -> NodeType:
    """The server that a job runs on: the one named by `label`, else the usual one for the chip."""
    if label is not None:
        return NODE_TYPES[label]
    return NODE_TYPES["module-a3-16" if npu is NpuType.A910C else "module-910b-8"]


@dataclass(frozen=True)
class PlatformProfile:
    """How a platform wants to be asked for NPUs."""

    resource: str
    """Extended resource; ``{npu}`` is the chip where the platform names it."""
    writes_device_annotation: bool = False
    """True if the scheduler writes ``huawei.com/Ascend910`` on the pod, so that the downward API can pass it on."""
    atlas_label: str | None = None
    """Value of label ``ring-controller.atlas``, where an operator looks for it."""
    uses_schedule_policy: bool = False
    runtime_class: str | None = None
    node_selector: dict[str, str] = field(default_factory=dict)
    rank_table_operator: bool = False
    """True if something on the cluster writes the rank table for us."""


PLATFORMS: dict[Platform, PlatformProfile] = {
    Platform.MINDCLUSTER: PlatformProfile(
        "huawei.com/Ascend910", writes_device_annotation=True, atlas_label="ascend-910b", uses_schedule_policy=True, rank_table_operator=True,
    ),
    Platform.VOLCANO: PlatformProfile("huawei.com/Ascend910"),
    Platform.HAMI: PlatformProfile("huawei.com/Ascend{npu}", runtime_class="ascend", node_selector={"ascend": "on"}),
    Platform.CCE: PlatformProfile(
        "huawei.com/ascend-1980", node_selector={"accelerator/huawei-npu": "ascend-1980"}, rank_table_operator=True,
    ),
}


def resource_name(platform: Platform, npu: NpuType | None, override: str | None = None) -> str:
    """Name of the extended resource that a pod asks for."""
    return override or PLATFORMS[platform].resource.format(npu=npu or NpuType.A910B3)
