"""What Volcano accepts: the rules that its server finds too late or never, checked before it sees a job, and its refusals read back.

Ids are those of the rule table (V01 to V36). Column K of it: found by a controller long after ``kubectl apply`` said "created"
(a Service cannot have that name; pods are refused), so the job hangs without a word. Column N: found by nobody. Those are
checked here, with every limit on names. For all others the server's own dry run is asked, and `read_refusal` says which field
of the spec its text is about. Agreement with 82 recorded answers of Volcano 1.15.1 is a test.

Source: volcano-sh/volcano ed72c7c, ``pkg/webhooks/admission/jobs``, ``pkg/controllers/job``, ``config/crd``.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from nanochat_npu import partial
from nanochat_npu.i18n import _

__all__ = ["ACTIONS", "Problem", "check_job", "check_sizes", "dropped_fields", "name_budget", "read_refusal", "spec_field"]

LABEL_MAX = 63
"""Longest DNS label, pod hostname and label value (RFC 1035; Kubernetes ``validation.DNS1035LabelMaxLength``)."""
ANNOTATIONS_MAX_BYTES = 256 * 1024
"""All annotations of an object (apimachinery ``TotalAnnotationSizeLimitB``)."""
CONFIGMAP_MAX_BYTES = 1024 * 1024
"""All data of a ConfigMap (``core.MaxSecretSize``)."""
OBJECT_MAX_BYTES = 1_572_864
"""One request to etcd (``--max-request-bytes``, 1.5 MiB)."""
ACTIONS = frozenset({"AbortJob", "RestartJob", "RestartTask", "RestartPod", "RestartPartition", "TerminateJob", "CompleteJob", "ResumeJob"})
"""Actions that a policy may name; the webhook checks them for events only, not for exit codes."""
_PLUGIN_FLAGS = {
    "env": frozenset[str](),
    "svc": frozenset({"publish-not-ready-addresses", "disable-network-policy", "inject-hosts-env"}),
    "ssh": frozenset({"ssh-key-file-path", "ssh-private-key", "ssh-public-key", "ssh-port"}),
    "hcclrank": frozenset({"master", "worker"}),
    "pytorch": frozenset({"master", "worker", "port", "wait-master-enabled", "wait-master-timeout", "wait-master-image"}),
}
"""Flags of the job plugins; an unknown one is only a line in the controller's log, and the plugin keeps its defaults."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a job.

    Attributes:
        rule: Id in the rule table; "" for a refusal that no rule knows.
        message: What is wrong, with the values.
        path: Where in the Volcano Job.
        field: Which field of the spec it comes from.
        hint: What to do, or "".
    """

    rule: str
    message: str
    path: str
    field: str
    hint: str = ""

    def as_json(self) -> dict[str, Any]:
        """The problem as an object for ``-o json``."""
        return {"rule": self.rule, "message": self.message, "object_path": self.path, "path": self.field, "hint": self.hint}


def check_job(job: dict[str, Any]) -> list[Problem]:
    """Everything that is wrong with a Volcano Job and that its server would find late or never; any object is accepted."""
    return [problem for check in _CHECKS for problem in check(job)]


def check_sizes(objects: Iterable[dict[str, Any]]) -> list[Problem]:
    """What is too large for the server, told with numbers before anything is sent (etcd's and Kubernetes' limits)."""
    found = []
    for obj in objects:
        name, kind = partial.text(obj, "metadata", "name"), partial.text(obj, "kind")
        packed = sum(len(str(value)) * 3 // 4 for value in partial.mapping(obj, "binaryData").values())  # counted unpacked from base64
        measured = {
            "metadata.annotations": (_text_bytes(partial.mapping(obj, "metadata", "annotations")), ANNOTATIONS_MAX_BYTES),
            "data": (_text_bytes(partial.mapping(obj, "data")) + packed, CONFIGMAP_MAX_BYTES),
            "": (len(json.dumps(obj, ensure_ascii=False, separators=(",", ":")).encode()), OBJECT_MAX_BYTES),
        }
        for path, (size, limit) in measured.items():
            if size > limit:
                found.append(Problem(
                    "V35" if path else "B59", _("{what} of {kind} {name} take {size:,} bytes; the server allows {limit:,}").format(
                        what=path or _("all parts together"), kind=kind, name=name, size=size, limit=limit),
                    path, "cluster.annotations" if path == "metadata.annotations" else "", _("shorten annotations, env and run of the spec"),
                ))
                break
    return found


def _text_bytes(values: dict[str, Any]) -> int:
    return sum(len(key.encode()) + len(str(value).encode()) for key, value in values.items())


def name_budget(replicas: int, task: str = "worker", *, svc: bool = True, volumes: bool = False) -> int:
    """The longest name that a job with so many workers may have, in characters."""
    pod = LABEL_MAX - len(f"-{task}-{max(replicas - 1, 0)}")
    # Volumes of the svc plugin are called JOB-svc, those of spec.volumes JOB-<12 random>; both must be DNS labels.
    return min(pod, LABEL_MAX - len("-svc") if svc else LABEL_MAX, LABEL_MAX - 13 if volumes else LABEL_MAX)


# ---- before the server sees it -----------------------------------------------------------------------------------------

_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def _names(job: dict[str, Any]) -> Iterator[Problem]:
    name = partial.text(job, "metadata", "name")
    plugins = partial.mapping(job, "spec", "plugins")
    makes_service = bool(plugins.keys() & {"svc", "tensorflow", "mpi", "pytorch", "ray"})
    if not (_LABEL_1035 if makes_service else _SUBDOMAIN).fullmatch(name):
        yield Problem(
            "V03" if makes_service else "V01",
            _('"{name}" cannot be the name of a Service: only a-z, 0-9 and -, starting with a letter, ending with a letter or digit').format(name=name),
            "metadata.name", "name", _("for example: {name}").format(name=proposed_name(name)),
        )
        return
    for index, task in enumerate(partial.items(job, "spec", "tasks")):
        yield from _name_length(job, name, task, index)


def _name_length(job: dict[str, Any], name: str, task: dict[str, Any], index: int) -> Iterator[Problem]:
    role, replicas = partial.text(task, "name"), partial.integer(task, "replicas")
    plugins = partial.mapping(job, "spec", "plugins")
    made = {
        f"{name}-{role}-{max(replicas - 1, index)}": ("V10", _("pod")),
        **({f"{name}-svc": ("V11", _("volume"))} if "svc" in plugins else {}),
        **({f"{name}-ssh": ("V11", _("volume"))} if "ssh" in plugins else {}),
        **({f"{name}-123456789012": ("V11", _("volume"))} if partial.items(job, "spec", "volumes") else {}),
    }
    worst = max(made, key=len)
    if len(worst) > LABEL_MAX:
        rule, what = made[worst]
        over = len(worst) - LABEL_MAX
        yield Problem(
            rule, _("the {what} name {made} has {length} characters, {over} more than the {limit} that Kubernetes allows").format(
                what=what, made=worst, length=len(worst), over=over, limit=LABEL_MAX
            ),
            "metadata.name", "name", _("use a name of at most {limit} characters").format(limit=len(name) - over),
        )


def proposed_name(name: str) -> str:
    """A legal name that still reads like the given one."""
    legal = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-") or "job"
    return legal if legal[0].isalpha() else f"job-{legal}"


def _policies(job: dict[str, Any]) -> Iterator[Problem]:
    places = [("spec.policies", partial.items(job, "spec", "policies"))]
    places += [(f"spec.tasks[{i}].policies", partial.items(task, "policies")) for i, task in enumerate(partial.items(job, "spec", "tasks"))]
    for place, policies in places:
        swallowed_by = ""
        for index, policy in enumerate(policies):
            path = f"{place}[{index}]"
            code = policy.get("exitCode")
            if code is not None:
                yield from _exit_code_policy(path, policy, code, swallowed_by)
            elif partial.text(policy, "event") in ("PodFailed", "*") or "PodFailed" in (policy.get("events") or []):
                swallowed_by = path


def _exit_code_policy(path: str, policy: dict[str, Any], code: Any, swallowed_by: str) -> Iterator[Problem]:
    action = partial.text(policy, "action")
    if action not in ACTIONS:
        yield Problem("V14", _('"{action}" is not an action of Volcano').format(action=action), f"{path}.action", "cluster.patch", _("one of: {known}").format(known=", ".join(sorted(ACTIONS))))
    if not isinstance(code, int) or not 1 <= code <= 255:
        yield Problem("V15", _("exit code {code} does not exist (1 to 255)").format(code=code), f"{path}.exitCode", "cluster.patch")
    if swallowed_by:
        yield Problem("V12", _("never reached: {other} comes first and matches every failure").format(other=swallowed_by), path, "cluster.patch", _("put exit codes before PodFailed"))


def _plugins(job: dict[str, Any]) -> Iterator[Problem]:
    tasks = {partial.text(task, "name") for task in partial.items(job, "spec", "tasks")}
    for plugin, arguments in partial.mapping(job, "spec", "plugins").items():
        path = f"spec.plugins.{plugin}"
        known = _PLUGIN_FLAGS.get(plugin)
        for argument in arguments if isinstance(arguments, list) else []:
            flag = str(argument).lstrip("-").partition("=")[0]
            if known is not None and (flag not in known or not str(argument).startswith("-")):
                yield Problem("V19", _("plugin {plugin} does not know {argument} and would silently ignore all its arguments").format(plugin=plugin, argument=argument), path, "cluster.patch")
        if plugin in ("pytorch", "mpi") and _flag(arguments, "master", "master") not in tasks:
            yield Problem("V20", _("plugin {plugin} needs a task called {task}; without it pods get no environment").format(plugin=plugin, task=_flag(arguments, "master", "master")), path, "cluster.patch")


def _flag(arguments: Any, name: str, default: str) -> str:
    for argument in arguments if isinstance(arguments, list) else []:
        key, _sign, value = str(argument).lstrip("-").partition("=")
        if key == name:
            return value
    return default


def _tasks(job: dict[str, Any]) -> Iterator[Problem]:
    for index, task in enumerate(partial.items(job, "spec", "tasks")):
        path = f"spec.tasks[{index}]"
        if partial.integer(task, "replicas") < 1:
            yield Problem("V31", _("a task without workers waits for ever"), f"{path}.replicas", "resources.nodes", _("set resources.nodes to at least 1"))
        restart = partial.text(task, "template", "spec", "restartPolicy")
        if restart != "Never":
            yield Problem(
                "B46", _("restartPolicy must be Never: with {value} a finished or failed trainer is started again inside its pod").format(value=restart or "Always"),
                f"{path}.template.spec.restartPolicy", "cluster.patch",
            )
        yield from _quantities(path, task)
    if partial.text(job, "spec", "schedulerName") not in ("volcano", ""):
        yield Problem("W8", _("only Volcano's scheduler starts all workers or none"), "spec.schedulerName", "cluster.patch", _("leave schedulerName at volcano"))


def _quantities(path: str, task: dict[str, Any]) -> Iterator[Problem]:
    for position, container in enumerate(partial.items(task, "template", "spec", "containers")):
        for kind in ("requests", "limits"):
            for resource in ("memory", "ephemeral-storage"):
                value = partial.text(container, "resources", kind, resource)
                if value.endswith("m"):
                    yield Problem(
                        "V33", _("{value} of {resource} means thousandths of a byte").format(value=value, resource=resource),
                        f"{path}.template.spec.containers[{position}].resources.{kind}.{resource}", f"resources.{resource.replace('-', '_')}",
                        _("did you mean {value}?").format(value=value[:-1] + "Mi"),
                    )


_CHECKS: tuple[Callable[[dict[str, Any]], Iterator[Problem]], ...] = (_names, _policies, _plugins, _tasks)


def dropped_fields(sent: Any, stored: Any, path: str = "") -> list[str]:
    """Paths that are in what was sent but not in what the server answered: fields that it silently dropped.

    A server before Kubernetes 1.27 prunes what its copy of the pod schema does not know, whatever is asked of it; a
    misspelt ``restartpolicy`` then means that a finished trainer starts again. Nothing of ours may be missing in the answer
    to a dry run. Empty values count as absent.
    """
    if isinstance(sent, dict):
        if not isinstance(stored, dict):
            return [path] if sent else []
        return [
            lost for key, value in sent.items() if value not in (None, {}, [], "")
            for lost in dropped_fields(value, stored.get(key), f"{path}.{key}" if path else str(key))
        ]
    if isinstance(sent, list):
        if not isinstance(stored, list) or len(stored) < len(sent):
            return [path]
        return [lost for index, value in enumerate(sent) for lost in dropped_fields(value, stored[index], f"{path}[{index}]")]
    return [path] if stored is None else []


# ---- what the server said -----------------------------------------------------------------------------------------------

_REFUSALS: tuple[tuple[str, re.Pattern[str], str], ...] = tuple((rule, re.compile(pattern), field) for rule, pattern, field in (
    ("W1", r'unknown field "(?P<path>[^"]+)"', ""),
    ("V02", r"create job with name \S+ validate failed", "name"),
    ("V09", r"create pod with name \S+ validate failed", "name"),
    ("V06", r"duplicated task name", "cluster.patch"),
    ("V07", r"'minAvailable' is greater than 'replicas' in task", "resources.nodes"),
    ("V08", r"job 'minAvailable' should not be greater than total replicas", "resources.nodes"),
    ("V12", r"must not specify event and exitCode simultaneously|either event and exitCode should be specified", "cluster.patch"),
    ("V13", r"invalid policy event", "cluster.patch"),
    ("V14", r"invalid policy action", "cluster.patch"),
    ("V15", r"0 is not a valid error code|duplicate exitCode \d+", "cluster.patch"),
    ("V16", r"duplicate event \S+\s+across different policy", "cluster.patch"),
    ("V17", r"if there's \* here, no other policy should be here", "cluster.patch"),
    ("V18", r"unable to find job plugin: (?P<value>[\w-]+)", "rank_table.mode"),
    ("V21", r"mountPath is required|duplicated mountPath|either VolumeClaim or VolumeClaimName|If you want to use an existing PVC|invalid VolumeClaimName", "storage"),
    ("V23", r'unable to find job queue: queue\S* "(?P<value>[^"]*)" not found', "cluster.queue"),
    ("V24", r"can only submit job to queue with state `Open`, queue `(?P<value>[^`]*)` status is `(?P<state>[^`]*)`", "cluster.queue"),
    ("V25", r"can not submit job to root queue|can only submit job to leaf queue, queue `(?P<value>[^`]*)`", "cluster.queue"),
    ("V26", r"doesn't form a directed acyclic graph", "cluster.patch"),
    ("V27", r"'highestTierAllowed' and 'highestTierName'", "cluster.patch"),
    ("V28", r"TotalPartitions\*PartitionSize|[Pp]artition", "cluster.patch"),
    ("V29", r"the cpu request isn't\s+an integer", "resources.cpu"),
    ("V33", r"quantities must match the regular expression", "resources"),
    ("V36", r"because it is being terminated", "cluster.namespace"),
    ("V35", r"metadata\.(?:annotations|labels): (?:Too long|Invalid value)", ""),
    ("W2", r"Duplicate value: \{?", ""),
    ("V04", r"spec\.tasks in body should have at least 1|No task specified", "resources.nodes"),
    ("V05", r"spec\.tasks\[\d+\]\.name", "cluster.patch"),
    ("V01", r"metadata\.name: Invalid value", "name"),
    ("V31", r"should be greater than or equal to 0", ""),
    ("V30", r"spec\.tasks?\[\d+\]\.template", ""),
    ("V30", r"cannot unmarshal \w+ into Go struct field (?P<path>[\w.]+)", ""),
    ("V13", r"spec\.policies\[\d+\]\.event: Unsupported value", "cluster.patch"),
    ("V21", r"spec\.volumes\[\d+\]\.mountPath: Required value", "storage"),
    ("CRD", r"is invalid: (?P<path>(?:spec|metadata)\S*): (?:Invalid|Unsupported|Required|Too long)", ""),
))
"""Rule, a fragment of the server's text, and the spec's field; where the field is "", the path in the text tells it."""

_GENERAL = frozenset({"V30", "V31", "V05", "V28", "V01", "CRD"})
"""Patterns that also match what a more exact one has found; they count only where nothing else did."""

_PATH = re.compile(r"(?:spec|metadata)(?:\.[A-Za-z]+|\[[^\]]*\])+")

_FIELDS: tuple[tuple[re.Pattern[str], str], ...] = tuple((re.compile(pattern), field) for pattern, field in (
    (r"resources\.(?:limits|requests)(?:\[|\.)?huawei", "resources.npus_per_node"),
    (r"resources\.(?:limits|requests)(?:\[|\.)?cpu", "resources.cpu"),
    (r"resources\.(?:limits|requests)(?:\[|\.)?memory", "resources.memory"),
    (r"resources\.(?:limits|requests)", "resources"),
    (r"containers\[\d+\]\.image\b", "image.ref"),
    (r"containers\[\d+\]\.env", "env"),
    (r"containers\[\d+\]\.volumeMounts|template\.spec\.volumes|spec\.volumes", "storage"),
    (r"imagePullSecrets", "image.pull_secrets"),
    (r"nodeSelector", "cluster.node_selector"),
    (r"tolerations", "cluster.tolerations"),
    (r"securityContext", "security"),
    (r"serviceAccountName", "cluster.service_account"),
    (r"runtimeClassName", "cluster.runtime_class"),
    (r"priorityClassName", "cluster.priority_class"),
    (r"terminationGracePeriodSeconds", "lifecycle.grace_period_s"),
    (r"hostNetwork", "network.host"),
    (r"annotations", "cluster.annotations"),
    (r"labels", "cluster.labels"),
    (r"spec\.queue", "cluster.queue"),
    (r"metadata\.name\b", "name"),
    (r"metadata\.namespace", "cluster.namespace"),
    (r"maxRetry", "retries"),
    (r"ttlSecondsAfterFinished", "lifecycle.ttl_s"),
    (r"replicas|minAvailable", "resources.nodes"),
))


def spec_field(path: str) -> str:
    """The field of the spec that a path of the Volcano Job comes from; ``cluster.patch`` where only a patch could have put it there."""
    return next((field for pattern, field in _FIELDS if pattern.search(path)), "cluster.patch")


def read_refusal(message: str) -> list[Problem]:
    """What a refusal of the server is about, one problem for each thing it names; never empty.

    A text that no rule knows comes back raw, under no rule, rather than as a guess.
    """
    text = " ".join(message.split())
    body = re.sub(r'^admission webhook "[^"]*" denied the request: ', "", text)
    body = re.sub(r"\s*valid events are \[.*", "", body).strip(" ;")
    found: dict[str, Problem] = {}
    for rule, pattern, field in _REFUSALS:
        match = pattern.search(body)
        if match is None or (rule in _GENERAL and found):
            continue
        named = match.groupdict()
        path = named.get("path") or next(iter(_PATH.findall(body)), "")
        found.setdefault(rule, Problem(rule, body, path, field or _field_in(path, body), _hint(rule, named)))
    return list(found.values()) or [Problem("", body or _("refused without a reason"), "", "", "")]


def _field_in(path: str, body: str) -> str:
    """The spec's field for a path; which resource a sentence on requests and limits is about stands at its end."""
    resource = re.search(r"(?:equal to|less than or equal to) (huawei\.com/\S+|cpu|memory|ephemeral-storage) limit", body)
    return spec_field(f"resources.limits.{resource[1]}" if resource else path)


def _hint(rule: str, named: dict[str, str | None]) -> str:
    value = named.get("value") or ""
    if rule == "V23":
        return _('there is no queue "{queue}"; see which there are with: kubectl get queues').format(queue=value)
    if rule == "V24":
        if not named.get("state"):
            return _("the queue was made a moment ago; try again in some seconds")
        return _('queue "{queue}" is {state}; ask an administrator to open it, or choose another: --set cluster.queue=NAME').format(queue=value, state=named["state"])
    if rule == "V25":
        return _("jobs go to a queue without children; name one of its children: --set cluster.queue=NAME")
    if rule == "V18":
        return _("this Volcano has no plugin {plugin}").format(plugin=value)
    if rule in ("V02", "V09"):
        return _("choose a shorter name: --set name=NAME")
    if rule == "W1":
        return _("the cluster's Volcano does not know this field; take it out of cluster.patch")
    return ""
