"""Checks of the cluster, and of what a spec names on it. What rights do not allow to see is skipped with a note."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

from nanochat_npu import partial
from nanochat_npu.doctor.checks import Check, Level, passed
from nanochat_npu.errors import ClusterError, ClusterForbidden, NanochatNpuError
from nanochat_npu.explain import Facts
from nanochat_npu.explain.fit import node_ready, selector_misses
from nanochat_npu.explain.quota import shown
from nanochat_npu.explain.waiting import queue_share, queue_too_small, quota_full, quota_too_small
from nanochat_npu.i18n import _
from nanochat_npu.job_state import JobObjects
from nanochat_npu.kube import Kube
from nanochat_npu.kube_errors import NotFoundError
from nanochat_npu.quantities import amount
from nanochat_npu.resources import (
    ACCESS_REVIEWS,
    CLAIMS,
    CRDS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    QUOTAS,
    SECRETS,
    WEBHOOKS,
)
from nanochat_npu.spec import JobSpec
from nanochat_npu.spec.platforms import resource_name

__all__ = ["NEEDED", "check_cluster"]

T = TypeVar("T")

NEEDED: tuple[tuple[str, str, str, str], ...] = (
    # verb, group, resource, what for
    ("create", "batch.volcano.sh", "jobs", "submit"),
    ("get", "batch.volcano.sh", "jobs", "status"),
    ("list", "batch.volcano.sh", "jobs", "list"),
    ("watch", "batch.volcano.sh", "jobs", "submit --follow"),
    ("patch", "batch.volcano.sh", "jobs", "cancel"),
    ("delete", "batch.volcano.sh", "jobs", "cancel --delete"),
    ("create", "bus.volcano.sh", "commands", "suspend, resume, cancel"),
    ("create", "", "configmaps", "submit"),
    ("get", "", "configmaps", "submit, collect"),
    ("patch", "", "configmaps", "submit"),
    ("delete", "", "configmaps", "submit"),
    ("get", "", "pods", "files"),
    ("list", "", "pods", "status"),
    ("watch", "", "pods", "logs --follow"),
    ("get", "", "pods/log", "logs"),
    ("create", "", "pods", "files"),
    ("get", "", "pods/exec", "files"),
    ("create", "", "pods/exec", "files"),
    ("get", "", "pods/portforward", "chat"),
    ("create", "", "pods/portforward", "chat"),
    ("delete", "", "pods", "recover"),
    ("list", "", "events", "explain"),
    ("get", "", "persistentvolumeclaims", "doctor"),
    ("list", "", "persistentvolumeclaims", "submit, explain"),
    ("get", "scheduling.volcano.sh", "podgroups", "status"),
    ("list", "scheduling.volcano.sh", "podgroups", "explain"),
    ("list", "scheduling.volcano.sh", "queues", "explain, capacity"),
    ("list", "", "nodes", "explain, capacity"),
    ("list", "", "resourcequotas", "submit, explain"),
)
"""Every right in the job's namespace that a command uses, as in the tenant role of ``k8s/rbac.yaml``, and what advice reads beyond it."""
ADVICE_ONLY = frozenset({
    ("list", "queues"), ("list", "nodes"), ("list", "podgroups"), ("get", "podgroups"), ("list", "resourcequotas"), ("list", "persistentvolumeclaims"),
    ("get", "persistentvolumeclaims"),
})
VOLCANO_CRDS = ("jobs.batch.volcano.sh", "podgroups.scheduling.volcano.sh", "queues.scheduling.volcano.sh", "commands.bus.volcano.sh")
STRICT_SINCE = (1, 27)
"""Kubernetes from which unknown fields are refused when one asks for it."""


