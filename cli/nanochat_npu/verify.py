"""Holds rendered Kubernetes objects to the manifest: the text is parsed again and compared, value by value and type by type."""

from collections.abc import Mapping
from typing import Any

import yaml

from nanochat_npu.bundle import ENTRYPOINT
from nanochat_npu.errors import RenderError
from nanochat_npu.i18n import _
from nanochat_npu.manifest import JOB_MOUNT, TASK, EnvVar, Manifest, Policy

__all__ = ["parse_documents", "verify_configmaps", "verify_job"]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_documents(text: str, name: str) -> list[dict[str, Any]]:
    """The objects in a rendered file.

    Raises:
        RenderError: It is not YAML, or a document is not an object.
    """
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        raise RenderError(_("what was rendered is not YAML: {reason}").format(reason=error), where=name) from error
    for document in documents:
        if not isinstance(document, dict):
            raise RenderError(_("what was rendered is not a Kubernetes object"), where=name)
    return documents


def verify_job(job: dict[str, Any], m: Manifest, name: str) -> None:
    """Raises RenderError, naming the place, where the Volcano Job does not say what the manifest does."""
    task, pod, container = _parts(job, name)
    expected: dict[str, tuple[Any, Any]] = {
        "apiVersion": (job.get("apiVersion"), "batch.volcano.sh/v1alpha1"),
        "kind": (job.get("kind"), "Job"),
        "metadata.name": (job["metadata"].get("name"), m.name),
        "metadata.namespace": (job["metadata"].get("namespace"), m.namespace),
        "metadata.labels": (job["metadata"].get("labels"), {**m.labels, **m.job_labels}),
        "metadata.annotations": (job["metadata"].get("annotations"), m.annotations),
        "spec.queue": (job["spec"].get("queue"), m.queue),
        "spec.minAvailable": (job["spec"].get("minAvailable"), m.replicas),
        "spec.maxRetry": (job["spec"].get("maxRetry"), m.max_retry),
        "spec.ttlSecondsAfterFinished": (job["spec"].get("ttlSecondsAfterFinished"), m.ttl_s[0] if m.ttl_s else None),
        "spec.priorityClassName": (job["spec"].get("priorityClassName", ""), m.priority_class),
        "spec.plugins": (job["spec"].get("plugins"), {key: list(value) for key, value in m.plugins.items()}),
        "spec.policies": (job["spec"].get("policies"), [_policy(policy) for policy in m.policies]),
        "tasks[0].name": (task.get("name"), TASK),
        "tasks[0].replicas": (task.get("replicas"), m.replicas),
        "tasks[0].minAvailable": (task.get("minAvailable"), m.replicas),
        "template.labels": (task["template"]["metadata"].get("labels"), m.pod_labels),
        "template.annotations": (task["template"]["metadata"].get("annotations"), m.pod_annotations),
        "pod.restartPolicy": (pod.get("restartPolicy"), "Never"),
        "pod.terminationGracePeriodSeconds": (pod.get("terminationGracePeriodSeconds"), m.grace_period_s),
        "pod.priorityClassName": (pod.get("priorityClassName", ""), m.priority_class),
        "pod.runtimeClassName": (pod.get("runtimeClassName", ""), m.runtime_class),
        "pod.serviceAccountName": (pod.get("serviceAccountName", ""), m.service_account),
        "pod.hostNetwork": (pod.get("hostNetwork", False), m.host_network),
        "pod.securityContext": (pod.get("securityContext", {}), m.security),
        "pod.imagePullSecrets": (pod.get("imagePullSecrets", []), [{"name": secret} for secret in m.pull_secrets]),
        "pod.nodeSelector": (pod.get("nodeSelector", {}), m.node_selector),
        "pod.affinity": (pod.get("affinity", {}), _affinity(m)),
        "pod.tolerations": (pod.get("tolerations", []), list(m.tolerations)),
        "pod.volumes": (pod.get("volumes"), [{"name": volume.name, volume.kind: volume.source} for volume in m.volumes]),
        "container.image": (container.get("image"), m.image),
        "container.imagePullPolicy": (container.get("imagePullPolicy"), m.pull_policy),
        "container.command": (container.get("command"), ["bash", f"{JOB_MOUNT}/{ENTRYPOINT}"]),
        "container.env": (container.get("env"), [_variable(variable) for variable in m.env]),
        "container.resources": (container.get("resources", {}), {"requests": m.resources, "limits": m.resources} if m.resources else {}),
        "container.volumeMounts": ([_without_defaults(mount) for mount in container.get("volumeMounts", [])], [
            _without_defaults({"name": v.name, "mountPath": v.path, "subPath": v.sub_path, "readOnly": v.read_only}) for v in m.volumes
        ]),
    }
    for place, (found, wanted) in expected.items():
        _same(found, wanted, place, name)


def verify_configmaps(documents: list[dict[str, Any]], m: Manifest, files: Mapping[str, str], code: str, name: str) -> None:
    """Raises RenderError where the ConfigMaps do not hold exactly the files that they should."""
    wanted: list[tuple[str, dict[str, dict[str, str]]]] = [(m.run_map, {"data": dict(files), **({"binaryData": {m.code_file: code}} if m.code_file else {})})]
    if m.rank_table_map and m.rank_table:
        wanted.append((m.rank_table_map_name, {m.rank_table.field: {m.rank_table_key: m.rank_table.text}}))
    found = [(document["metadata"].get("name"), {key: document[key] for key in ("data", "binaryData") if key in document}) for document in documents]
    _same(found, wanted, "data", name)
    for document in documents:
        _same(document["metadata"].get("labels"), m.labels, "metadata.labels", name)
        _same(document["metadata"].get("namespace"), m.namespace, "metadata.namespace", name)


def _affinity(m: Manifest) -> dict[str, Any]:
    if not m.pinned_nodes:
        return {}
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(m.pinned_nodes)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _parts(job: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    try:
        (task,) = job["spec"]["tasks"]
        pod = task["template"]["spec"]
        container = pod["containers"][0]
        if not isinstance(job["metadata"], dict) or not isinstance(task["template"]["metadata"], dict):
            raise TypeError
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RenderError(_("the job has not one task with one template"), where=name) from error
    return task, pod, container


def _policy(policy: Policy) -> dict[str, Any]:
    return {"event": policy.event, "action": policy.action} if policy.event else {"exitCode": policy.exit_code, "action": policy.action}


def _variable(variable: EnvVar) -> dict[str, Any]:
    if variable.secret:
        secret, key = variable.secret
        return {"name": variable.name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
    if variable.field:
        return {"name": variable.name, "valueFrom": {"fieldRef": {"fieldPath": variable.field}}}
    return {"name": variable.name, "value": (variable.value or "").replace("$", "$$")}


def _without_defaults(mount: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mount.items() if value not in ("", False)}


def _same(found: object, wanted: object, place: str, name: str) -> None:
    if found != wanted or _types(found) != _types(wanted):
        raise RenderError(
            _("{place} came out as {found}, the plan says {wanted}").format(place=place, found=repr(found)[:300], wanted=repr(wanted)[:300]), where=name,
            hint=_("cluster.patch may not change what the spec says elsewhere; without a patch this is a bug"),
        )


def _types(value: object) -> object:
    """The types in a value, so that 1, 1.0 and True do not pass for each other."""
    if isinstance(value, dict):
        return {key: _types(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_types(item) for item in value]
    return bool if isinstance(value, bool) else str if isinstance(value, str) else type(value)
