"""Our errors. Each is built from values, and says what happened, where, and what to do.

Raised low, translated at the boundary (``raise ... from``), printed once, in `main`. The exit code belongs to the class.
"""

from typing import Any, ClassVar

__all__ = [
    "BudgetError", "ClusterError", "ClusterForbidden", "ClusterRejected", "ClusterUnreachable", "ImageError", "JobError", "JobExists",
    "JobFailed", "JobNotFound", "JobTimeout", "JobUnschedulable", "MissingExtra", "NanochatNpuError", "PrerequisiteMissing",
    "RenderError", "SpecConflictError", "SpecError", "SpecFieldError", "SpecSyntaxError", "UsageError",
]


class NanochatNpuError(Exception):
    """Base of everything that we report to a person without a traceback.

    Args:
        message: What happened, one sentence, with the values that matter.
        where: File, field, object or command that it concerns ("job.yaml:14:3", "queue research").
        hint: What to do about it; a command when there is one.
        details: Values for ``-o json``.
    """

    exit_code: ClassVar[int] = 1
    kind: ClassVar[str] = "error"

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        self.details = details or {}

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def as_json(self) -> dict[str, Any]:
        """The error as an object for ``-o json``."""
        return {"kind": self.kind, "message": self.message, "where": self.where, "hint": self.hint, **self.details}


class UsageError(NanochatNpuError):
    """Options that do not go together, or an argument that cannot be understood."""

    exit_code, kind = 2, "usage"


class MissingExtra(UsageError):
    """A part of the installation is missing, for example extra ``train``."""

    kind = "missing_extra"


class SpecError(NanochatNpuError):
    """The spec is wrong. `problems` lists all findings, each with line, column, path, message and hint."""

    exit_code, kind = 3, "spec"

    def __init__(
        self, message: str, *, where: str | None = None, hint: str | None = None, problems: list[dict[str, Any]] | None = None
    ) -> None:
        super().__init__(message, where=where, hint=hint, details={"errors": problems or []})
        self.problems = problems or []


class SpecSyntaxError(SpecError):
    """The file is not YAML, or not YAML that we accept."""

    kind = "spec_syntax"


class SpecFieldError(SpecError):
    """Fields are unknown, missing or of the wrong type."""

    kind = "spec_field"


class SpecConflictError(SpecError):
    """Fields are right one by one, but not together."""

    kind = "spec_conflict"


class RenderError(NanochatNpuError):
    """A template could not be filled in, or what came out is not what the plan says."""

    exit_code, kind = 4, "render"


class ImageError(NanochatNpuError):
    """An image cannot be described, built, pushed or found."""

    exit_code, kind = 5, "image"


class ClusterError(NanochatNpuError):
    """Something about the cluster, or about the folder of local jobs."""

    exit_code, kind = 6, "cluster"


class ClusterUnreachable(ClusterError):
    """No answer from the API server."""

    kind = "cluster_unreachable"


class ClusterForbidden(ClusterError):
    """The server refuses: verb, resource, namespace and user are in the message."""

    kind = "cluster_forbidden"


class ClusterRejected(ClusterError):
    """The server read the object and said no."""

    kind = "cluster_rejected"


class PrerequisiteMissing(ClusterError):
    """A CRD, queue, claim, secret or namespace does not exist."""

    kind = "prerequisite_missing"


class JobExists(ClusterError):
    """Another submission already has this name."""

    kind = "job_exists"


class JobNotFound(ClusterError):
    """No job of this name."""

    kind = "job_not_found"


class JobError(NanochatNpuError):
    """The job itself ended badly, or cannot run."""

    exit_code, kind = 7, "job"


class JobFailed(JobError):
    """The job ended with a failure."""

    kind = "job_failed"


class JobUnschedulable(JobError):
    """The job can never be scheduled as it stands."""

    kind = "job_unschedulable"


class BudgetError(NanochatNpuError):
    """The plan costs more than the spec allows."""

    exit_code, kind = 8, "budget"


class JobTimeout(NanochatNpuError):
    """Waiting took longer than ``--wait-timeout``; the job goes on."""

    exit_code, kind = 124, "timeout"