def check_cluster(kube: Kube, namespace: str, spec: JobSpec | None = None) -> list[Check]:
    """All checks of a cluster; after the first that everything hangs on has failed, the rest is left out."""
    checks = [_context(kube)]
    version = _version(kube)
    checks.append(version)
    if version.level is Level.FAILED:
        return checks
    checks += [_volcano(kube), _webhooks(kube)]
    if not passed(checks, "volcano") and checks[-2].level is Level.FAILED:
        return checks
    checks.append(_namespace(kube, namespace))
    checks += _rights(kube, namespace)
    checks.append(_queue(kube, namespace, spec))
    checks.append(_quotas(kube, namespace, spec))
    checks += _nodes(kube, spec)
    checks.append(_operator(kube))
    checks += _claims(kube, namespace, spec)
    checks += [_pull_secret(kube, namespace, name) for name in (spec.image.pull_secrets if spec else ())]
    if spec and spec.cluster.priority_class:
        checks.append(_exists(kube, "priority", _("priority class"), lambda: kube.get(PRIORITY_CLASSES, str(spec.cluster.priority_class)), str(spec.cluster.priority_class)))
    return checks


def _ask(question: Callable[[], T]) -> tuple[T | None, NanochatNpuError | None]:
    try:
        return question(), None
    except ClusterError as error:
        return None, error


def _unseen(identity: str, title: str, error: NanochatNpuError) -> Check:
    if isinstance(error, ClusterForbidden):
        return Check(identity, title, Level.SKIPPED, _("not allowed to look: {reason}").format(reason=error.message))
    return Check(identity, title, Level.FAILED, str(error), error.hint or "")


def _context(kube: Kube) -> Check:
    shown = kube.target.context or _("inside of a pod")
    return Check("context", _("kubeconfig"), Level.OK, _("context {context}, namespace {namespace}").format(context=shown, namespace=kube.target.namespace))


def _version(kube: Kube) -> Check:
    title = _("API server")
    found, error = _ask(lambda: kube.raw("/version"))
    if error is not None:
        return Check("api", title, Level.FAILED, str(error), error.hint or "")
    text = partial.text(found, "gitVersion")
    numbers = re.match(r"v?(\d+)\.(\d+)", text)
    if numbers and (int(numbers[1]), int(numbers[2])) < STRICT_SINCE:
        return Check("api", title, Level.WARNING, _("Kubernetes {version} cannot refuse unknown fields; they are compared after a dry run").format(version=text))
    return Check("api", title, Level.OK, f"Kubernetes {text}")


def _volcano(kube: Kube) -> Check:
    title = "Volcano"
    found, error = _ask(lambda: kube.raw("/apis/batch.volcano.sh/v1alpha1"))
    if isinstance(error, NotFoundError):
        return Check("volcano", title, Level.FAILED, _("is not installed: the server does not know batch.volcano.sh"), _("an administrator installs it: k8s/README.md"))
    if error is not None:
        return _unseen("volcano", title, error)
    crds, forbidden = _ask(lambda: kube.list(CRDS).objects)
    if forbidden is not None or crds is None:
        return Check("volcano", title, Level.OK, _("its API is there: {kinds}").format(kinds=", ".join(sorted({r.get("kind", "") for r in partial.items(found, "resources")} - {""}))))
    names = {partial.text(crd, "metadata", "name") for crd in crds}
    missing = [name for name in VOLCANO_CRDS if name not in names]
    if missing:
        return Check("volcano", title, Level.FAILED, _("these definitions are missing: {names}").format(names=", ".join(missing)), _("install Volcano completely; its controller waits for all of them"))
    return Check("volcano", title, Level.OK, _("{n} definitions").format(n=sum(name.endswith(".volcano.sh") for name in names)))


def _webhooks(kube: Kube) -> Check:
    title = _("Volcano's webhooks")
    hooks, error = _ask(lambda: kube.list(WEBHOOKS).objects)
    if error is not None or hooks is None:
        return _unseen("webhooks", title, error or ClusterForbidden("?"))
    ours = [partial.text(hook, "metadata", "name") for hook in hooks if "volcano" in partial.text(hook, "metadata", "name")]
    if not ours:
        return Check("webhooks", title, Level.WARNING, _("there are none: mistakes show late, and nothing is filled in"), _("nanochat-npu checks and writes everything itself; ask whether that is meant"))
    return Check("webhooks", title, Level.OK, ", ".join(ours))


def _namespace(kube: Kube, namespace: str) -> Check:
    return _exists(kube, "namespace", _("namespace"), lambda: kube.get(NAMESPACES, namespace), namespace, ending=_("is being deleted"))


