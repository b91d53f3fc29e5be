"""What the Kubernetes objects of a job say, value by value."""

from dataclasses import dataclass, field
from typing import Any

from nanochat_npu.spec.platforms import RankTableMap

__all__ = ["EnvVar", "Manifest", "Policy", "RankTableContent", "Volume", "run_map_name"]


@dataclass(frozen=True)
class EnvVar:
    """One environment variable; exactly one of value, field and secret is set. `why` becomes a comment."""

    name: str
    value: str | None = None
    field: str | None = None
    secret: tuple[str, str] | None = None
    why: str = ""


@dataclass(frozen=True)
class Volume:
    """A volume and its mount. `source` is Kubernetes' own form, by kind."""

    name: str
    kind: str
    source: dict[str, Any]
    path: str
    read_only: bool = False
    sub_path: str = ""
    why: str = ""


@dataclass(frozen=True)
class Policy:
    """What Volcano does when a pod ends with this exit code, or on this event."""

    action: str
    exit_code: int | None = None
    event: str | None = None
    why: str = ""


@dataclass(frozen=True)
class RankTableContent:
    """Content of a rank table's ConfigMap: text under ``data``, or base64 of gzip under ``binaryData``."""

    field: str
    text: str


@dataclass(frozen=True)
class Manifest:
    """The Volcano Job and its ConfigMaps, value by value; optional parts are empty, never None, so that templates can ask."""

    version: str
    spec_sha256: str
    name: str
    namespace: str
    labels: dict[str, str]
    """On the job and on its ConfigMaps."""
    job_labels: dict[str, str]
    """Further labels of the job alone."""
    pod_labels: dict[str, str]
    annotations: dict[str, str]
    pod_annotations: dict[str, str]
    queue: str
    replicas: int
    max_retry: int
    policies: tuple[Policy, ...]
    plugins: dict[str, tuple[str, ...]]
    image: str
    pull_policy: str
    env: tuple[EnvVar, ...]
    resources: dict[str, str]
    volumes: tuple[Volume, ...]
    grace_period_s: int
    host_network: bool
    ttl_s: tuple[int, ...] = ()
    deadline_s: tuple[int, ...] = ()
    """Seconds after which Kubernetes ends a pod, for a budget that the trainer itself can no longer hold."""
    priority_class: str = ""
    runtime_class: str = ""
    service_account: str = ""
    pull_secrets: tuple[str, ...] = ()
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    security: dict[str, Any] = field(default_factory=dict)
    rank_table_map: RankTableMap | None = None
    rank_table: RankTableContent | None = None
    """What the ConfigMap of the rank table holds at first."""
    pinned_nodes: tuple[str, ...] = ()
    """Nodes that a static rank table names; the workers go there and nowhere else."""
    optional_plugins: tuple[str, ...] = ()
    """Job plugins that are added at submission where the server's Volcano knows them; older ones refuse the whole job."""
    code_file: str = ""
    """File name of the trainer's wheel, where it comes by ConfigMap: in the same one, since each object takes requests of its own."""

    @property
    def run_map(self) -> str:
        """Name of the ConfigMap with run.json, entrypoint.sh and, where it comes that way, the trainer's wheel."""
        return run_map_name(self.name)

    @property
    def rank_table_key(self) -> str:
        """Name of the rank table in its ConfigMap; "" if there is none."""
        packed = ".gz" if self.rank_table and self.rank_table.field == "binaryData" else ""
        return self.rank_table_map.key + packed if self.rank_table_map else ""

    @property
    def rank_table_map_name(self) -> str:
        """Name of the ConfigMap with the rank table, which the platform's controller fills or we did; "" if there is none."""
        return self.rank_table_map.prefix + self.name if self.rank_table_map else ""


def run_map_name(job: str) -> str:
    """Name of a job's ConfigMap with run.json and entrypoint.sh."""
    return f"{job}-run"
