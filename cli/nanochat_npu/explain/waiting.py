"""Rules for a job that waits. Each looks for one cause and is silent where it does not see it.

The strings are those of Volcano 1.8 to 1.15, of Kubernetes 1.27 to 1.35 and of Ascend's scheduler plugin, as recorded
(``tests/recordings``) or as they stand in public threads (volcano #2285, #4446, #2814, #1387; mind-cluster's FAQ).
"""

import re
from typing import Any

from nanochat_npu import partial
from nanochat_npu.explain.facts import Explanation, Facts, Who
from nanochat_npu.explain.fit import Fit, GangFit, gang_fit, selector_mismatches
from nanochat_npu.explain.quota import Shortage, per_pod, shortages, shown
from nanochat_npu.explain.scheduler_text import NodeReasons, is_gang_text, node_reasons, origin_reason, server_message
from nanochat_npu.i18n import _, counted
from nanochat_npu.job_state import pod_state, stuck_pods
from nanochat_npu.quantities import amount

__all__ = [
    "claim_missing", "cluster_full", "container_cannot_start", "controller_silent", "dead_node", "device_plugin_refused", "fit_of",
    "job_missing", "mount_failed", "never_fits_selector", "never_fits_size", "no_volcano", "node_resources", "node_type_label",
    "plugin_error", "pods_refused", "pods_refused_by_quota", "queue_closed", "queue_full", "queue_share",
    "queue_too_small", "queued", "quota_full", "quota_too_small",
    "reserved_by_others", "starting", "taints", "unknown_text",
]

_SILENT_AFTER_S = 30.0
"""A controller that runs looks at a new job within a second."""


def no_volcano(facts: Facts) -> Explanation | None:
    """W01: the cluster has no Volcano."""
    if facts.volcano:
        return None
    return Explanation("W01", _("Volcano is not installed on this cluster: it does not know batch.volcano.sh"), Who.ADMIN, "nanochat-npu doctor")


def job_missing(facts: Facts) -> Explanation | None:
    """W02: the job is not there."""
    if facts.job is not None:
        return None
    return Explanation("W02", _("there is no such job on the cluster; it was deleted, or its time to live is over"), Who.YOU, "nanochat-npu list")


def controller_silent(facts: Facts) -> Explanation | None:
    """W03: no controller has looked at the job."""
    job = facts.job
    if partial.text(job, "status", "state", "phase") or facts.pods or facts.objects.podgroup:
        return None
    created = partial.when(job, "metadata", "creationTimestamp")
    age_s = facts.objects.now_s - created.timestamp() if facts.objects.now_s is not None and created else 0.0
    if age_s < _SILENT_AFTER_S:
        return None
    cause = _("Volcano's controller has not touched the job for {age} s: it does not run, or it looks at another scheduler's jobs").format(age=round(age_s))
    return Explanation("W03", cause, Who.ADMIN, "kubectl -n volcano-system get pods", values={"age_s": round(age_s)})


def plugin_error(facts: Facts) -> Explanation | None:
    """W04: a job plugin failed; a name that no Service can have is the usual cause (V03)."""
    for text in facts.messages("PluginError"):
        if "DNS-1035" in text:
            cause = _("the name {name} cannot be the name of a Service, so the workers get no host names and the job waits for ever").format(name=facts.name)
            return Explanation("W04", cause, Who.YOU, _("cancel it, and submit it under a name that starts with a letter and has no dot"), raw=text)
        return Explanation("W04", _("one of Volcano's job plugins failed, and the job waits for ever"), Who.ADMIN, f"nanochat-npu cancel {facts.name} --delete", raw=text)
    return None


