"""What an estimate is made from, as plain values: no clock, no environment, no disk."""

from dataclasses import dataclass, field
from datetime import date
from typing import Literal

from nanochat.contract import Horizon, ModelShape, RunConfig
from nanochat_npu.estimate.hardware import Stack

__all__ = ["CONVERSATION_TOKENS", "TOY_CONVERSATION_TOKENS", "Budget", "Electricity", "Inputs", "Price", "Site", "Storage"]


CONVERSATION_TOKENS = 444_071_936
"""Tokens of an epoch of the chat mixture: 847 steps of 2^19 (leideng/nanochat-ascend, d20 fine-tuning)."""
TOY_CONVERSATION_TOKENS = 400_000
"""The same of the conversations that source toy generates."""


@dataclass(frozen=True)
class Price:
    """What an NPU-hour costs. `low` and `high` bound what may be charged; both equal `likely` where the price is agreed.

    Attributes:
        likely: In `currency` per NPU and hour.
        currency: Three letters (ISO 4217).
        source: Whose figure it is.
        dated: When it held.
    """

    likely: float
    currency: str
    source: str = ""
    dated: date | None = None
    low: float | None = None
    high: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest price."""
        return self.low if self.low is not None else self.likely, self.high if self.high is not None else self.likely


@dataclass(frozen=True)
class Storage:
    """Price of keeping checkpoints, per GB and month, for `months`."""

    per_gb_month: float
    months: float = 1.0


@dataclass(frozen=True)
class Electricity:
    """Electricity of owned servers. Host share and PUE are assumptions that the spec can replace."""

    per_kwh: float
    pue: float = 1.3
    host_frac: float = 0.4


@dataclass(frozen=True)
class Budget:
    """Limits of the spec; `basis` says which quantile is held against them."""

    max_total: float | None = None
    max_hours: float | None = None
    basis: Literal["p50", "p90"] = "p50"
    on_limit: Literal["refuse", "checkpoint_and_stop"] = "checkpoint_and_stop"


@dataclass(frozen=True)
class Site:
    """What depends on the place. Every default is an assumption: no published figure exists for 910B clusters.

    Attributes:
        image_gb: Compressed size of a CANN image with torch_npu.
        pull_gb_per_s: Registry to node.
        storage_gb_per_s: One rank to the output volume.
        download_gb_per_s: Shards from their origin or mirror.
        start_s: Process start, device and HCCL initialisation, first step; None: what the chip usually takes.
        end_s: From the last line that a job writes until its processes are gone.
        detect_s: From a failure until somebody notices; collectives time out after 30 minutes by default.
        npu_mtbf_h: Geometric middle of 9,200 and 240,000 h per NPU, the two readings of what Huawei published.
    """

    image_gb: float = 8.0
    pull_gb_per_s: float = 0.1
    storage_gb_per_s: float = 0.5
    download_gb_per_s: float = 0.05
    start_s: float | None = None
    end_s: float = 0.0
    detect_s: float = 1080.0
    npu_mtbf_h: float = 47_000.0


@dataclass(frozen=True)
class Inputs:
    """A job, as the estimate sees it.

    Attributes:
        chip: Name in `hardware.CHIPS`; ``cpu`` for a job without NPUs.
        billed_per_node: NPUs that are paid for on each node (all of them where the cluster allots whole nodes).
        cores_per_rank: CPU cores of one rank; may be below 1 where ranks share cores. CPU jobs only.
        memory_bytes: What a CPU rank may use, or None where nobody said.
        load_others: Runnable threads of other work on the computer that runs the job, or None where nobody looked. CPU jobs only.
        pulls_image: False for the local backend.
        conversations_tokens: Tokens of one epoch of the fine-tuning data.
    """

    run: RunConfig
    shape: ModelShape
    horizon: Horizon
    nodes: int
    ranks_per_node: int
    chip: str
    stack: Stack = Stack.EAGER
    billed_per_node: int = 0
    cores_per_rank: float = 1.0
    memory_bytes: int | None = None
    load_others: float | None = None
    pulls_image: bool = True
    conversations_tokens: int = CONVERSATION_TOKENS
    site: Site = field(default_factory=Site)
    price: Price | None = None
    storage: Storage | None = None
    electricity: Electricity | None = None
    budget: Budget = field(default_factory=Budget)

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def billed_npus(self) -> int:
        """NPUs that are paid for while the job holds its nodes."""
        return self.nodes * self.billed_per_node