def _exists(kube: Kube, identity: str, title: str, get: Callable[[], dict[str, Any]], name: str, *, ending: str = "") -> Check:
    found, error = _ask(get)
    if isinstance(error, NotFoundError):
        return Check(identity, title, Level.FAILED, _("{name} does not exist").format(name=name), _("have it made, or name another"))
    if error is not None:
        return _unseen(identity, title, error)
    if ending and partial.text(found, "status", "phase") == "Terminating":
        return Check(identity, title, Level.FAILED, f"{name} {ending}", _("name another"))
    return Check(identity, title, Level.OK, name)


def _rights(kube: Kube, namespace: str) -> list[Check]:
    """One check for each command that would be refused; one in all if none would."""
    title, denied, unseen = _("rights"), [], False
    for verb, group, resource, use in NEEDED:
        plural, _slash, sub = resource.partition("/")
        review = {
            "apiVersion": ACCESS_REVIEWS.api_version, "kind": ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": {"verb": verb, "group": group, "resource": plural, "namespace": namespace, **({"subresource": sub} if sub else {})}},
        }
        answer, error = _ask(lambda review=review: kube.create(ACCESS_REVIEWS, review))  # type: ignore[misc]
        if error is not None:
            unseen = True
        elif partial.dig(answer, "status", "allowed") is not True:
            denied.append((verb, f"{plural}{'.' + group if group else ''}{'/' + sub if sub else ''}", plural, use))
    if unseen:
        return [Check("rights", title, Level.SKIPPED, _("the server does not say what is allowed"))]
    if not denied:
        return [Check("rights", title, Level.OK, _("all {n} that commands use in namespace {namespace}").format(n=len(NEEDED), namespace=namespace))]
    return [
        Check(
            f"rights.{verb}.{plural}", title, Level.WARNING if (verb, plural) in ADVICE_ONLY else Level.FAILED,
            _("may not {verb} {resource} in namespace {namespace}: needed by {use}").format(verb=verb, resource=name, namespace=namespace, use=use),
            _("ask for the roles in k8s/rbac.yaml"),
        )
        for verb, name, plural, use in denied
    ]


def _queue(kube: Kube, namespace: str, spec: JobSpec | None) -> Check:
    title, name = _("queue"), spec.cluster.queue if spec else "default"
    queue, error = _ask(lambda: kube.get(QUEUES, name))
    if isinstance(error, NotFoundError):
        return Check("queue", title, Level.FAILED, _("{name} does not exist").format(name=name), _("kubectl get queues shows which there are; set cluster.queue"))
    if error is not None:
        return _unseen("queue", title, error)
    state = partial.text(queue, "status", "state")
    if state != "Open":
        remedy = _("it was made a moment ago, or Volcano's controller does not run") if not state else _("ask for it to be opened, or set cluster.queue")
        return Check("queue", title, Level.FAILED, _("{name} is {state}").format(name=name, state=state or _("without a state")), remedy)
    others, _error = _ask(lambda: kube.list(QUEUES).objects)
    children = [partial.text(other, "metadata", "name") for other in others or [] if partial.text(other, "spec", "parent") == name]
    if children or name == "root":
        return Check("queue", title, Level.FAILED, _("{name} has children; jobs go to a leaf").format(name=name), _("set cluster.queue to one of: {names}").format(names=", ".join(children)))
    if spec is not None:
        facts = Facts(JobObjects(_job(spec, namespace)), queue=queue)
        for rule, level in ((queue_too_small, Level.FAILED), (queue_share, Level.WARNING)):
            answer = rule(facts)
            if answer is not None:
                return Check("queue", title, level, answer.cause, answer.action)
    return Check("queue", title, Level.OK, _("{name} is open").format(name=name))


