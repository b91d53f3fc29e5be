"""Our errors. Each is built from values, and says what happened, where, and what to do.

Raised low, translated at the boundary (``raise ... from``), printed once, in `main`. The exit code belongs to the class.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

__all__ = [
    "BudgetError", "ClusterError", "ClusterForbidden", "ClusterRejected", "ClusterUnreachable", "ImageError", "JobError", "JobExists",
    "JobFailed", "JobNotFound", "JobTimeout", "JobUnschedulable", "MissingExtra", "NanochatNpuError", "PrerequisiteMissing",
    "Problem", "RenderError", "SpecConflictError", "SpecError", "SpecFieldError", "SpecSyntaxError", "UsageError",
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


_EXCERPT_WIDTH = 100
"""Columns of a source line that are shown around the wrong token."""


def _columns(text: str) -> int:
    """Columns that a text takes in a terminal; Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a spec, and the place where it stands.

    Attributes:
        path: Field, dotted ("resources.npus_per_node"); "" for the file as a whole.
        file: File, option (``--set``) or environment variable that the value came from.
        line: 1-based, like `column`; None where there is no file.
        source: Text of that line, for showing.
        width: Columns that the wrong token takes in it.
    """

    message: str
    path: str = ""
    hint: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None
    source: str | None = None
    width: int = 1

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"
        return ": ".join(part for part in (place, self.path, self.message) if part)

    def excerpt(self) -> str | None:
        """The line with a caret under the wrong token, or None where there is no file."""
        if self.source is None or self.column is None:
            return None
        start = max(0, self.column - 1 - _EXCERPT_WIDTH // 2) if len(self.source) > _EXCERPT_WIDTH else 0
        text = self.source.replace("\t", " ")[start : start + _EXCERPT_WIDTH]
        before = _columns(text[: self.column - 1 - start])
        width = max(1, min(_columns(text[self.column - 1 - start :]), self.width))
        return f"{self.line:>5} | {text}\n      | {' ' * before}^{'~' * (width - 1)}"

    def as_json(self) -> dict[str, Any]:
        """The problem as an object for ``-o json``."""
        return {"file": self.file, "line": self.line, "column": self.column, "path": self.path, "message": self.message, "hint": self.hint}


class SpecError(NanochatNpuError):
    """The spec is wrong. `problems` lists all findings, in the order of the file."""

    exit_code, kind = 3, "spec"

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None, problems: Sequence[Problem] = ()) -> None:
        self.problems = list(problems) or [Problem(message, hint=hint, file=where)]
        super().__init__(message, where=where, hint=hint, details={"errors": [problem.as_json() for problem in self.problems]})


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
