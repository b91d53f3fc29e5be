"""The blocks of the spec around ``run``: where and how a job runs. Defaults are written once, here, with unit and reason."""

import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from nanochat_npu.spec.platforms import NpuType, Platform
from nanochat_npu.spec.types import (
    AbsolutePath,
    Cores,
    DnsLabel,
    DnsSubdomain,
    ImageRef,
    LabelValue,
    Port,
    PositiveFloat,
    PositiveInt,
    QuantityText,
    Strict,
)

__all__ = [
    "BudgetConfig", "ClusterConfig", "DriverMount", "EstimateConfig", "ImageConfig", "KnownSet", "LifecycleConfig", "MirrorsConfig", "NetworkConfig", "PriceConfig", "RankTableConfig",
    "RankTableMode", "RankTableServer", "ResourcesConfig", "RetriesConfig", "SecretRef", "SecurityConfig", "StorageConfig", "TolerationConfig",
    "VolumeConfig",
]


class ResourcesConfig(Strict):
    """What the job takes: nodes, NPUs, host memory."""

    nodes: PositiveInt = Field(1, description="Servers; one worker each. On backend local: simulated nodes.")
    npus_per_node: Annotated[int, Field(ge=0)] = Field(1, description="NPUs, and ranks, of one node; 0 = a CPU job of one rank per node.")
    npu: NpuType | None = Field(None, description="Chip. Null on a computer without NPUs.")
    cpu: Cores | None = Field(None, description="CPU cores of one worker, request = limit; null = not limited.")
    memory: QuantityText | None = Field(None, description="Host memory of one worker, request = limit; null = not limited.")
    shm: QuantityText = Field("16Gi", description="Shared memory of one worker (an emptyDir in memory; counts towards memory).")
    ephemeral_storage: QuantityText | None = Field(None, description="Scratch disk of one worker.")


class MirrorsConfig(Strict):
    """Where a build fetches from, where the usual hosts are slow or out of reach."""

    pip: str | None = Field(None, description="Python package index.")
    pip_torch: str | None = Field(None, description="Index that has CPU builds of torch (x86 needs one).")
    apt: str | None = Field(None, description="Mirror of the distribution's packages.")
    registry: str | None = Field(None, description="Registry to take the CANN base image from.")
    proxy: str | None = Field(None, description="http(s) proxy, at build time only.")


class KnownSet(Strict):
    """Versions that somebody knows to work together, over the built-in table (``nanochat-npu image matrix``)."""

    torch_npu: str
    cann: str
    python: str


class ImageConfig(Strict):
    """The container image: one that we describe and build, or one that somebody else made."""

    ref: ImageRef | None = Field(None, description="An image you did not build: registry/repository:tag or @sha256:digest. Then nothing is built.")
    code: Literal["image", "configmap"] = Field("image", description="Where nanochat comes from: baked in, or our wheel in a ConfigMap, over any image with torch_npu.")
    base: ImageRef | None = Field(None, description="Base image; default: the official CANN image for cann, os, python and the chip.")
    base_has_torch: bool = Field(False, description="The base image brings torch and torch_npu (an official torch-npu image, for example).")
    cann: Annotated[str, Field(pattern=r"^\d+\.\d+(\.\d+|\.[Rr][Cc]\d+)(\.[a-z]+\.?\d+)?$")] = Field("9.1.0", description="CANN of the base image.")
    torch_npu: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+(\.post\d+|rc\d+)?$")] = Field("2.12.0", description="Exact torch_npu; its .postN is the pairing with CANN.")
    python: Annotated[str, Field(pattern=r"^3\.\d+$")] = Field("3.12", description="Python of the base image.")
    os: Literal["ubuntu22.04", "openeuler24.03"] = "ubuntu22.04"
    packages: AbsolutePath | None = Field(
        None, description="Folder on a volume with the trainer's Python packages (nanochat-npu image packages), for code: configmap."
    )
    arch: Literal["arm64", "amd64"] = Field("arm64", description="CPU architecture of the NPU servers.")
    registry: str | None = Field(None, description="Where a built image is pushed: registry.example.com/project.")
    repository: str = Field("nanochat-npu", description="Image name below registry.")
    plain_http: bool = Field(False, description="The registry has no TLS.")
    tag: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")] | None = Field(None, description="Default: derived from what goes into the image.")
    known_sets: list[KnownSet] = Field(default_factory=list, description="Further sets of versions that are known to work here.")
    wheelhouse: str | None = Field(None, description="Folder of wheels to install from, without a network.")
    mirrors: MirrorsConfig = Field(default_factory=MirrorsConfig)
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    pull_secrets: list[DnsSubdomain] = Field(default_factory=list, description="Secrets (dockerconfigjson) that pulling needs.")


