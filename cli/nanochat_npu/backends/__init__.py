"""What a backend is: the place where a job runs. Commands know this face only; ``local`` and ``volcano`` implement it.

Everything that is *shown* about a job comes from three calls that may not fail because a file is half written or an object
is half there: `Backend.get`, `Backend.jobs` and `EventSource.poll`. What they do not know they leave at None or UNKNOWN.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from nanochat_npu.errors import ClusterError
from nanochat_npu.i18n import _

if TYPE_CHECKING:
    from nanochat_npu.plan import Plan

__all__ = [
    "ACTIVE", "ENDED", "Backend", "BackendName", "EventSource", "JobState", "JobView", "LogLine", "LogQuery", "Outcome", "Submission",
    "Submitted", "WorkerView", "connect", "register",
]

BackendName = Literal["local", "volcano"]


class JobState(StrEnum):
    """How a job is, in words that mean the same on every backend."""

    PENDING = "PENDING"
    """Submitted; no rank runs yet."""
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    """Between two attempts."""
    SUSPENDED = "SUSPENDED"
    """Stopped from outside with its work saved; can go on."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    """A person stopped it."""
    UNKNOWN = "UNKNOWN"
    """Nobody is left who could say; `JobView.reason` tells why."""


ACTIVE = frozenset({JobState.PENDING, JobState.RUNNING, JobState.RESTARTING})
"""States in which processes or pods exist or are about to."""
ENDED = frozenset(JobState) - ACTIVE
"""States that only a person changes."""


@dataclass(frozen=True)
class WorkerView:
    """One launcher (local) or pod (volcano): one node of the job."""

    node: int
    name: str
    state: str
    where: str = ""
    """Process id, or name of the Kubernetes node."""
    exit_code: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class JobView:
    """What is known about a job now. Times are Unix seconds, None where unknown."""

    name: str
    backend: BackendName
    state: JobState
    phase: str = ""
    """The backend's own word, raw (Volcano's phase)."""
    reason: str = ""
    """One sentence: why it is in this state."""
    owner: str = ""
    submission_id: str = ""
    where: str = ""
    """Folder of the job, or namespace/name on a cluster."""
    attempt: int | None = None
    failures: int = 0
    preemptions: int = 0
    exit_code: int | None = None
    """The code of the first rank that failed, or 0; None while it runs."""
    created_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    world_size: int | None = None
    workers: tuple[WorkerView, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    """Facts of one backend for ``-o json`` and for sections of its own (queue, pod group, price)."""


class Outcome(StrEnum):
    """What a submission came to."""

    STARTED = "started"
    ATTACHED = "attached"
    """The same submission was running or had succeeded: nothing was started."""
    CONTINUED = "continued"
    """The same submission had ended without success: it goes on from its newest checkpoint."""
    RESTARTED = "restarted"
    """The same submission had ended before its first checkpoint: it starts again."""


@dataclass(frozen=True)
class Submission:
    """What a person asked for, ready to be sent.

    Attributes:
        plan: The spec and everything derived from it.
        spec_text: The resolved spec as YAML, kept beside the job.
        rerun: Start anew even if a job of this name exists; the old one's files are kept aside.
        origin: How it was asked for (command line), for the receipt.
    """

    plan: "Plan"
    spec_text: str
    rerun: bool = False
    origin: tuple[str, ...] = ()


@dataclass(frozen=True)
class Submitted:
    """Answer of `Backend.submit`; `notes` are sentences for the person (old run kept in …)."""

    outcome: Outcome
    job: JobView
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogQuery:
    """Which lines of a job's output: None means all ranks, the newest attempt, from the beginning."""

    rank: int | None = None
    attempt: int | None = None
    since_s: float | None = None
    """Only what was written in the last so many seconds."""
    tail: int | None = None
    """Only the last so many lines of each source."""
    follow: bool = False
    first_failure: bool = False
    """Only the rank that failed first, in the attempt asked for or else in the last one that failed."""


@dataclass(frozen=True)
class LogLine:
    """One line of output, and who wrote it ("rank 3", "launcher 0")."""

    source: str
    text: str


class EventSource(Protocol):
    """The trainer's events of one job, over all attempts, each once and in order."""

    def poll(self) -> list[dict[str, Any]]:
        """Events since the last call; an empty list where there is nothing new. Never waits longer than about a second."""
        ...

    def close(self) -> None:
        """Let go of files and connections; may be called twice."""
        ...


class Backend(Protocol):
    """Where jobs run."""

    name: BackendName
    interrupt: Literal["cancel", "detach"]
    """What Ctrl-C means to a person who follows a job that they just started: `local` stops it, a cluster's job goes on."""

    def preview(self, submission: Submission) -> dict[str, str]:
        """Exact text of everything that `submit` would use, by relative path; touches nothing."""
        ...

    def submit(self, submission: Submission) -> Submitted:
        """Start the job, or attach to it.

        Raises:
            JobExists: Another submission has this name.
        """
        ...

    def get(self, name: str) -> JobView:
        """The job as it is now.

        Raises:
            JobNotFound: There is none; the nearest name is in the hint.
        """
        ...

    def jobs(self) -> list[JobView]:
        """All jobs, newest first."""
        ...

    def events(self, name: str) -> EventSource:
        """The job's events from its beginning on."""
        ...

    def logs(self, name: str, query: LogQuery) -> Iterator[LogLine]:
        """Lines of output; with ``follow`` until the job has ended."""
        ...

    def cancel(self, name: str, *, now: bool = False) -> JobView:
        """Ask the job to stop, with a checkpoint unless `now`; returns at once with the job as it is then."""
        ...

    def delete(self, name: str) -> None:
        """Remove an ended job and what it left: folder, or objects on the cluster (never the output claim)."""
        ...


_FACTORIES: dict[str, Callable[..., Backend]] = {}


def register(name: BackendName, factory: Callable[..., Backend]) -> None:
    """Use this factory for a backend instead of ``nanochat_npu.backends.NAME.connect``."""
    _FACTORIES[name] = factory


def connect(name: BackendName, **where: Any) -> Backend:
    """The backend of this name, ready for calls.

    Args:
        name: Which one; its module's function ``connect`` makes it.
        where: What the backend needs to find its jobs (volcano: ``namespace``, ``context``); None values are left out.

    Raises:
        ClusterError: This installation cannot reach such a backend.
    """
    options = {key: value for key, value in where.items() if value is not None}
    if name in _FACTORIES:
        return _FACTORIES[name](**options)
    try:
        module = importlib.import_module(f"nanochat_npu.backends.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"nanochat_npu.backends.{name}":
            raise
        raise ClusterError(
            _("this version does not send jobs to a {name} cluster").format(name=name),
            hint=_("look at what would be sent: nanochat-npu submit SPEC --dry-run, or apply it yourself: nanochat-npu render SPEC --to out/"),
        ) from None
    backend: Backend = module.connect(**options)
    return backend
