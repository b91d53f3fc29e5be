"""The root of the spec."""

from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field

from nanochat.contract import RunConfig
from nanochat_npu.spec.blocks import (
    BudgetConfig,
    ClusterConfig,
    EstimateConfig,
    ImageConfig,
    LifecycleConfig,
    NetworkConfig,
    PriceConfig,
    RankTableConfig,
    ResourcesConfig,
    RetriesConfig,
    SecretRef,
    SecurityConfig,
    StorageConfig,
)
from nanochat_npu.spec.hccl import HcclConfig
from nanochat_npu.spec.types import EnvName, JobName, LabelValue, Strict

__all__ = ["Backend", "JobSpec"]


class Backend(StrEnum):
    """Where a job runs."""

    LOCAL = "local"
    """Processes on this computer, on its NPUs if there are any."""
    VOLCANO = "volcano"
    """A Volcano Job on a Kubernetes cluster."""


class JobSpec(Strict):
    """Everything a person says about a job. Unknown keys are errors."""

    model_config = ConfigDict(title="nanochat-npu job spec")

    spec_version: Literal[1] = Field(1, description="Version of this format.")
    name: JobName = Field(description="Name of the job; unique per namespace, and its identity.")
    owner: LabelValue = Field("", description="Who runs it; default: the local user.")
    backend: Backend = Backend.LOCAL
    run: RunConfig = Field(default_factory=RunConfig, description="What runs; the trainer reads this part.")
    resources: ResourcesConfig = Field(default_factory=ResourcesConfig)
    image: ImageConfig = Field(default_factory=ImageConfig)
    cluster: ClusterConfig = Field(default_factory=ClusterConfig)
    rank_table: RankTableConfig = Field(default_factory=RankTableConfig)
    network: NetworkConfig = Field(default_factory=NetworkConfig)
    hccl: HcclConfig = Field(default_factory=HcclConfig)
    env: dict[EnvName, str] = Field(default_factory=dict, description="Further environment of every rank; no secrets here.")
    storage: StorageConfig = Field(default_factory=StorageConfig)
    secrets: dict[EnvName, SecretRef] = Field(default_factory=dict, description="Environment variable -> key of a Kubernetes secret.")
    retries: RetriesConfig = Field(default_factory=RetriesConfig)
    lifecycle: LifecycleConfig = Field(default_factory=LifecycleConfig)
    security: SecurityConfig = Field(default_factory=SecurityConfig)
    price: PriceConfig | None = None
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    estimate: EstimateConfig = Field(default_factory=EstimateConfig)

    @property
    def ranks_per_node(self) -> int:
        """Processes of one node: one per NPU, one for a CPU job."""
        return max(1, self.resources.npus_per_node)

    @property
    def world_size(self) -> int:
        """Ranks over all nodes."""
        return self.resources.nodes * self.ranks_per_node