class TolerationConfig(Strict):
    """A taint that the workers tolerate (Kubernetes' own words)."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class DriverMount(StrEnum):
    """How the host's NPU driver gets into the container."""

    RUNTIME = "runtime"
    """Ascend Docker Runtime does it; files it leaves out (hccn.conf, version.info) are absent."""
    HOSTPATH = "hostpath"
    """We mount the driver, npu-smi, dcmi and hccn.conf from the host, read-only."""




class ClusterConfig(Strict):
    """The cluster a job is sent to (backend volcano)."""

    context: str | None = Field(None, description="kubeconfig context; default: the current one.")
    namespace: DnsLabel = "default"
    queue: DnsSubdomain = "default"
    platform: Platform = Field(Platform.MINDCLUSTER, description="Who hands out NPUs: mindcluster, volcano, hami or cce.")
    node_type: Literal["module-910b-8", "module-910b-16", "card-910b-2", "module-a3-16", "module-a3-16-super-pod"] | None = Field(
        None, description="Value of node label accelerator-type; default: module-910b-8, for 910C module-a3-16."
    )
    resource_name: str | None = Field(None, description="Extended resource to ask for; default: the platform's.")
    priority_class: DnsSubdomain | None = None
    service_account: DnsSubdomain | None = None
    runtime_class: DnsSubdomain | None = Field(None, description="Default: the platform's.")
    driver_mount: DriverMount = DriverMount.RUNTIME
    node_selector: dict[str, LabelValue] = Field(default_factory=dict)
    tolerations: list[TolerationConfig] = Field(default_factory=list)
    labels: dict[str, LabelValue] = Field(default_factory=dict, description="Further labels on everything that is made.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Further annotations on the job and its pods.")
    domain: DnsSubdomain = Field("cluster.local", description="DNS domain of the cluster.")
    patch: dict[str, Any] = Field(
        default_factory=dict, description="Merged into the rendered Volcano Job last, for what we do not know (maps merge, null deletes, lists by name)."
    )


class RankTableMode(StrEnum):
    """Where HCCL learns which rank sits where."""

    NEGOTIATE = "negotiate"
    """No table: torch_npu negotiates through rank 0."""
    OPERATOR = "operator"
    """MindCluster's operator (or CCE) writes it; the entrypoint waits for it."""
    STATIC = "static"
    """From `servers` below; needs whole, pinned nodes."""
    DISCOVER = "discover"
    """Workers exchange their /etc/hccn.conf addresses and rank 0 builds it; needs driver_mount hostpath."""


class RankTableServer(Strict):
    """One server of a static rank table."""

    node: DnsSubdomain = Field(description="Name of the Kubernetes node; a worker is pinned to it.")
    device_ips: list[str] = Field(description="RoCE address of each NPU, in order of device id (address_N in /etc/hccn.conf).")
    server_id: Annotated[str, Field(max_length=64)] | None = Field(None, description="Default: node.")


class RankTableConfig(Strict):
    """How the HCCL rank table comes to be."""

    mode: RankTableMode = RankTableMode.NEGOTIATE
    timeout_s: PositiveInt = Field(600, description="Wait for peers and for the table; then NOT_READY (75).")
    servers: list[RankTableServer] = Field(default_factory=list, description="Mode static only.")


class NetworkConfig(Strict):
    """How workers reach each other; NPU traffic has its own NICs."""

    host: bool = Field(False, description="hostNetwork. Sets HCCL_IF_IP, which must not be set otherwise.")
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,15}$")] | None = Field("eth0", description="NIC of torch's store and of HCCL's negotiation.")
    master_port: Port | None = Field(
        None, description="Port of torch's store on worker 0. Default: 29500; with host networking one that follows from the job's name."
    )


class VolumeConfig(Strict):
    """A persistent volume claim, or a folder of the host, mounted into every worker."""

    claim: DnsSubdomain | None = None
    host_path: AbsolutePath | None = None
    path: AbsolutePath = Field(description="Where it appears in the container.")
    sub_path: Annotated[str, Field(pattern=r"^[^/].*$")] | None = Field(None, description="Folder inside the volume.")
    read_only: bool = False


