"""From a plan to a manifest: labels, annotations, resources, node choice, limits. Pure.

Sources: volcano-sh/volcano ed72c7c (job webhook and controller), Ascend/mind-cluster 22bb3d98 (labels and selectors).
Nothing here is newer than Volcano 1.9, the oldest that Ascend sites run.
"""

import json
import math
from typing import Any

import yaml

from nanochat_npu import __version__, marks
from nanochat_npu.errors import RenderError
from nanochat_npu.i18n import _
from nanochat_npu.image.trainer_wheel import wheel_name
from nanochat_npu.manifest.environment import environment
from nanochat_npu.manifest.places import job_dir, rank_plugins, rank_table_map
from nanochat_npu.manifest.policies import policies
from nanochat_npu.manifest.table import pinned_nodes, table_content
from nanochat_npu.manifest.types import Manifest
from nanochat_npu.manifest.volumes import volumes
from nanochat_npu.plan import Plan
from nanochat_npu.spec import PLATFORMS, TolerationConfig
from nanochat_npu.spec.platforms import resource_name

__all__ = ["TASK", "manifest_of"]

TASK = "worker"
"""Name of the one pod group; Volcano makes VC_WORKER_HOSTS of it."""
ANNOTATIONS_MAX_BYTES = 256 * 1024
"""Kubernetes' limit on all annotations of one object (apimachinery, TotalAnnotationSizeLimitB)."""
ENV_STRING_MAX_BYTES = 128 * 1024
"""Linux MAX_ARG_STRLEN: one environment string; the svc plugin puts all host names into one."""


def manifest_of(plan: Plan, image: str) -> Manifest:
    """The Kubernetes side of a plan.

    Args:
        plan: The plan.
        image: Reference of the image that the workers run.

    Raises:
        RenderError: The plan cannot be said in Kubernetes objects.
    """
    spec, profile = plan.spec, PLATFORMS[plan.spec.cluster.platform]
    labels = _labels(plan)
    ring = dict([profile.ring_label]) if profile.ring_label and plan.wants_npus else {}
    job_labels = profile.job_labels if plan.wants_npus else {}
    policy = {"huawei.com/schedule_policy": plan.node_type.schedule_policy} if profile.uses_schedule_policy and plan.wants_npus else {}
    table = rank_table_map(plan)
    manifest = Manifest(
        version=__version__, spec_sha256=plan.spec_sha256, name=plan.name, namespace=spec.cluster.namespace,
        labels={**labels, **ring}, job_labels=dict(job_labels),
        pod_labels={**labels, **ring, "sidecar.istio.io/inject": "false"},
        annotations={**spec.cluster.annotations, **policy, **_annotations(plan, image)},
        pod_annotations={**spec.cluster.annotations, **policy, "sidecar.istio.io/inject": "false"},
        queue=spec.cluster.queue, replicas=spec.resources.nodes,
        max_retry=spec.retries.failures + spec.retries.preemptions + 1,
        policies=policies(),
        plugins={"env": (), "svc": ("--publish-not-ready-addresses",), **(profile.plugins if plan.wants_npus else {})},
        optional_plugins=tuple(rank_plugins(plan)),
        image=image, pull_policy=spec.image.pull_policy, env=environment(plan), resources=_resources(plan), volumes=volumes(plan),
        grace_period_s=spec.lifecycle.grace_period_s, host_network=spec.network.host,
        ttl_s=() if spec.lifecycle.ttl_s is None else (spec.lifecycle.ttl_s,),
        deadline_s=_deadline(plan), priority_class=spec.cluster.priority_class or "",
        runtime_class=spec.cluster.runtime_class or (profile.runtime_class if plan.wants_npus else None) or "",
        service_account=spec.cluster.service_account or "", pull_secrets=tuple(spec.image.pull_secrets),
        node_selector=_node_selector(plan), tolerations=tuple(_toleration(t) for t in spec.cluster.tolerations),
        security=_security(plan), code_file=wheel_name() if plan.spec.image.code == "configmap" else "", rank_table_map=table, rank_table=None if table is None else table_content(plan, table), pinned_nodes=pinned_nodes(plan),
    )
    _check_sizes(manifest)
    return manifest


def _deadline(plan: Plan) -> tuple[int, ...]:
    """The pod's own deadline: the budget plus the grace in which the trainer, which stops earlier, writes its checkpoint."""
    limit = plan.run_file.budget.max_run_s
    return () if limit is None else (math.ceil(limit) + plan.spec.lifecycle.grace_period_s,)


def _labels(plan: Plan) -> dict[str, str]:
    spec = plan.spec
    ours = {
        "app.kubernetes.io/name": "nanochat",
        marks.LABEL_COMPONENT: marks.COMPONENT,
        marks.LABEL_MANAGED_BY: marks.MANAGED_BY,
        marks.LABEL_JOB: spec.name,
        **({marks.LABEL_OWNER: spec.owner} if spec.owner else {}),
    }
    return {**spec.cluster.labels, **ours}


