"""Rules about Volcano and Kubernetes. Sources: volcano-sh/volcano ed72c7c (CRD, webhooks, controller) and the threads named."""

import re
from collections import Counter
from typing import Any

from nanochat_npu import partial, volcano_rules
from nanochat_npu.i18n import _
from nanochat_npu.lint.context import JobContext
from nanochat_npu.lint.findings import Fix, Path

__all__ = ["CHECKS"]

PLUGINS = frozenset({"ssh", "env", "svc", "tensorflow", "mpi", "pytorch", "hcclrank", "ray", "configmap1980"})
MIN_GRACE_S = 60
"""torch's own agent takes 30 s; a checkpoint of 12-20 GB on NFS takes minutes."""
MIN_TTL_S = 300
_SECRET = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|CREDENTIALS?)(?:$|_)", re.IGNORECASE)
_OBJECT_PATH = re.compile(r"([A-Za-z0-9_/.-]+?)(?:\[(\d+)\])?(?:\.|$)")
_RULE_OF = {"V01": "NV001", "V03": "NV001", "V10": "NV001", "V11": "NV001", "V12": "NV006", "V14": "NV006", "V15": "NV006", "V19": "NV011", "V20": "NV011", "V31": "NV016", "B46": "NV002", "V33": "NV020", "W8": "NV013"}


def shared_rules(c: JobContext) -> None:
    """Everything that we also check of our own jobs before the server sees them."""
    for problem in volcano_rules.check_job(c.job):
        path = _split(problem.path)
        fix = Fix(path, "Never", insert=not partial.text(c.job, *path)) if problem.rule == "B46" else None
        c.add(_RULE_OF.get(problem.rule, "NV006"), problem.message, path, hint=problem.hint, fix=fix)


def _split(path: str) -> Path:
    parts: list[str | int] = []
    for match in _OBJECT_PATH.finditer(path):
        if match[1]:
            parts.append(match[1])
        if match[2] is not None:
            parts.append(int(match[2]))
    return tuple(parts)


def gang(c: JobContext) -> None:
    """NV003, NV017: the whole gang or nothing."""
    names = Counter(partial.text(task.data, "name") for task in c.tasks())
    for task in c.tasks():
        name = partial.text(task.data, "name")
        if names[name] > 1:
            c.add("NV017", _("task name {name} stands {n} times").format(name=name or '""', n=names[name]), (*task.path, "name"))
        own = partial.dig(task.data, "minAvailable")
        if c.uses_npus and isinstance(own, int) and own < task.replicas:
            c.add("NV003", _("minAvailable {own} of {all} workers").format(own=own, all=task.replicas), (*task.path, "minAvailable"), fix=Fix((*task.path, "minAvailable"), task.replicas))
    wanted = partial.dig(c.job, "spec", "minAvailable")
    if not c.uses_npus or c.pods < 2:
        return
    path: Path = ("spec", "minAvailable")
    if wanted is None:
        c.add("NV003", _("minAvailable is not set; some versions default to 0").format(), ("spec",), fix=Fix(path, c.pods, insert=True))
    elif isinstance(wanted, int) and wanted < c.pods:
        c.add("NV003", _("minAvailable {own} of {all} workers").format(own=wanted, all=c.pods), path, fix=Fix(path, c.pods))


def policies(c: JobContext) -> None:
    """NV004, NV005, NV007, NV008: what happens when a pod fails (volcano #1163, #1866, #5385)."""
    listed: list[tuple[Path, dict[str, Any]]] = [(("spec", "policies", i), policy) for i, policy in enumerate(partial.items(c.job, "spec", "policies"))]
    for task in c.tasks():
        listed += [((*task.path, "policies", i), policy) for i, policy in enumerate(partial.items(task.data, "policies"))]
    events: set[str] = set()
    for path, policy in listed:
        named = {partial.text(policy, "event"), *(e for e in policy.get("events") or [] if isinstance(e, str))} - {""}
        events |= named
        action = partial.text(policy, "action")
        if "*" in named and action.startswith("Restart"):
            c.add("NV008", _("event * with {action}").format(action=action), path, hint=_("name PodFailed and PodEvicted"))
        if action in ("RestartTask", "RestartPod") and c.pods > 1:
            c.add("NV007", _("{action} restarts a part of the gang").format(action=action), (*path, "action"), fix=Fix((*path, "action"), "RestartJob"))
    if c.pods < 2:
        return
    if not events & {"PodFailed", "*"}:
        c.add("NV004", _("there is no policy for PodFailed").format(), ("spec", "policies"), hint=_("add: event PodFailed, action RestartJob"))
    if not events & {"PodEvicted", "*"}:
        c.add("NV005", _("there is no policy for PodEvicted").format(), ("spec", "policies"), hint=_("add: event PodEvicted, action RestartJob"))