def pods_refused_by_quota(facts: Facts) -> Explanation | None:
    """W05: a ResourceQuota lets only a part of the gang be created (volcano #1387)."""
    for event in facts.messages("FailedCreate"):
        text = server_message(event)
        match = re.search(r"exceeded quota: (?P<quota>[^,]+), requested: (?P<requested>[^,]+=\S+?)(?:,.*?)?, used: (?P<used>.+?), limited: (?P<limited>[^\"]+)", text)
        if "exceeded quota" not in text:
            continue
        values = match.groupdict() if match else {}
        need = _quota_need(facts)
        cause = _("the quota {quota} of namespace {namespace} is too small for the gang: asked {requested}, used {used}, allowed {limited}; the gang needs {need}").format(
            quota=values.get("quota", "?"), namespace=facts.namespace, requested=values.get("requested", "?"), used=values.get("used", "?"),
            limited=values.get("limited", "?").strip(), need=need,
        )
        return Explanation("W05", cause, Who.ADMIN, _("ask for a larger quota, or submit with fewer nodes"), raw=text, values=dict(values))
    return None


def _quota_need(facts: Facts) -> str:
    resource, count = facts.npu_request()
    return f"{facts.workers} x {count} = {facts.workers * count} {resource}" if resource else counted(facts.workers, _("{n} pod"), _("{n} pods"))


def pods_refused(facts: Facts) -> Explanation | None:
    """W06: the server refuses to create the pods."""
    for event in facts.messages("FailedCreate"):
        text = server_message(event)
        if "exceeded quota" in text:
            continue
        account = re.search(r'serviceaccount \\?"(?P<name>[^"\\]+)\\?" not found', text)
        if account:
            cause = _("the service account {name} does not exist in namespace {namespace}").format(name=account["name"], namespace=facts.namespace)
            return Explanation("W06", cause, Who.ADMIN, f"kubectl -n {facts.namespace} create serviceaccount {account['name']}", raw=text)
        priority = re.search(r"no PriorityClass with name (?P<name>\S+) was found", text)
        if priority:
            cause = _("the priority class {name} does not exist").format(name=priority["name"])
            return Explanation("W06", cause, Who.YOU, "kubectl get priorityclasses", raw=text)
        if "violates PodSecurity" in text:
            cause = _("the namespace's PodSecurity level forbids what the pods ask for")
            return Explanation("W06", cause, Who.ADMIN, _("set security.run_as_user: 1000 and network.host: false, or ask for another level"), raw=text)
        return Explanation("W06", _("the server refuses to create the pods: {text}").format(text=text[:300]), Who.ADMIN, f"kubectl describe -n {facts.namespace} vcjob/{facts.name}", raw=text)
    return None


def claim_missing(facts: Facts) -> Explanation | None:
    """W07: a PersistentVolumeClaim is not there; it hides in the gang's text (volcano #2285)."""
    for text in _scheduling_texts(facts):
        match = re.search(r'persistentvolumeclaim \\?"(?P<name>[^"\\]+)\\?" not found|pvc (?P<pvc>\S+) is not found', text)
        if match:
            name = match["name"] or match["pvc"]
            have = _("there are: {names}").format(names=", ".join(sorted(facts.claims))) if facts.claims else ""
            cause = _("the claim {name} does not exist in namespace {namespace}").format(name=name, namespace=facts.namespace)
            return Explanation("W07", cause, Who.YOU, _("correct storage in the spec, or have the claim made"), raw=text, values={"claim": name}).with_also(have)
        if "unbound immediate PersistentVolumeClaims" in text:
            return Explanation("W07", _("a claim is not bound to a volume yet"), Who.ADMIN, f"kubectl -n {facts.namespace} get pvc", raw=text)
    return None


def queue_closed(facts: Facts) -> Explanation | None:
    """W08: the queue takes no jobs."""
    state = partial.text(facts.queue, "status", "state")
    if facts.queue is None or state in ("Open", ""):
        return None
    cause = _("queue {queue} is {state}").format(queue=_queue_name(facts), state=state)
    return Explanation("W08", cause, Who.ADMIN, _("ask for the queue to be opened, or submit to another: cluster.queue"), values={"queue": _queue_name(facts), "state": state})


