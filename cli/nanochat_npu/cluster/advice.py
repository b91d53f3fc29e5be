"""What the cluster's own objects say about a job before it is sent: it would wait for ever, or wait for something that is missing.

Advice, not a gate: limits change while a job waits, and whoever may not read queues, nodes, quotas or claims still submits; the
note says what was not looked at. Four requests, side by side.
"""

from collections.abc import Callable
from typing import Any

from nanochat_npu import partial
from nanochat_npu.cluster.asking import Asking
from nanochat_npu.explain import Facts
from nanochat_npu.explain.facts import Explanation
from nanochat_npu.explain.waiting import (
    never_fits_selector,
    never_fits_size,
    queue_closed,
    queue_share,
    queue_too_small,
    quota_full,
    quota_too_small,
)
from nanochat_npu.i18n import _
from nanochat_npu.job_state import JobObjects
from nanochat_npu.kube import Kube
from nanochat_npu.resources import CLAIMS, NODES, QUEUES, QUOTAS

__all__ = ["advise"]

_RULES: tuple[Callable[[Facts], Explanation | None], ...] = (
    queue_closed, queue_too_small, quota_too_small, never_fits_selector, never_fits_size, quota_full, queue_share,
)


def advise(kube: Kube, namespace: str, job: dict[str, Any]) -> list[str]:
    """Sentences about what will keep the job from running; [] where nothing speaks against it."""
    asking = Asking()
    # A queue that is not there is none of our business here: the server's dry run says that better.
    queue = asking.start(_("the queue"), lambda: kube.get(QUEUES, partial.text(job, "spec", "queue") or "default"))
    nodes = asking.start(_("the nodes"), lambda: kube.list(NODES, cached=True).objects)
    claims = asking.start(_("the storage claims"), lambda: kube.list(CLAIMS, namespace).objects)
    quotas = asking.start(_("quotas"), lambda: kube.list(QUOTAS, namespace).objects)
    facts = Facts(objects=JobObjects({**job, "metadata": {**partial.mapping(job, "metadata"), "namespace": namespace}}), queue=queue(), nodes=nodes(), quotas=quotas())
    found = [
        "; ".join([answer.cause, *answer.also]) + f" → {answer.action}" for answer in (rule(facts) for rule in _RULES) if answer is not None
    ]
    found += _claims(job, claims(), namespace)
    if asking.unread:
        found.append(_("not looked at, for lack of rights: {what}").format(what=", ".join(asking.unread)))
    return found


def _claims(job: dict[str, Any], claims: list[dict[str, Any]] | None, namespace: str) -> list[str]:
    if claims is None:
        return []
    modes = {partial.text(claim, "metadata", "name"): partial.dig(claim, "spec", "accessModes") or [] for claim in claims}
    task = next(iter(partial.items(job, "spec", "tasks")), {})
    workers = partial.integer(task, "replicas")
    found = []
    for volume in partial.items(task, "template", "spec", "volumes"):
        name = partial.text(volume, "persistentVolumeClaim", "claimName")
        if not name:
            continue
        if name not in modes:
            known = ", ".join(sorted(modes)) or "-"
            found.append(_("the claim {name} does not exist in namespace {namespace}, and the job waits until it does (there are: {known})").format(
                name=name, namespace=namespace, known=known))
        elif workers > 1 and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes[name]):
            found.append(_("the claim {name} can be mounted on one node only ({modes}), and the job has {workers}").format(
                name=name, modes=", ".join(map(str, modes[name])) or "-", workers=workers))
    return found