def job_fields(c: JobContext) -> None:
    """NV009, NV012, NV013, NV019: fields of the job itself."""
    spec = partial.mapping(c.job, "spec")
    retry = spec.get("maxRetry")
    if retry == 0:
        c.add("NV009", _("maxRetry 0 becomes 3 attempts; one attempt is written 1"), ("spec", "maxRetry"), fix=Fix(("spec", "maxRetry"), 1))
    elif retry is None:
        c.add("NV009", _("maxRetry is not set: 3 attempts, whatever ends them"), ("spec",), hint=_("write how many attempts there may be"))
    if not spec.get("queue"):
        c.add("NV012", _("no queue is named"), ("spec",), hint=_("add queue: NAME"))
    if not spec.get("schedulerName"):
        c.add("NV013", _("schedulerName is not set; not every installation fills it in"), ("spec",), fix=Fix(("spec", "schedulerName"), "volcano", insert=True))
    ttl = spec.get("ttlSecondsAfterFinished")
    if isinstance(ttl, int) and ttl < MIN_TTL_S:
        c.add("NV019", _("after {ttl} s the job and its logs are gone").format(ttl=ttl), ("spec", "ttlSecondsAfterFinished"))
    for task in c.tasks():
        if partial.items(task.data, "dependsOn") or partial.mapping(task.data, "dependsOn"):
            c.add("NV026", _("dependsOn in a gang (volcano #2944)").format(), (*task.path, "dependsOn"))


def plugins(c: JobContext) -> None:
    """NV010, NV011: job plugins (volcano #3753)."""
    listed = partial.mapping(c.job, "spec", "plugins")
    for name in listed:
        if name not in PLUGINS:
            c.add("NV011", _("{name} is no job plugin of Volcano").format(name=name), ("spec", "plugins", name), hint=_("there are: {names}").format(names=", ".join(sorted(PLUGINS))))
    arguments = listed.get("svc")
    if isinstance(arguments, list) and c.pods > 1 and "--publish-not-ready-addresses" not in map(str, arguments):
        path = ("spec", "plugins", "svc")
        fix = Fix(path, ["--publish-not-ready-addresses"]) if not arguments else None
        c.add("NV010", _("plugin svc without --publish-not-ready-addresses"), path, fix=fix)


def environment(c: JobContext) -> None:
    """NV014, NV018, NV021, NV023: env of containers (kubernetes #14948, kubeflow/trainer #1797)."""
    for _task, container in c.containers():
        entries = partial.items(container.data, "env")
        names = Counter(partial.text(entry, "name") for entry in entries)
        for i, entry in enumerate(entries):
            name, value, path = partial.text(entry, "name"), entry.get("value"), (*container.path, "env", i)
            if names[name] > 1:
                c.add("NV014", _("{name} stands {n} times").format(name=name, n=names[name]), path)
            if value is not None and not isinstance(value, str):
                c.add("NV021", _("{name} is the {kind} {value}, not text").format(name=name, kind=_kind(value), value=value), (*path, "value"), fix=Fix((*path, "value"), c.document.raw.get((*path, "value"), str(value))))
            if name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") and value is not None and c.pods > 1:
                c.add("NV018", _("{name} is {value} in every pod").format(name=name, value=value), path, hint=_("take it out: the launcher sets it"))
            if _SECRET.search(name) and isinstance(value, str) and value:
                c.add("NV023", _("{name} is written in plain text").format(name=name), path, hint=_("use valueFrom.secretKeyRef"))


def _kind(value: Any) -> str:
    return _("boolean") if isinstance(value, bool) else _("number") if isinstance(value, (int, float)) else type(value).__name__


def unknown_fields(c: JobContext) -> None:
    """NV015: misspelt fields that the CRD drops (volcano: pruning)."""
    for place, known in _KNOWN.items():
        for path, value in _matching(c.job, place.split("."), ()):
            for key in value:
                if key not in known:
                    close = next((name for name in known if name.lower() == key.lower()), "") or _closest(key, known)
                    hint = _("did you mean {name}?").format(name=close) if close else _("the server drops it")
                    c.add("NV015", _("field {key} is not known here").format(key=key), (*path, key), hint=hint)


def _closest(key: str, known: frozenset[str]) -> str:
    import difflib

    return next(iter(difflib.get_close_matches(key, known, 1, 0.75)), "")