class StorageConfig(Strict):
    """Volumes. On backend local none is used."""

    output: VolumeConfig | None = Field(
        VolumeConfig(claim="nanochat-output", path="/output"), description="Jobs' folders: checkpoints, events, logs. Default: the claim that k8s/ makes."
    )
    data: VolumeConfig | None = Field(None, description="Training text; run.data.dir defaults to its path.")
    extra: dict[DnsLabel, VolumeConfig] = Field(default_factory=dict, description="Further volumes, by a name of yours.")


class SecretRef(Strict):
    """A key of a Kubernetes secret; the value never passes through us."""

    secret: DnsSubdomain
    key: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$")]


class RetriesConfig(Strict):
    """How often a job starts again. Failures and preemptions are counted apart."""

    failures: Annotated[int, Field(ge=0, le=100)] = 2
    preemptions: Annotated[int, Field(ge=0, le=1000)] = 20


class LifecycleConfig(Strict):
    """Times of a job."""

    grace_period_s: PositiveInt = Field(300, description="From SIGTERM to SIGKILL; a checkpoint of 12-20 GB on NFS takes minutes.")
    queue_timeout_s: PositiveInt | None = Field(None, description="Give up when the job has waited this long.")
    max_hours: PositiveFloat | None = Field(None, description="Wall clock of all attempts together.")
    ttl_s: Annotated[int, Field(ge=0)] | None = Field(604_800, description="A finished job is deleted from the cluster after this; its files stay.")


class SecurityConfig(Strict):
    """Whom the containers run as."""

    run_as_user: Annotated[int, Field(ge=0)] = Field(0, description="NPU device nodes belong to 1000 (HwHiAiUser); only 0 and 1000 can open them.")
    run_as_group: Annotated[int, Field(ge=0)] | None = None
    fs_group: Annotated[int, Field(ge=0)] | None = Field(None, description="Group that owns the volumes.")


class PriceConfig(Strict):
    """What an NPU costs, and who says so."""

    per_npu_hour: Annotated[float, Field(ge=0)] = Field(description="Price of one NPU for one hour, in currency.")
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "CNY"
    source: str = Field(description="Where the figure comes from; printed beside every total.")
    date: datetime.date = Field(description="When it was true.")
    low: Annotated[float, Field(ge=0)] | None = Field(None, description="Lowest price that may be charged, where it is not agreed.")
    high: Annotated[float, Field(ge=0)] | None = Field(None, description="Highest price that may be charged.")
    bill: Literal["auto", "npus", "nodes"] = Field("auto", description="What is paid for: the NPUs asked for, or whole nodes; auto: whole nodes for jobs over several.")
    storage_gb_month: Annotated[float, Field(ge=0)] | None = Field(None, description="Price of a GB for a month; adds a line for the checkpoints kept.")
    per_kwh: Annotated[float, Field(ge=0)] | None = Field(None, description="Price of electricity; adds a line. For owned servers, beside per_npu_hour: 0.")
    pue: Annotated[float, Field(ge=1)] = Field(1.3, description="Power of the building over power of the servers.")
    host_frac: Annotated[float, Field(ge=0)] = Field(0.4, description="Power of the host's share over power of the NPU.")


class BudgetConfig(Strict):
    """What a job may cost at most."""

    max_total: PositiveFloat | None = Field(None, description="In price.currency.")
    max_hours: PositiveFloat | None = Field(None, description="Wall clock of all attempts together.")
    on_limit: Literal["refuse", "checkpoint_and_stop"] = Field(
        "checkpoint_and_stop", description="Both refuse a job whose estimate exceeds the budget; checkpoint_and_stop also ends one that has spent it."
    )
    basis: Literal["p50", "p90"] = Field("p90", description="Which estimate is held against the limit before submission.")


class EstimateConfig(Strict):
    """What the estimate cannot know. The job itself does not depend on it."""

    stack: Literal["auto", "eager", "fused", "graph", "unknown"] = Field(
        "auto", description="How forward and backward run on the NPU; auto: eager, graph with run.compile. unknown: a range and no point."
    )
    image_gb: PositiveFloat = Field(8.0, description="Compressed size of the image.")
    pull_gb_per_s: PositiveFloat = Field(0.1, description="Registry to node.")
    storage_gb_per_s: PositiveFloat = Field(0.5, description="Writing checkpoints to the output volume.")
    download_gb_per_s: PositiveFloat = Field(0.05, description="Fetching data shards.")
    start_s: PositiveFloat | None = Field(None, description="Processes, devices, HCCL and first step; default: 120 on NPUs.")
