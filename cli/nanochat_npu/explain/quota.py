"""What a namespace's ResourceQuotas allow, against what the whole gang asks for. Pure.

Kubernetes counts each pod when it is created and refuses the one that goes over; Volcano has no quota in its reckoning
(volcano #1387), so a gang that is too large for a quota ends as some pods and no others, waiting.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from nanochat_npu import partial
from nanochat_npu.quantities import GIB, amount

__all__ = ["Shortage", "applies", "per_pod", "shortages", "shown"]

_COMPUTE = ("cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True)
class Shortage:
    """One limit that the gang does not fit.

    Attributes:
        quota: Name of the quota.
        key: What it limits, as the quota writes it.
        need: What the pods that are still to be created ask for.
        hard: What the quota allows over all.
        used: What is taken of it now.
        pods: How many of the gang's pods fit an empty quota.
        unsaid: True if a pod does not say how much it wants, which such a quota demands of every pod.
    """

    quota: str
    key: str
    need: Decimal
    hard: Decimal
    used: Decimal
    pods: int
    unsaid: bool = False

    @property
    def never(self) -> bool:
        """True if the gang does not fit even an empty quota."""
        return self.unsaid or self.need > self.hard


def shown(key: str, value: Decimal) -> str:
    """A quantity for people: memory and storage in GiB, everything else as a number."""
    if key.endswith(("memory", "storage")):
        return f"{value / GIB:,.2f}".rstrip("0").rstrip(".") + "Gi"
    return f"{value.normalize():,f}"


def per_pod(spec: dict[str, Any]) -> dict[str, Decimal]:
    """What one pod counts for, by the keys of a quota: its containers' sums, or a larger init container."""
    total: dict[str, Decimal] = {}
    for container in partial.items(spec, "containers"):
        for key, value in _of_container(container).items():
            total[key] = total.get(key, Decimal(0)) + value
    for container in partial.items(spec, "initContainers"):
        for key, value in _of_container(container).items():
            total[key] = max(total.get(key, Decimal(0)), value)
    return {**total, "pods": Decimal(1), "count/pods": Decimal(1)}


def _of_container(container: dict[str, Any]) -> dict[str, Decimal]:
    limits = {key: amount(value) for key, value in partial.mapping(container, "resources", "limits").items()}
    requests = {**limits, **{key: amount(value) for key, value in partial.mapping(container, "resources", "requests").items()}}
    found: dict[str, Decimal] = {}
    for key, value in requests.items():
        if value is not None:
            found[f"requests.{key}"] = value
            if key in _COMPUTE:
                found[key] = value
    for key, value in limits.items():
        if value is not None:
            found[f"limits.{key}"] = value
    return found


def applies(quota: dict[str, Any], spec: dict[str, Any]) -> bool:
    """True if a quota counts such a pod; a scope that is not known here counts as one that does not."""
    facts = {
        "Terminating": partial.integer(spec, "activeDeadlineSeconds") > 0, "NotTerminating": partial.integer(spec, "activeDeadlineSeconds") <= 0,
        "BestEffort": not _says_anything(spec), "NotBestEffort": _says_anything(spec), "PriorityClass": bool(partial.text(spec, "priorityClassName")),
    }
    scopes = partial.dig(quota, "spec", "scopes")
    if isinstance(scopes, list) and not all(facts.get(str(scope), False) for scope in scopes):
        return False
    for entry in partial.items(quota, "spec", "scopeSelector", "matchExpressions"):
        scope, operator = partial.text(entry, "scopeName"), partial.text(entry, "operator")
        values = partial.dig(entry, "values")
        listed = partial.text(spec, "priorityClassName") in values if isinstance(values, list) else False
        held = facts.get(scope, False)
        if not {"Exists": held, "DoesNotExist": not held, "In": held and listed, "NotIn": not listed}.get(operator, False):
            return False
    return True


def _says_anything(spec: dict[str, Any]) -> bool:
    return any(_of_container(container).keys() & {"cpu", "memory"} for container in partial.items(spec, "containers"))


def shortages(quotas: list[dict[str, Any]], spec: dict[str, Any], *, pods: int, standing: int = 0) -> list[Shortage]:
    """Limits that a gang does not fit, those that it never fits first.

    Args:
        quotas: ResourceQuotas of the namespace.
        spec: Pod spec of the gang's workers.
        pods: Workers of the gang.
        standing: How many of them exist, and so are in what is used already.
    """
    each = per_pod(spec)
    found: list[Shortage] = []
    for quota in quotas:
        if not applies(quota, spec):
            continue
        name = partial.text(quota, "metadata", "name")
        limits = partial.mapping(quota, "spec", "hard") or partial.mapping(quota, "status", "hard")
        for key, value in limits.items():
            hard, used = amount(value), amount(partial.dig(quota, "status", "used", key)) or Decimal(0)
            if hard is None:
                continue
            if key not in each:
                if key.removeprefix("requests.").removeprefix("limits.") in _COMPUTE:
                    found.append(Shortage(name, key, Decimal(0), hard, used, 0, unsaid=True))
                continue
            if not each[key]:
                continue
            need, missing = each[key] * pods, each[key] * max(0, pods - standing)
            if need > hard or missing > hard - used:
                found.append(Shortage(name, key, need if need > hard else missing, hard, used, int(hard // each[key])))
    return sorted(found, key=lambda gap: (not gap.never, gap.quota, gap.key))