def _annotations(plan: Plan, image: str) -> dict[str, str]:
    return {
        marks.ANNOTATION_VERSION: __version__,
        marks.ANNOTATION_SUBMISSION: plan.submission_id,
        marks.ANNOTATION_INTENT: marks.Intent.RUN.value,
        marks.ANNOTATION_PLAN: json.dumps(_plan_summary(plan, image), ensure_ascii=False, separators=(",", ":")),
        marks.ANNOTATION_SPEC: yaml.safe_dump(plan.spec.model_dump(mode="json", exclude_defaults=True), sort_keys=False, allow_unicode=True, width=1000),
    }


def _plan_summary(plan: Plan, image: str) -> dict[str, Any]:
    """What a colleague's ``status`` and ``explain`` need, without deriving it again with another version."""
    spec = plan.spec
    volumes = {"output": spec.storage.output, "data": spec.storage.data, **spec.storage.extra}
    return {
        "owner": spec.owner, "nodes": spec.resources.nodes, "npus_per_node": spec.resources.npus_per_node, "npu": spec.resources.npu,
        "resource": _resource(plan) if plan.wants_npus else None, "world_size": plan.world_size, "stages": [str(stage) for stage in plan.run.stages],
        "depth": plan.shape.depth, "steps": plan.horizon.steps, "tokens_per_step": plan.horizon.tokens_per_step, "image": image,
        "job_dir": str(job_dir(plan)), "volumes": {name: {"claim": volume.claim, "path": volume.path} for name, volume in volumes.items() if volume},
        "retries": {"failures": spec.retries.failures, "preemptions": spec.retries.preemptions},
        "rank_table": spec.rank_table.mode, "grace_period_s": spec.lifecycle.grace_period_s, "queue_timeout_s": spec.lifecycle.queue_timeout_s,
        "max_hours": spec.lifecycle.max_hours, "price": spec.price.model_dump(mode="json") if spec.price else None,
    }


def _resource(plan: Plan) -> str:
    cluster = plan.spec.cluster
    return resource_name(cluster.platform, plan.spec.resources.npu, cluster.resource_name)


def _resources(plan: Plan) -> dict[str, str]:
    wanted = plan.spec.resources
    named = {
        "cpu": f"{wanted.cpu:g}" if wanted.cpu else None, "memory": wanted.memory, "ephemeral-storage": wanted.ephemeral_storage,
        _resource(plan): str(wanted.npus_per_node) if plan.wants_npus else None,
    }
    return {name: amount for name, amount in named.items() if amount is not None}


def _node_selector(plan: Plan) -> dict[str, str]:
    cluster, profile = plan.spec.cluster, PLATFORMS[plan.spec.cluster.platform]
    if not plan.wants_npus:
        return dict(cluster.node_selector)
    kind = {"accelerator-type": plan.node_type.label} if profile.uses_schedule_policy else {}
    return {"kubernetes.io/arch": plan.spec.image.arch, **kind, **profile.node_selector, **cluster.node_selector}


def _toleration(toleration: TolerationConfig) -> dict[str, Any]:
    values = {
        "key": toleration.key, "operator": toleration.operator, "value": toleration.value, "effect": toleration.effect,
        "tolerationSeconds": toleration.toleration_seconds,
    }
    return {name: value for name, value in values.items() if value is not None}


def _security(plan: Plan) -> dict[str, Any]:
    wanted = plan.spec.security
    values = {"runAsUser": wanted.run_as_user, "runAsGroup": wanted.run_as_group, "fsGroup": wanted.fs_group}
    return {name: value for name, value in values.items() if value is not None}


def _check_sizes(manifest: Manifest) -> None:
    annotations = sum(len(key.encode()) + len(value.encode()) for key, value in manifest.annotations.items())
    if annotations > ANNOTATIONS_MAX_BYTES:
        raise RenderError(
            _("the annotations would take {size} bytes; Kubernetes allows {limit}").format(size=annotations, limit=ANNOTATIONS_MAX_BYTES),
            where="cluster.annotations", hint=_("shorten annotations, env or run of the spec"),
        )
    host = len(f"{manifest.name}-{TASK}-{manifest.replicas - 1}.{manifest.name},")
    if host * manifest.replicas > ENV_STRING_MAX_BYTES:
        raise RenderError(
            _("the names of {nodes} workers would take more than the {limit} bytes that Linux allows in one variable (VC_WORKER_HOSTS)").format(
                nodes=manifest.replicas, limit=ENV_STRING_MAX_BYTES),
            where="name", hint=_("a shorter name allows more workers"),
        )