def _quotas(kube: Kube, namespace: str, spec: JobSpec | None) -> Check:
    title = _("quotas")
    quotas, error = _ask(lambda: kube.list(QUOTAS, namespace).objects)
    if error is not None or quotas is None:
        return _unseen("quota", title, error or ClusterForbidden("?"))
    if spec is not None:
        facts = Facts(JobObjects(_job(spec, namespace)), quotas=quotas)
        for rule, level in ((quota_too_small, Level.FAILED), (quota_full, Level.WARNING)):
            answer = rule(facts)
            if answer is not None:
                return Check("quota", title, level, "; ".join([answer.cause, *answer.also]), answer.action)
    used = [
        f"{partial.text(quota, 'metadata', 'name')}: {shown(key, amount(partial.dig(quota, 'status', 'used', key)) or Decimal(0))} / {shown(key, hard)} {key}"
        for quota in quotas for key, value in partial.mapping(quota, "spec", "hard").items() if (hard := amount(value)) is not None
    ]
    return Check("quota", title, Level.OK, ", ".join(used) or _("none in namespace {namespace}").format(namespace=namespace))


def _job(spec: JobSpec, namespace: str) -> dict[str, Any]:
    """As much of the job as queues and quotas count."""
    wanted = spec.resources
    amounts = {
        "cpu": f"{wanted.cpu:g}" if wanted.cpu else None, "memory": wanted.memory, "ephemeral-storage": wanted.ephemeral_storage,
        resource_name(spec.cluster.platform, wanted.npu, spec.cluster.resource_name): str(wanted.npus_per_node) if wanted.npus_per_node else None,
    }
    pod = {
        "priorityClassName": spec.cluster.priority_class,
        "containers": [{"resources": {"limits": {name: value for name, value in amounts.items() if value is not None}}}],
    }
    return {
        "metadata": {"name": spec.name, "namespace": namespace},
        "spec": {"queue": spec.cluster.queue, "minAvailable": wanted.nodes, "tasks": [{"replicas": wanted.nodes, "template": {"spec": pod}}]},
    }


def _nodes(kube: Kube, spec: JobSpec | None) -> list[Check]:
    nodes, error = _ask(lambda: kube.list(NODES).objects)
    if error is not None or nodes is None:
        return [_unseen("nodes", _("NPU nodes"), error or ClusterForbidden("?"))]
    found: dict[str, int] = {}
    for node in nodes:
        for name, number in partial.mapping(node, "status", "allocatable").items():
            if name.startswith("huawei.com/") and not name.endswith(("-memory", "-core")) and str(number) not in ("0", ""):
                found[name] = found.get(name, 0) + 1
    if not found:
        return [Check("nodes", _("NPU nodes"), Level.FAILED, _("no node offers NPUs: the device plugin does not run, or reports none"), _("an administrator looks at ascend-device-plugin"))]
    checks = [Check("nodes", _("NPU nodes"), Level.OK, ", ".join(f"{name}: {n}" for name, n in sorted(found.items())))]
    checks.append(_drivers([node for node in nodes if any(key in partial.mapping(node, "status", "allocatable") for key in found)]))
    if spec is not None and spec.resources.npus_per_node:
        checks += _nodes_for(nodes, found, spec)
    return checks


def _drivers(nodes: list[dict[str, Any]]) -> Check:
    versions: dict[str, int] = {}
    for node in nodes:
        version = partial.label(node, "huawei.com/driver.version") or _("not labelled")
        versions[version] = versions.get(version, 0) + 1
    shown = ", ".join(f"{version} ({n})" for version, n in sorted(versions.items()))
    if len(versions) > 1:
        return Check("drivers", _("NPU drivers"), Level.WARNING, _("nodes differ: {versions}").format(versions=shown), _("a job over nodes with different drivers may fail with EI0008"))
    return Check("drivers", _("NPU drivers"), Level.OK, shown)


def _nodes_for(nodes: list[dict[str, Any]], found: dict[str, int], spec: JobSpec) -> list[Check]:
    resource = resource_name(spec.cluster.platform, spec.resources.npu, spec.cluster.resource_name)
    title = _("nodes for this spec")
    if resource not in found:
        return [Check("fit", title, Level.FAILED, _("no node offers {resource}; there is {found}").format(resource=resource, found=", ".join(sorted(found))), _("set cluster.platform or cluster.resource_name"))]
    selector = dict(spec.cluster.node_selector)
    ready = [node for node in nodes if node_ready(node) and partial.integer(node, "status", "allocatable", resource) >= spec.resources.npus_per_node]
    matching = [node for node in ready if not selector_misses(node, selector)]
    if len(matching) < spec.resources.nodes:
        return [Check("fit", title, Level.FAILED, _("{n} ready nodes have {npus} NPUs and the labels that are asked for; {wanted} are needed").format(
            n=len(matching), npus=spec.resources.npus_per_node, wanted=spec.resources.nodes), "nanochat-npu capacity")]
    return [Check("fit", title, Level.OK, _("{n} of {wanted} needed").format(n=len(matching), wanted=spec.resources.nodes))]


