"""What a linter finds, and the catalogue of its rules."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nanochat_npu.yaml_source import dotted

__all__ = ["RULES", "Finding", "Fix", "Path", "Rule", "Severity"]

Path = tuple[str | int, ...]


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """The job cannot work, or something is silently ignored."""
    WARNING = "warning"
    """It works until something happens that will happen."""


@dataclass(frozen=True)
class Rule:
    """One rule; `why` is the sentence that a person reads under ``--explain`` and in SARIF."""

    id: str
    severity: Severity
    why: str


def _catalogue() -> dict[str, Rule]:
    error, warning = Severity.ERROR, Severity.WARNING
    rows = (
        ("NV001", error, "A name that no Service or volume can have, or that is too long with its suffixes: the job hangs without a word."),
        ("NV002", error, "restartPolicy other than Never: a finished or failed trainer is started again inside its pod, and the job never ends."),
        ("NV003", error, "minAvailable below the number of workers: HCCL waits for the missing ones."),
        ("NV004", error, "No policy for PodFailed: when one worker fails, the others wait in a collective until they time out."),
        ("NV005", warning, "No policy for PodEvicted: after an eviction the gang is never complete again."),
        ("NV006", error, "A policy that can never act: one before it matches first, or Volcano does not know its action."),
        ("NV007", warning, "RestartTask and RestartPod leave the other ranks in a broken collective."),
        ("NV008", error, "Event * matches TaskCompleted too: a job that succeeded is restarted."),
        ("NV009", warning, "maxRetry counts attempts, not retries, and 0 becomes 3."),
        ("NV010", warning, "Without --publish-not-ready-addresses host names resolve only when pods are ready, which they become after they have found each other."),
        ("NV011", error, "A plugin or plugin argument that Volcano does not know."),
        ("NV012", warning, "No queue: the job lands in default."),
        ("NV013", error, "schedulerName is not volcano: nothing keeps the gang together."),
        ("NV014", error, "The same environment variable twice: Volcano 1.10 and later refuse it, before that the last one wins."),
        ("NV015", error, "A field that Volcano does not know is dropped without a word."),
        ("NV016", error, "A task without replicas: the default is 0."),
        ("NV017", error, "Two tasks have the same name."),
        ("NV018", warning, "A constant RANK or WORLD_SIZE: every pod gets the same rank."),
        ("NV019", warning, "A short ttlSecondsAfterFinished takes pods and their logs away before anybody has looked."),
        ("NV020", error, "A quantity that Kubernetes reads otherwise than meant, or not at all."),
        ("NV021", error, "A value of env is a number or a boolean: Kubernetes wants text."),
        ("NV022", warning, "terminationGracePeriodSeconds is too short to write a checkpoint."),
        ("NV023", warning, "A secret stands in plain text."),
        ("NV024", warning, "A pipe hides the trainer's exit code, so no policy fires."),
        ("NV025", error, "exitCode policies look at the first container only, which is not the one that trains."),
        ("NV026", warning, "dependsOn and a gang wait for each other."),
        ("NA001", error, "Requests and limits of an extended resource must be equal."),
        ("NA002", error, "A number of NPUs that the scheduler never gives to one pod."),
        ("NA003", error, "Label ring-controller.atlas is missing or says 910A: the rules of another chip apply, or no rank table is made."),
        ("NA004", error, "Job, pods and rank-table ConfigMap do not carry the same ring-controller.atlas label."),
        ("NA005", error, "Neither node label accelerator-type nor annotation huawei.com/schedule_policy: the rules of the 910A apply."),
        ("NA006", error, "hostNetwork without HCCL_IF_IP: HCCL blocks until it times out."),
        ("NA007", error, "HCCL_IF_IP without hostNetwork: the address is not the pod's."),
        ("NA008", error, "ASCEND_RT_VISIBLE_DEVICES in a pod: ids are counted anew inside, and wrong ones vanish silently."),
        ("NA009", error, "A rank table mounted by subPath is never refreshed: it stays at initializing."),
        ("NA010", error, "RANK_TABLE_FILE points into a ConfigMap: every file there is a symlink, which torch_npu silently ignores."),
        ("NA011", error, "An HCCL variable outside of its range: EI0001 on every rank."),
        ("NA012", warning, "HCCL_CONNECT_TIMEOUT is left at 120 s: pods that start one after the other fail with EI0006."),
        ("NA013", warning, "/dev/shm has 64 MiB, or takes memory without a limit."),  # noqa: S108
        ("NA014", warning, "command replaces the CANN image's ENTRYPOINT, and nothing sources its set_env.sh."),
        ("NA015", error, "Pods of one job have different node selectors: rescheduling is impossible."),
        ("NA016", warning, "A fixed port under hostNetwork: a second job on the host gets it too."),
        ("NA017", error, "A user other than root or 1000 sees no NPU."),
        ("NA018", warning, "Several nodes with less than whole servers: the NPUs left over belong to nobody, and HCCL is slower."),
    )
    return {identity: Rule(identity, severity, why) for identity, severity, why in rows}


RULES: dict[str, Rule] = _catalogue()
"""Every rule by its id. Sources: the rules' own docstrings in `volcano` and `ascend`."""


@dataclass(frozen=True)
class Fix:
    """A change that mends a finding for certain.

    Attributes:
        path: Where the value is, or where it belongs.
        value: The right value.
        insert: True if the key is not there yet.
    """

    path: Path
    value: Any
    insert: bool = False


@dataclass(frozen=True)
class Finding:
    """One fault in one document of a file.

    Attributes:
        rule: Id in `RULES`.
        message: What is wrong, with the values.
        path: Where in the object.
        document: Position of the document in the file, 0-based.
        line: 1-based line in the file; `column` too.
        hint: What to do, or "".
        fix: The mend, where it is certain.
    """

    rule: str
    message: str
    path: Path
    document: int = 0
    line: int = 1
    column: int = 1
    hint: str = ""
    fix: Fix | None = None

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return RULES[self.rule].severity

    def as_json(self) -> dict[str, Any]:
        """The finding as an object."""
        return {
            "rule": self.rule, "severity": self.severity.value, "message": self.message, "path": dotted(self.path), "document": self.document,
            "line": self.line, "column": self.column, "hint": self.hint or None, "fixable": self.fix is not None,
        }
