"""What the rules see: the Volcano jobs of a file, and the ConfigMaps beside them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nanochat_npu import partial
from nanochat_npu.lint.documents import Document
from nanochat_npu.lint.findings import Finding, Fix, Path

__all__ = ["Container", "JobContext", "Task"]

NPU_PREFIX = "huawei.com/"


@dataclass(frozen=True)
class Container:
    """A container of a task, and where it stands."""

    data: dict[str, Any]
    path: Path
    position: int

    def env(self) -> dict[str, Any]:
        """Environment by name; a value that comes from elsewhere is None."""
        return {partial.text(entry, "name"): entry.get("value") for entry in partial.items(self.data, "env")}

    def env_path(self, name: str) -> Path:
        """Path of one variable."""
        for i, entry in enumerate(partial.items(self.data, "env")):
            if entry.get("name") == name:
                return (*self.path, "env", i)
        return (*self.path, "env")

    def npus(self) -> dict[str, Any]:
        """Limits (or requests) of NPUs by resource."""
        limits = {**partial.mapping(self.data, "resources", "requests"), **partial.mapping(self.data, "resources", "limits")}
        return {key: value for key, value in limits.items() if key.startswith(NPU_PREFIX) and not key.endswith(("-memory", "-core"))}


@dataclass(frozen=True)
class Task:
    """A task of a job, and where it stands."""

    data: dict[str, Any]
    path: Path

    @property
    def pod(self) -> dict[str, Any]:
        """Spec of its pods."""
        return partial.mapping(self.data, "template", "spec")

    @property
    def pod_path(self) -> Path:
        """Path of the pods' spec."""
        return (*self.path, "template", "spec")

    @property
    def replicas(self) -> int:
        """Pods."""
        return partial.integer(self.data, "replicas")

    def containers(self) -> list[Container]:
        """Its containers."""
        return [Container(data, (*self.pod_path, "containers", i), i) for i, data in enumerate(partial.items(self.pod, "containers"))]


@dataclass
class JobContext:
    """One Volcano Job of a file with its surroundings.

    Attributes:
        document: The job.
        config_maps: ConfigMaps of the same file.
        findings: What the rules have found so far.
    """

    document: Document
    config_maps: list[Document] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def job(self) -> dict[str, Any]:
        """The job's data."""
        return self.document.data

    def tasks(self) -> list[Task]:
        """Its tasks."""
        return [Task(data, ("spec", "tasks", i)) for i, data in enumerate(partial.items(self.job, "spec", "tasks"))]

    def containers(self) -> Iterator[tuple[Task, Container]]:
        """All containers with their tasks."""
        for task in self.tasks():
            for container in task.containers():
                yield task, container

    @property
    def pods(self) -> int:
        """Pods of all tasks."""
        return sum(task.replicas for task in self.tasks())

    @property
    def uses_npus(self) -> bool:
        """True if some container asks for NPUs."""
        return any(container.npus() for _task, container in self.containers())

    def add(self, rule: str, message: str, path: Path, *, hint: str = "", fix: Fix | None = None) -> None:
        """Note a finding at a path of the job."""
        line, column = self.document.where(path)
        self.findings.append(Finding(rule, message, path, self.document.index, line, column, hint, fix))
