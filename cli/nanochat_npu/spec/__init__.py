"""The spec: the one YAML file a person writes, as strict models, with the rules that hold between its fields.

No I/O, no clock, no environment: `nanochat_npu.load` reads files and variables and hands plain data to this package.
"""

from nanochat_npu.spec.blocks import (
    BudgetConfig,
    ClusterConfig,
    DriverMount,
    EstimateConfig,
    ImageConfig,
    LifecycleConfig,
    NetworkConfig,
    PriceConfig,
    RankTableConfig,
    RankTableMode,
    RankTableServer,
    ResourcesConfig,
    RetriesConfig,
    SecretRef,
    SecurityConfig,
    StorageConfig,
    TolerationConfig,
    VolumeConfig,
)
from nanochat_npu.spec.hccl import HcclConfig
from nanochat_npu.spec.model import Backend, JobSpec
from nanochat_npu.spec.platforms import (
    NODE_TYPES,
    PLATFORMS,
    NodeType,
    NpuType,
    Platform,
    PlatformProfile,
    node_type_of,
)

__all__ = [
    "NODE_TYPES", "PLATFORMS", "Backend", "BudgetConfig", "ClusterConfig", "DriverMount", "EstimateConfig", "HcclConfig", "ImageConfig", "JobSpec",
    "LifecycleConfig", "NetworkConfig", "NodeType", "NpuType", "Platform", "PlatformProfile", "PriceConfig", "RankTableConfig",
    "RankTableMode", "RankTableServer", "ResourcesConfig", "RetriesConfig", "SecretRef", "SecurityConfig", "StorageConfig",
    "TolerationConfig", "VolumeConfig", "node_type_of",
]
