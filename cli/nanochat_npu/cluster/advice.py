"""What the cluster's own objects say about a job before it is sent: it would wait for ever, or wait for something that is missing.

Advice, not a gate: whoever may not read queues, nodes or claims still submits, and the note says what was not looked at.
Three requests.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from nanochat_npu import partial
from nanochat_npu.errors import ClusterForbidden
from nanochat_npu.explain import Facts
from nanochat_npu.explain.facts import Explanation
from nanochat_npu.explain.waiting import never_fits_selector, never_fits_size, queue_closed, queue_too_small
from nanochat_npu.i18n import _
from nanochat_npu.job_state import JobObjects
from nanochat_npu.kube import Kube
from nanochat_npu.kube_errors import NotFoundError
from nanochat_npu.resources import CLAIMS, NODES, QUEUES

__all__ = ["advise"]

T = TypeVar("T")


def advise(kube: Kube, namespace: str, job: dict[str, Any]) -> list[str]:
    """Sentences about what will keep the job from running; [] where nothing speaks against it."""
    unread: list[str] = []

    def read(what: str, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except ClusterForbidden:
            unread.append(what)
        except NotFoundError:
            pass  # the server's dry run says that better
        return None

    queue = read(_("the queue"), lambda: kube.get(QUEUES, partial.text(job, "spec", "queue") or "default"))
    nodes = read(_("the nodes"), lambda: kube.list(NODES).objects)
    claims = read(_("the storage claims"), lambda: kube.list(CLAIMS, namespace).objects)
    facts = Facts(objects=JobObjects(job), queue=queue, nodes=nodes)
    rules: tuple[Callable[[Facts], Explanation | None], ...] = (queue_closed, queue_too_small, never_fits_selector, never_fits_size)
    found = [f"{answer.cause} → {answer.action}" for answer in (rule(facts) for rule in rules) if answer is not None]
    found += _claims(job, claims, namespace)
    if unread:
        found.append(_("not looked at, for lack of rights: {what}").format(what=", ".join(unread)))
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