def queue_too_small(facts: Facts) -> Explanation | None:
    """W09: the queue may never hold as many NPUs as the gang needs (volcano #1331)."""
    resource, count = facts.npu_request()
    need = count * facts.workers
    cap = partial.integer(facts.queue, "spec", "capability", resource)
    if not resource or not cap or need <= cap:
        return _queue_lacks_other(facts)
    cause = _("the job needs {need} NPUs, queue {queue} never has more than {cap}: it will wait for ever").format(need=need, queue=_queue_name(facts), cap=cap)
    nearest = cap // count
    action = _("submit with --set resources.nodes={n}").format(n=nearest) if nearest else _("ask for a larger queue")
    return Explanation("W09", cause, Who.YOU, action, raw=_first_with(facts, "queue resource quota insufficient"), values={"need": need, "capability": cap})


def _queue_lacks_other(facts: Facts) -> Explanation | None:
    """The same for processors, memory and whatever else a queue limits."""
    each = per_pod(facts.pod_template())
    for key, value in partial.mapping(facts.queue, "spec", "capability").items():
        cap, one = amount(value), each.get(f"requests.{key}")
        if cap is None or not one or one * facts.workers <= cap:
            continue
        cause = _("the job needs {need} {resource}, queue {queue} never has more than {cap}: it will wait for ever").format(
            need=shown(key, one * facts.workers), resource=key, queue=_queue_name(facts), cap=shown(key, cap))
        action = _("submit with --set resources.nodes={n}").format(n=int(cap // one)) if cap >= one else _("ask for a larger queue")
        return Explanation("W09", cause, Who.YOU, action, raw=_first_with(facts, "queue resource quota insufficient"), values={
            "resource": key, "need": str(one * facts.workers), "capability": str(cap)})
    return None


def queue_share(facts: Facts) -> Explanation | None:
    """W23: what goes over a queue's deserved share may be taken back for other queues (Volcano's capacity plugin)."""
    resource, count = facts.npu_request()
    share, need = partial.integer(facts.queue, "spec", "deserved", resource), count * facts.workers
    if not resource or not share or need <= share:
        return None
    held = partial.integer(facts.queue, "status", "allocated", resource)
    cause = _("the job needs {need} NPUs, queue {queue} deserves {share} and holds {held} now: what goes beyond may be taken back by other queues at any time").format(
        need=need, queue=_queue_name(facts), share=share, held=held)
    return Explanation("W23", cause, Who.YOU, _("count on preemptions (retries.preemptions), or submit with --set resources.nodes={n}").format(n=max(1, share // count)), values={
        "need": need, "deserved": share, "allocated": held})


def quota_too_small(facts: Facts) -> Explanation | None:
    """W12: a quota of the namespace never lets the whole gang be created (volcano #1387)."""
    gaps = [gap for gap in _quota_gaps(facts) if gap.never]
    if not gaps:
        return None
    first = next((gap for gap in gaps if gap.unsaid), gaps[0])  # no size of the job helps against that
    if first.unsaid:
        cause = _("quota {quota} of namespace {namespace} demands that every pod says its {key}, and the job's do not: the server refuses them").format(
            quota=first.quota, namespace=facts.namespace, key=first.key)
        field = "resources.cpu" if first.key.endswith("cpu") else "resources.memory" if first.key.endswith("memory") else "resources.ephemeral_storage"
        return Explanation("W12", cause, Who.YOU, _("set {field} in the spec").format(field=field), values={"quota": first.quota, "key": first.key})
    cause = _("quota {quota} of namespace {namespace} allows {hard} {key}, the gang of {n} pods needs {need}: it is never created as a whole").format(
        quota=first.quota, namespace=facts.namespace, hard=shown(first.key, first.hard), key=first.key, n=facts.workers, need=shown(first.key, first.need))
    fits = min(gap.pods for gap in gaps)
    action = _("submit with --set resources.nodes={n}, or ask for a larger quota").format(n=fits) if fits else _("ask for a larger quota")
    return Explanation("W12", cause, Who.ADMIN if not fits else Who.YOU, action, values=_gap_values(gaps)).with_also(*(_gap_sentence(gap) for gap in gaps[1:]))


def quota_full(facts: Facts) -> Explanation | None:
    """W24: others use so much of a quota that the gang cannot be created as a whole now."""
    gaps = [gap for gap in _quota_gaps(facts) if not gap.never]
    if not gaps:
        return None
    first = gaps[0]
    cause = _("of quota {quota} of namespace {namespace} {used} of {hard} {key} are used, and the gang's pods need {need} more: some are refused until others end").format(
        quota=first.quota, namespace=facts.namespace, used=shown(first.key, first.used), hard=shown(first.key, first.hard), key=first.key, need=shown(first.key, first.need))
    return Explanation("W24", cause, Who.WAIT, f"kubectl -n {facts.namespace} describe quota {first.quota}", values=_gap_values(gaps)).with_also(
        *(_gap_sentence(gap) for gap in gaps[1:]))


def _quota_gaps(facts: Facts) -> list[Shortage]:
    return shortages(facts.quotas or [], facts.pod_template(), pods=facts.workers, standing=len(facts.pods)) if facts.quotas else []


def _gap_sentence(gap: Shortage) -> str:
    return _("quota {quota}: {need} {key} needed, {used} of {hard} used").format(
        quota=gap.quota, need=shown(gap.key, gap.need), key=gap.key, used=shown(gap.key, gap.used), hard=shown(gap.key, gap.hard))


def _gap_values(gaps: list[Shortage]) -> dict[str, Any]:
    return {"quotas": [
        {"quota": gap.quota, "key": gap.key, "need": str(gap.need), "hard": str(gap.hard), "used": str(gap.used), "pods": gap.pods} for gap in gaps
    ]}


def never_fits_selector(facts: Facts) -> Explanation | None:
    """W10: no node carries the labels that the job asks for (volcano #4446)."""
    selector = partial.mapping(facts.pod_template(), "nodeSelector")
    if not selector or not facts.nodes:
        return None
    resource, _count = facts.npu_request()
    candidates = [node for node in facts.nodes if not resource or partial.integer(node, "status", "allocatable", resource)] or facts.nodes
    wrong = selector_mismatches(candidates, selector)
    hopeless = {key: seen for key, seen in wrong.items() if sum(seen.values()) == len(candidates)}
    if not hopeless:
        return None
    key, seen = next(iter(hopeless.items()))
    values = ", ".join(f"{value or _('no such label')} ({count})" for value, count in sorted(seen.items(), key=lambda item: -item[1])[:4])
    cause = _("no node has the label {key}={wanted}; the {n} candidate nodes have: {values}").format(key=key, wanted=selector[key], n=len(candidates), values=values)
    best = max(seen, key=lambda value: seen[value])
    action = _("set the node type in the spec to {value}, or have the nodes labelled").format(value=best) if best else _("have the nodes labelled: kubectl label node NODE {label}").format(label=f"{key}={selector[key]}")
    return Explanation("W10", cause, Who.YOU if best else Who.ADMIN, action, raw=_origin(facts), values={"label": key, "wanted": selector[key], "have": seen})


def never_fits_size(facts: Facts) -> Explanation | None:
    """W11: the gang is larger than all matching nodes together, or one worker larger than a node."""
    fit = fit_of(facts)
    if fit.fit is not Fit.NEVER:
        return None
    if fit.biggest < fit.per_worker:
        cause = _("a worker needs {per} NPUs, the largest of the {n} matching nodes has {biggest}: it never fits").format(per=fit.per_worker, n=fit.matching_nodes, biggest=fit.biggest)
        action = _("submit with --set resources.npus_per_node={n}").format(n=fit.biggest) if fit.biggest else _("ask whether the NPU nodes are ready: nanochat-npu capacity")
    else:
        cause = _("the gang needs {need} NPUs on {workers} nodes, the cluster has {total} on {n} ({short} NPUs short): it never fits").format(
            need=fit.workers * fit.per_worker, workers=fit.workers, total=fit.total, n=fit.matching_nodes, short=fit.workers * fit.per_worker - fit.total
        )
        action = _("submit with --set resources.nodes={n}").format(n=fit.slots_ever) if fit.slots_ever else _("ask whether the NPU nodes are ready: nanochat-npu capacity")
    return Explanation("W11", cause, Who.YOU, action, raw=_origin(facts) or _first_with(facts, "overused"), values=_fit_values(fit))


def dead_node(facts: Facts) -> Explanation | None:
    """W13: a pod on a dead node stays Terminating and the whole gang waits for it (recording ``dead_node_stuck``)."""
    stuck = stuck_pods(facts.objects)
    if not stuck:
        return None
    pod, node = partial.text(stuck[0], "metadata", "name"), partial.text(stuck[0], "spec", "nodeName") or "?"
    cause = _("node {node} does not answer, so its pod {pod} cannot end, and the other {n} workers wait for it").format(node=node, pod=pod, n=max(0, facts.workers - len(stuck)))
    return Explanation("W13", cause, Who.YOU, f"nanochat-npu recover {facts.name}", values={"node": node, "pods": [partial.text(p, "metadata", "name") for p in stuck]})


_WAITING: dict[str, tuple[Who, str]] = {
    "ErrImagePull": (Who.YOU, "image"), "ImagePullBackOff": (Who.YOU, "image"), "InvalidImageName": (Who.YOU, "image"),
    "ErrImageNeverPull": (Who.YOU, "image"), "CreateContainerConfigError": (Who.YOU, "config"), "CreateContainerError": (Who.ADMIN, "create"),
    "RunContainerError": (Who.ADMIN, "create"), "CrashLoopBackOff": (Who.YOU, "crash"),
}


def container_cannot_start(facts: Facts) -> Explanation | None:
    """W14: a container waits for a reason that does not heal by itself (skypilot #7925); init containers too."""
    for pod in facts.pods:
        for kind in ("initContainerStatuses", "containerStatuses"):
            for status in partial.items(pod, "status", kind):
                reason = partial.text(status, "state", "waiting", "reason")
                if reason in _WAITING:
                    return _container_waits(facts, pod, status, reason)
    return None


def _container_waits(facts: Facts, pod: dict[str, Any], status: dict[str, Any], reason: str) -> Explanation:
    who, kind = _WAITING[reason]
    image, container = partial.text(status, "image") or "?", partial.text(status, "name")
    message = partial.text(status, "state", "waiting", "message")
    name = partial.text(pod, "metadata", "name")
    texts = {
        "image": (_("{pod} cannot pull the image {image} ({reason})"), _("check image.ref or image.registry, and cluster.image_pull_secrets: nanochat-npu doctor")),
        "config": (_("container {container} of {pod} refers to a secret or ConfigMap that is not there ({reason})"), _("check secrets in the spec: nanochat-npu doctor")),
        "create": (_("container {container} of {pod} could not be created ({reason})"), _("the node's container runtime refuses it: kubectl describe pod {pod}")),
        "crash": (_("container {container} of {pod} ends again and again ({reason})"), f"nanochat-npu logs {facts.name}"),
    }
    cause, action = texts[kind]
    filled = {"pod": name, "image": image, "container": container, "reason": reason}
    return Explanation("W14", cause.format(**filled), who, action.format(**filled), raw=message, values=filled)


def mount_failed(facts: Facts) -> Explanation | None:
    """W15: the kubelet cannot mount something."""
    for text in facts.messages("FailedMount", "FailedAttachVolume"):
        missing = re.search(r'(?P<kind>secret|configmap) \\?"(?P<name>[^"\\]+)\\?" not found', text)
        if missing:
            cause = _("the {kind} {name} does not exist in namespace {namespace}").format(kind=missing["kind"], name=missing["name"], namespace=facts.namespace)
            return Explanation("W15", cause, Who.YOU, _("make it, or correct the spec"), raw=text)
        if "Multi-Attach" in text:
            return Explanation("W15", _("the claim can be used on one node only (ReadWriteOnce), the job runs on {n}").format(n=facts.workers), Who.ADMIN, _("use a claim with access mode ReadWriteMany"), raw=text)
        return Explanation("W15", _("a volume cannot be mounted on the node"), Who.ADMIN, f"kubectl -n {facts.namespace} get events", raw=text)
    return None


def device_plugin_refused(facts: Facts) -> Explanation | None:
    """W16: the kubelet or Ascend's device plugin refused the pod after it was placed."""
    sandboxes = facts.messages("FailedCreatePodSandBox")
    of_npus = [text for text in sandboxes if re.search(r"ascend|davinci|npu", _without_names(facts, text), re.IGNORECASE)]
    for text in (*facts.messages("UnexpectedAdmissionError"), *of_npus):
        cause = _("the node could not hand out its NPUs: the device plugin's count and the node's differ, or the runtime failed")
        return Explanation("W16", cause, Who.ADMIN, _("the node's ascend-device-plugin has to be looked at"), raw=text)
    for text in sandboxes:
        cause = _("the node could not set up the pod's network or its sandbox; that often passes by itself")
        return Explanation("W16", cause, Who.ADMIN, _("if it lasts, the node's network plugin and container runtime have to be looked at"), raw=text)
    return None


def _without_names(facts: Facts, text: str) -> str:
    """A message without the names that people gave, in which anything may be said (a namespace npu-research)."""
    names = {facts.namespace, *(partial.text(thing, "metadata", "name") for thing in (facts.objects.job, *facts.objects.pods))}
    for name in sorted(names - {""}, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9-]){re.escape(name)}(?![A-Za-z0-9-])", "…", text)
    return text


def node_type_label(facts: Facts) -> Explanation | None:
    """W17: Ascend's scheduler plugin names the node label that differs (volcano #4446)."""
    for text in _scheduling_texts(facts):
        match = re.search(r"check [Nn]ode (?P<node>\S+) label \[(?P<label>[^\]]+)\] [Ff]ailed, value is (?P<value>[^\s,;\]]+)", text)
        if match:
            wanted = partial.text(facts.pod_template(), "nodeSelector", match["label"]) or _("none")
            cause = _("node {node} has {label}={value}, the job asks for {wanted}").format(**match.groupdict(), wanted=wanted)
            return Explanation("W17", cause, Who.YOU, _("set the node type in the spec to {value}").format(value=match["value"]), raw=text, values=match.groupdict())
        if "didn't match Pod's node affinity/selector" in text and facts.nodes is None:
            reasons = node_reasons(text)
            cause = _("{n} of {all} nodes lack a label that the job asks for: {selector}").format(
                n=_count(reasons, "affinity/selector"), all=reasons.nodes if reasons else "?",
                selector=", ".join(f"{k}={v}" for k, v in partial.mapping(facts.pod_template(), "nodeSelector").items()) or _("(affinity)"),
            )
            return Explanation("W17", cause, Who.YOU, "kubectl get nodes --show-labels", raw=text)
    return None


def taints(facts: Facts) -> Explanation | None:
    """W18: nodes are kept free by taints that the job does not tolerate."""
    for text in _scheduling_texts(facts):
        if "untolerated taint" in text or "had taint" in text or "didn't tolerate" in text:
            reasons = node_reasons(text)
            shown = re.findall(r"taint\(?s?\)? ?\{([^}]*)\}", text)
            cause = _("{n} of {all} nodes have a taint that the job does not tolerate: {taint}").format(
                n=_count(reasons, "taint"), all=reasons.nodes if reasons else "?", taint=shown[0] if shown else "?"
            )
            return Explanation("W18", cause, Who.YOU, _("add it to cluster.tolerations if those nodes are meant for you"), raw=text)
    return None


def node_resources(facts: Facts) -> Explanation | None:
    """W19: nodes are there but lack something else: CPU, memory, ports, pods."""
    for text in _scheduling_texts(facts):
        reasons = node_reasons(text)
        short = {why: n for why, n in (reasons.reasons if reasons else {}).items() if why.startswith(("Insufficient", "insufficient", "Too many pods", "node(s) didn't have free ports"))}
        if not short or reasons is None:
            continue
        listed = ", ".join(f"{why} ({n})" for why, n in sorted(short.items(), key=lambda item: -item[1]))
        cause = _("of {all} nodes: {listed}").format(all=reasons.nodes, listed=listed)
        fit = fit_of(facts)
        also = _fit_sentence(fit) if fit.fit is not Fit.UNKNOWN else ""
        npus = any("huawei.com" in why for why in short)
        action = _("wait, or take fewer nodes; nanochat-npu capacity shows who holds what") if npus else _("lower resources.cpu or resources.memory: nanochat-npu capacity shows what nodes have")
        return Explanation("W19", cause, Who.WAIT if npus else Who.YOU, action, raw=text, values={"reasons": short}).with_also(also)
    return None


def queue_full(facts: Facts) -> Explanation | None:
    """W20: the queue's share is used up for now."""
    text = _first_with(facts, "queue resource quota insufficient") or _first_with(facts, "queue is overused")
    if not text:
        return None
    resource, count = facts.npu_request()
    cap, used = partial.integer(facts.queue, "spec", "capability", resource), partial.integer(facts.queue, "status", "allocated", resource)
    if facts.queue is not None and cap:
        cause = _("queue {queue} is full: {used} of its {cap} NPUs are in use, the job needs {need}").format(queue=_queue_name(facts), used=used, cap=cap, need=count * facts.workers)
    else:
        cause = _("queue {queue} has no room for the job's {need} NPUs now, or not at all").format(queue=_queue_name(facts), need=count * facts.workers)
    return Explanation("W20", cause, Who.WAIT, "nanochat-npu capacity", raw=text, values={"capability": cap or None, "allocated": used}).with_also(*_idle_reservations(facts))


def cluster_full(facts: Facts) -> Explanation | None:
    """W21: all matching nodes are busy (Volcano's overcommit plugin)."""
    text = _first_with(facts, "overused")
    fit = fit_of(facts)
    if not text and fit.fit is not Fit.LATER:
        return None
    if fit.fit is Fit.UNKNOWN:
        cause = _("the cluster has no room for the job's {need} NPUs now; nodes may not be read with your rights").format(need=fit.workers * fit.per_worker)
        return Explanation("W21", cause, Who.WAIT, "nanochat-npu capacity", raw=text)
    return Explanation("W21", _fit_sentence(fit), Who.WAIT, "nanochat-npu capacity", raw=text, values=_fit_values(fit)).with_also(*_idle_reservations(facts))


def reserved_by_others(facts: Facts) -> Explanation | None:
    """W22: the NPUs are free, but gangs before it hold the reservation (volcano #2814, #3373)."""
    held = _idle_reservations(facts)
    if not held or fit_of(facts).fit is not Fit.NOW:
        return None
    return Explanation("W22", held[0], Who.ADMIN, "nanochat-npu capacity").with_also(*held[1:])


def starting(facts: Facts) -> Explanation | None:
    """W90: placed, the containers are on their way."""
    placed = [pod for pod in facts.pods if pod_state(pod) == "Starting"]
    if not placed:
        return None
    cause = _("{n} of {all} workers are placed and being started (pulling the image, mounting volumes)").format(n=len(placed), all=facts.workers)
    return Explanation("W90", cause, Who.WAIT, f"nanochat-npu logs {facts.name} --follow")


def unknown_text(facts: Facts) -> Explanation | None:
    """X00: the scheduler says something that no rule knows; shown as it is."""
    for text in _scheduling_texts(facts):
        if not is_gang_text(text):
            cause = _("the scheduler gives a reason that is not known here")
            return Explanation("X00", cause, Who.ADMIN, f"kubectl describe -n {facts.namespace} vcjob/{facts.name}", raw=text)
    return None


def queued(facts: Facts) -> Explanation | None:
    """W91: nothing is wrong that can be seen: it waits its turn."""
    if facts.job is None:
        return None
    if facts.pods:
        cause = counted(facts.workers, _("the job waits until its worker can be placed"), _("the job waits until all {n} workers can be placed at once"))
    else:
        cause = _("the job waits in queue {queue}; its pods are made when its turn comes").format(queue=_queue_name(facts))
    unseen = "" if facts.pods else _("an autoscaler of the cluster sees nothing of it: it adds nodes for pods that wait, and there are none yet")
    return Explanation("W91", cause, Who.WAIT, "nanochat-npu capacity", raw=_origin(facts)).with_also(*_idle_reservations(facts), unseen)


def fit_of(facts: Facts) -> GangFit:
    """The gang against the nodes, without the pods that it holds itself."""
    resource, count = facts.npu_request()
    own = {partial.text(pod, "metadata", "uid") or partial.text(pod, "metadata", "name") for pod in facts.pods}
    others = None
    if facts.node_pods is not None:
        others = [pod for pod in facts.node_pods if (partial.text(pod, "metadata", "uid") or partial.text(pod, "metadata", "name")) not in own]
    selector = partial.mapping(facts.pod_template(), "nodeSelector")
    return gang_fit(facts.nodes, others, resource=resource, workers=facts.workers, per_worker=count, selector=selector)


def _fit_sentence(fit: GangFit) -> str:
    need = fit.workers * fit.per_worker
    if fit.fit is Fit.NOW:
        return _("the gang fits now: {free} of {total} NPUs are free on {n} nodes").format(free=fit.free, total=fit.total, n=fit.matching_nodes)
    return _("the job needs {need} NPUs as {workers} x {per}; {free} of {total} are free, with room for {now} workers: it fits later").format(
        need=need, workers=fit.workers, per=fit.per_worker, free=fit.free, total=fit.total, now=fit.slots_now
    )


def _fit_values(fit: GangFit) -> dict[str, Any]:
    return {
        "fit": fit.fit.value, "need": fit.workers * fit.per_worker, "free": fit.free, "total": fit.total, "slots_now": fit.slots_now,
        "slots_ever": fit.slots_ever, "matching_nodes": fit.matching_nodes,
    }


def _idle_reservations(facts: Facts) -> list[str]:
    """PodGroups of the same queue that were let in but have nothing running."""
    own = partial.text(facts.objects.podgroup, "metadata", "name")
    names = [
        partial.text(group, "metadata", "name")
        for group in facts.podgroups or []
        if partial.text(group, "status", "phase") == "Inqueue" and not partial.integer(group, "status", "running") and partial.text(group, "metadata", "name") != own
    ]
    if not names:
        return []
    return [_("{n} other jobs of the queue were let in but run nothing yet, and hold their reservation: {names}").format(n=len(names), names=", ".join(names[:5]))]


def _queue_name(facts: Facts) -> str:
    return partial.text(facts.job, "spec", "queue") or partial.text(facts.queue, "metadata", "name") or "default"


def _scheduling_texts(facts: Facts) -> list[str]:
    """What the scheduler said, most telling first: origin reasons, then other sentences, then the gang's."""
    texts = [partial.text(c, "message") for c in partial.items(facts.objects.podgroup, "status", "conditions") if c.get("type") == "Unschedulable"]
    for pod in facts.pods:
        texts += [partial.text(c, "message") for c in partial.items(pod, "status", "conditions") if c.get("type") == "PodScheduled" and c.get("status") == "False"]
    texts += facts.messages("Unschedulable", "PodGroupPending", "FailedScheduling", "PVCError", "PodGroupError")
    origins = [origin_reason(text) for text in texts if text]
    gang = [text for text in texts if text and is_gang_text(text)]
    return list(dict.fromkeys([*filter(None, origins), *gang]))


def _origin(facts: Facts) -> str:
    return next(iter(_scheduling_texts(facts)), "")


def _first_with(facts: Facts, part: str) -> str:
    return next((text for text in _scheduling_texts(facts) if part in text), "")


def _count(reasons: NodeReasons | None, part: str) -> int | str:
    return sum(n for why, n in reasons.reasons.items() if part in why) if reasons else "?"
