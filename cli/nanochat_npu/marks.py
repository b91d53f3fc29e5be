"""Labels and annotations by which a job on a cluster is found again without a receipt.

The renderer writes them, the cluster backend reads them; nobody else spells these keys. Values of labels obey Kubernetes'
rules (63 characters, no spaces); anything longer or freer is an annotation.
"""

from enum import StrEnum

__all__ = [
    "ANNOTATION_INTENT", "ANNOTATION_INTENT_BY", "ANNOTATION_PLAN", "ANNOTATION_SPEC", "ANNOTATION_SUBMISSION", "ANNOTATION_VERSION", "COMPONENT",
    "LABEL_COMPONENT", "LABEL_JOB", "LABEL_MANAGED_BY", "LABEL_OWNER", "MANAGED_BY", "Intent",
]

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "nanochat-npu"
"""Value of `LABEL_MANAGED_BY`: the selector of ``list``."""
LABEL_COMPONENT = "app.kubernetes.io/component"
COMPONENT = "trainer"
"""Value of `LABEL_COMPONENT` on a training job and its pods; helpers (the pod of ``files``) have their own."""
LABEL_JOB = "nanochat-npu/job"
"""Name of the job, on everything that belongs to it: ConfigMaps, pods, helper pods."""
LABEL_OWNER = "nanochat-npu/owner"
"""Who submitted it, as a label value; the spelling of the spec is in the plan."""

ANNOTATION_SUBMISSION = "nanochat-npu/submission-id"
"""Hash of resolved spec and image: the same id is the same submission."""
ANNOTATION_SPEC = "nanochat-npu/spec"
"""Text of the spec as it was submitted, for ``diff``, ``status`` and colleagues."""
ANNOTATION_PLAN = "nanochat-npu/plan"
"""JSON: what ``status`` and ``explain`` need of the plan (nodes, NPUs, price, claims and paths, allowed failures and preemptions)."""
ANNOTATION_VERSION = "nanochat-npu/version"
"""Version of nanochat-npu that rendered it."""
ANNOTATION_INTENT = "nanochat-npu/intent"
"""What a person asked for last; without it Volcano's Terminated cannot be told from a failure."""
ANNOTATION_INTENT_BY = "nanochat-npu/intent-by"
"""Who asked, and when: ``USER at TIME``."""


class Intent(StrEnum):
    """What a person last asked of a job on the cluster."""

    RUN = "run"
    SUSPEND = "suspend"
    CANCEL = "cancel"