def _matching(value: Any, steps: list[str], path: Path) -> list[tuple[Path, dict[str, Any]]]:
    if not steps:
        return [(path, value)] if isinstance(value, dict) else []
    if steps[0] == "*":
        items = value if isinstance(value, list) else []
        return [found for i, item in enumerate(items) for found in _matching(item, steps[1:], (*path, i))]
    return _matching(value.get(steps[0]), steps[1:], (*path, steps[0])) if isinstance(value, dict) else []


_POLICY = frozenset({"action", "event", "events", "exitCode", "timeout"})
_POD = frozenset({
    "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy", "enableServiceLinks",
    "ephemeralContainers", "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers", "hostname", "imagePullSecrets", "initContainers",
    "nodeName", "nodeSelector", "os", "overhead", "preemptionPolicy", "priority", "priorityClassName", "readinessGates", "resourceClaims",
    "restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates", "securityContext", "serviceAccount", "serviceAccountName",
    "setHostnameAsFQDN", "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints",
    "volumes", "resources", "hostnameOverride",
})
_CONTAINER = frozenset({
    "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports", "readinessProbe",
    "resizePolicy", "resources", "restartPolicy", "securityContext", "startupProbe", "stdin", "stdinOnce", "terminationMessagePath",
    "terminationMessagePolicy", "tty", "volumeDevices", "volumeMounts", "workingDir", "restartPolicyRules",
})
_KNOWN: dict[str, frozenset[str]] = {
    "spec": frozenset({
        "schedulerName", "minAvailable", "volumes", "tasks", "policies", "plugins", "runningEstimate", "queue", "maxRetry",
        "ttlSecondsAfterFinished", "priorityClassName", "minSuccess", "networkTopology",
    }),
    "spec.policies.*": _POLICY,
    "spec.tasks.*": frozenset({"name", "replicas", "minAvailable", "template", "policies", "topologyPolicy", "maxRetry", "dependsOn", "partitionPolicy"}),
    "spec.tasks.*.policies.*": _POLICY,
    "spec.tasks.*.template": frozenset({"metadata", "spec"}),
    "spec.tasks.*.template.spec": _POD,
    "spec.tasks.*.template.spec.containers.*": _CONTAINER,
    "spec.tasks.*.template.spec.initContainers.*": _CONTAINER,
}
"""Fields of batch.volcano.sh/v1alpha1 (master, 1.16) and of Kubernetes' pod (1.35)."""


def quantities(c: JobContext) -> None:
    """NV020: memory as people write it."""
    pattern = re.compile(r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[kMGTPE]|m|e[0-9]+)?$")
    for _task, container in c.containers():
        for kind in ("requests", "limits"):
            for name, value in partial.mapping(container.data, "resources", kind).items():
                text = str(value)
                if not pattern.match(text):
                    right = re.sub(r"\s+|[bB]$", "", text)
                    hint = _("did you mean {value}?").format(value=right if pattern.match(right) else right[:-1] + right[-1:].upper() + "i")
                    c.add("NV020", _("{value} of {name} is no quantity").format(value=text, name=name), (*container.path, "resources", kind, name), hint=hint)


def stopping(c: JobContext) -> None:
    """NV022, NV024, NV025: does the exit code get through, and is there time for a checkpoint (mind-cluster FAQ 381)."""
    for task in c.tasks():
        grace = partial.dig(task.pod, "terminationGracePeriodSeconds")
        if c.uses_npus and (grace is None or (isinstance(grace, int) and grace < MIN_GRACE_S)):
            shown = 30 if grace is None else grace
            path = (*task.pod_path, "terminationGracePeriodSeconds")
            c.add("NV022", _("{s} s to write a checkpoint").format(s=shown), path if grace is not None else task.pod_path, fix=Fix(path, 300, insert=grace is None))
        containers = task.containers()
        trains = next((container for container in containers if container.npus()), None)
        exit_codes = any("exitCode" in p for p in (*partial.items(c.job, "spec", "policies"), *partial.items(task.data, "policies")))
        if exit_codes and trains is not None and trains.position > 0:
            c.add("NV025", _("container {name} trains, but {first} comes first").format(name=partial.text(trains.data, "name"), first=partial.text(containers[0].data, "name")), trains.path)
        for container in containers:
            script = " ".join(str(part) for key in ("command", "args") for part in (container.data.get(key) or []) if isinstance(part, str))
            if re.search(r"\|\s*tee\b", script) and "pipefail" not in script:
                c.add("NV024", _("a pipe into tee without set -o pipefail"), container.path, hint=_("begin the script with set -o pipefail"))


CHECKS = (shared_rules, gang, policies, job_fields, plugins, environment, unknown_fields, quantities, stopping)
