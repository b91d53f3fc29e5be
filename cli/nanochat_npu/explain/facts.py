"""What the rules of `explain` are handed, and what they give back."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from nanochat_npu import partial
from nanochat_npu.job_state import JobObjects, owned_pods

__all__ = ["Explanation", "Facts", "Who"]


class Who(StrEnum):
    """Who can mend it."""

    YOU = "you"
    ADMIN = "admin"
    WAIT = "wait"
    """Nobody has to do anything: it goes on by itself."""
    US = "us"
    """A bug of this project."""


@dataclass(frozen=True)
class Explanation:
    """The answer to "why".

    Attributes:
        rule: Id of the rule that found it, "X00" where none did.
        cause: One or two sentences with the numbers that matter.
        who: Who can mend it.
        action: One thing to do; a command when there is one.
        raw: The server's or the trainer's own words that it rests on.
        also: What else was noticed, most important first.
        values: Numbers and names for ``-o json``.
    """

    rule: str
    cause: str
    who: Who
    action: str
    raw: str = ""
    also: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)

    def with_also(self, *more: str) -> "Explanation":
        """The same with further observations; empty and repeated ones are dropped."""
        fresh = [text for text in more if text and text not in self.also and text != self.cause]
        return replace(self, also=(*self.also, *dict.fromkeys(fresh)))

    def as_json(self) -> dict[str, Any]:
        """The answer as an object."""
        return {
            "rule": self.rule, "cause": self.cause, "who": self.who.value, "action": self.action, "raw": self.raw,
            "also": list(self.also), "values": self.values,
        }


@dataclass(frozen=True)
class Facts:
    """Everything that was read. None means "could not be read" (no right to, or not asked), [] means "there is none".

    Attributes:
        objects: Job, PodGroup, pods and events (events of pods too).
        queue: The Volcano Queue of the job.
        podgroups: PodGroups of the same queue.
        nodes: All nodes.
        node_pods: Pods of all namespaces that hold NPUs; None where only the own namespace may be read.
        quotas: ResourceQuotas of the namespace.
        claims: Names of the PersistentVolumeClaims in the namespace.
        log_lines: Last lines of the rank that failed first.
        verdict: The trainer's ``verdict.json`` of the last attempt.
        volcano: False if the server has no Volcano.
    """

    objects: JobObjects
    queue: dict[str, Any] | None = None
    podgroups: list[dict[str, Any]] | None = None
    nodes: list[dict[str, Any]] | None = None
    node_pods: list[dict[str, Any]] | None = None
    quotas: list[dict[str, Any]] | None = None
    claims: list[str] | None = None
    log_lines: tuple[str, ...] = ()
    verdict: dict[str, Any] | None = None
    volcano: bool = True

    @property
    def job(self) -> dict[str, Any] | None:
        """The Volcano Job."""
        return self.objects.job

    @property
    def name(self) -> str:
        """Name of the job."""
        return partial.text(self.job, "metadata", "name") or "?"

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return partial.text(self.job, "metadata", "namespace") or "default"

    @property
    def pods(self) -> list[dict[str, Any]]:
        """The job's own pods."""
        return owned_pods(self.objects)

    def task(self) -> dict[str, Any]:
        """The task that holds the workers: the first one."""
        return next(iter(partial.items(self.job, "spec", "tasks")), {})

    @property
    def workers(self) -> int:
        """Pods that the gang needs."""
        tasks = partial.items(self.job, "spec", "tasks")
        return partial.integer(self.job, "spec", "minAvailable") or sum(partial.integer(task, "replicas") for task in tasks)

    def pod_template(self) -> dict[str, Any]:
        """Spec of the workers' pods."""
        return partial.mapping(self.task(), "template", "spec")

    def npu_request(self) -> tuple[str, int]:
        """(resource name, NPUs of one worker), ("", 0) for a CPU job."""
        limits = partial.mapping(self.pod_template(), "containers", 0, "resources", "limits")
        for key in limits:
            if key.startswith("huawei.com/") and not key.endswith(("-memory", "-core")):
                return key, partial.integer(limits, key)
        return "", 0

    def messages(self, *reasons: str) -> list[str]:
        """Texts of events with one of these reasons, newest first."""
        events = [event for event in self.objects.events if not reasons or partial.text(event, "reason") in reasons]
        events.sort(key=_event_time, reverse=True)
        return [partial.text(event, "message") or partial.text(event, "note") for event in events]


def _event_time(event: dict[str, Any]) -> float:
    for path in (("lastTimestamp",), ("series", "lastObservedTime"), ("eventTime",), ("firstTimestamp",), ("metadata", "creationTimestamp")):
        moment = partial.when(event, *path)
        if moment:
            return moment.timestamp()
    return 0.0