def _operator(kube: Kube) -> Check:
    title = _("rank-table operator")
    pods, error = _ask(lambda: kube.list(PODS).objects)
    if error is not None or pods is None:
        return _unseen("operator", title, error or ClusterForbidden("?"))
    running = [pod for pod in pods if "ascend-operator" in partial.text(pod, "metadata", "name") and partial.text(pod, "status", "phase") == "Running"]
    if running:
        return Check("operator", title, Level.OK, _("ascend-operator runs in {namespace}").format(namespace=partial.text(running[0], "metadata", "namespace")))
    return Check("operator", title, Level.OK, _("no ascend-operator: rank_table.mode operator cannot be used, the others can"))


def _claims(kube: Kube, namespace: str, spec: JobSpec | None) -> list[Check]:
    if spec is None:
        return []
    wanted = {name: volume for name, volume in (("output", spec.storage.output), ("data", spec.storage.data)) if volume is not None and volume.claim}
    checks = []
    for use, volume in wanted.items():
        name, title = str(volume.claim), _("storage.{use}").format(use=use)
        claim, error = _ask(lambda name=name: kube.get(CLAIMS, name, namespace))  # type: ignore[misc]
        if isinstance(error, NotFoundError):
            checks.append(Check(f"claim.{use}", title, Level.FAILED, _("claim {name} does not exist in namespace {namespace}").format(name=name, namespace=namespace), _("have it made: k8s/storage.yaml")))
        elif error is not None:
            checks.append(_unseen(f"claim.{use}", title, error))
        else:
            checks.append(_claim(use, title, name, claim or {}, spec))
    return checks


PULL_SECRET_TYPES = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")
"""What the kubelet takes a login from; it passes over a secret of any other type without a word."""


def _pull_secret(kube: Kube, namespace: str, name: str) -> Check:
    identity, title = f"pull_secret.{name}", _("image pull secret")
    secret, error = _ask(lambda: kube.get(SECRETS, name, namespace))
    if isinstance(error, NotFoundError):
        return Check(identity, title, Level.FAILED, _("{name} does not exist in namespace {namespace}").format(name=name, namespace=namespace), _(
            "make it there: kubectl -n {namespace} create secret docker-registry {name} --docker-server=…").format(name=name, namespace=namespace))
    if error is not None:
        return _unseen(identity, title, error)
    kind = partial.text(secret, "type")
    if kind not in PULL_SECRET_TYPES:
        return Check(identity, title, Level.FAILED, _("{name} is of type {kind}; images are pulled with type {wanted} only").format(
            name=name, kind=kind or "Opaque", wanted=PULL_SECRET_TYPES[0]), _("make it with kubectl create secret docker-registry"))
    return Check(identity, title, Level.OK, f"{name} ({kind})")


def _claim(use: str, title: str, name: str, claim: dict[str, Any], spec: JobSpec) -> Check:
    modes = [str(mode) for mode in partial.dig(claim, "spec", "accessModes") or []]
    phase = partial.text(claim, "status", "phase")
    if spec.resources.nodes > 1 and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes):
        return Check(f"claim.{use}", title, Level.FAILED, _("{name} can be used on one node only ({modes})").format(name=name, modes=", ".join(modes)), _("use a claim with ReadWriteMany"))
    if phase != "Bound":
        return Check(f"claim.{use}", title, Level.WARNING, _("{name} is {phase}").format(name=name, phase=phase or "?"), _("it is bound when the first pod uses it, or there is no volume for it"))
    return Check(f"claim.{use}", title, Level.OK, f"{name} ({', '.join(modes)})")
