"""What ``plan`` shows: a list of sections. Whoever knows more about a plan (an estimate, a price) appends a function to `PLAN_SECTIONS`."""

from collections.abc import Callable
from typing import Any

from nanochat.contract import REFERENCE_DEPTH, Stage
from nanochat_npu import units
from nanochat_npu.i18n import _, counted
from nanochat_npu.plan import Plan
from nanochat_npu.spec import Backend
from nanochat_npu.tables import Section

__all__ = ["PLAN_SECTIONS", "plan_sections", "plan_values"]

SectionMaker = Callable[[Plan], Section | None]


def plan_sections(plan: Plan) -> list[Section]:
    """The sections that have something to say about a plan."""
    made = (maker(plan) for maker in PLAN_SECTIONS)
    return [section for section in made if section is not None]


def plan_values(plan: Plan) -> dict[str, Any]:
    """The plan's numbers for ``-o json``, flat; sections add their own keys beside them."""
    shape, horizon, spec, run = plan.shape, plan.horizon, plan.spec, plan.run
    return {
        "job": plan.name, "backend": spec.backend, "stages": list(run.stages), "submission_id": plan.submission_id, "spec_sha256": plan.spec_sha256,
        "depth": shape.depth, "width": shape.width, "heads": shape.heads, "head_dim": shape.head_dim, "sequence_len": shape.sequence_len,
        "vocab_size": shape.vocab_size, "window_pattern": run.model.window_pattern,
        "parameters": shape.parameters.total, "scaling_parameters": shape.parameters.scaling, "flops_per_token": shape.flops_per_token,
        "tokens": horizon.tokens, "steps": horizon.steps, "tokens_per_step": horizon.tokens_per_step, "train_flops": plan.train_flops,
        "device_batch": run.pretrain.device_batch, "grad_accum": horizon.grad_accum, "world_size": plan.world_size,
        "nodes": spec.resources.nodes, "npus_per_node": spec.resources.npus_per_node, "npu": spec.resources.npu,
        "batch_lr_scale": horizon.batch_lr_scale, "weight_decay_scaled": horizon.weight_decay_scaled, "shards": run.data.shards,
    }


def _job(plan: Plan) -> Section:
    resources = plan.spec.resources
    if not plan.wants_npus:
        where = counted(resources.nodes, _("CPU, {n} node"), _("CPU, {n} nodes"))
    else:
        chip = resources.npu or counted(plan.world_size, _("NPU, or a CPU process where there is none"), _("NPUs, or CPU processes where there are none"))
        where = f"{resources.nodes} × {resources.npus_per_node} {chip}"
    rows = [
        (_("job"), plan.name), (_("stages"), " → ".join(plan.run.stages)), (_("where"), f"{plan.spec.backend}, {where}"),
        (_("ranks"), str(plan.world_size)),
    ]
    return Section("", rows=tuple(rows))


def _model(plan: Plan) -> Section:
    shape, counts = plan.shape, plan.shape.parameters
    pattern = plan.run.model.window_pattern
    windows = _("full in every layer") if set(pattern) == {"L"} else _("{pattern}, short = {tokens} tokens").format(pattern=pattern, tokens=min(shape.windows))
    return Section(
        "", _("Model"),
        rows=(
            (_("depth"), _("{depth}: width {width}, {heads} heads of {head_dim}").format(depth=shape.depth, width=shape.width, heads=shape.heads, head_dim=shape.head_dim)),
            (_("parameters"), _("{total}, of which {scaling} count for scaling").format(total=f"{counts.total:,}", scaling=units.count(counts.scaling))),
            (_("vocabulary"), f"{shape.vocab_size:,}"),
            (_("sequence"), _("{length} tokens; windows: {windows}").format(length=shape.sequence_len, windows=windows)),
            (_("FLOPs per token"), f"{shape.flops_per_token:.4e}"),
        ),
    )


def _training(plan: Plan) -> Section | None:
    if Stage.PRETRAIN not in plan.run.stages:
        return None
    horizon, given = plan.horizon, plan.spec.run.pretrain
    if given.steps is not None:
        why = _("steps given")
    elif given.target_flops is not None:
        why = _("from {flops} FLOPs").format(flops=f"{given.target_flops:.3e}")
    else:
        why = _("{ratio} tokens per scaling parameter").format(ratio=f"{given.target_param_data_ratio:g}")
    batch_why = _("given") if given.tokens_per_step is not None else _("derived from the tokens")
    batch = _("{sequences} × {length} tokens × {ranks} × {accum} accumulated").format(
        sequences=counted(given.device_batch, _("{n} sequence"), _("{n} sequences")), length=plan.shape.sequence_len,
        ranks=counted(plan.world_size, _("{n} rank"), _("{n} ranks")), accum=horizon.grad_accum,
    )
    rows = [
        (_("tokens"), f"{horizon.tokens:,}  ({why})"), (_("steps"), f"{horizon.steps:,}"),
        (_("tokens per step"), f"{horizon.tokens_per_step:,}  ({batch_why})"), ("", batch),
        (_("compute"), _("{flops} FLOPs").format(flops=f"{plan.train_flops:.3e}")),
        *_rates(plan),
    ]
    if plan.run.data.shards is not None:
        rows.append((_("data"), _("{source}, {shards} shards").format(source=plan.run.data.source, shards=plan.run.data.shards)))
    return Section("", _("Pretraining"), rows=tuple(rows))


def _rates(plan: Plan) -> list[tuple[str, str]]:
    """How batch and horizon change the rates, or what the spec says instead."""
    given = plan.spec.run.pretrain
    scale, decay = f"{plan.horizon.batch_lr_scale:.4g}", f"{plan.horizon.weight_decay_scaled:.4g}"
    scale_text = _("× {scale} for this batch").format(scale=scale) if given.batch_lr_scale is None else f"× {scale}  ({_('given')})"
    decay_text = f"{decay}  ({_('given')})"
    if given.weight_decay_scaled is None:
        decay_text = _("{value}, scaled from {given} at d{depth}").format(value=decay, given=given.weight_decay, depth=REFERENCE_DEPTH)
    return [(_("learning rates"), scale_text), (_("weight decay"), decay_text)]


def _names(plan: Plan) -> Section:
    spec = plan.spec
    rows = [(_("submission"), plan.submission_id)]
    if spec.backend is Backend.VOLCANO:
        last = spec.resources.nodes - 1
        workers = f"{plan.name}-worker-0" + (f" … {last}" if last else "")
        rows += [
            (_("workers"), workers), (_("queue"), f"{spec.cluster.queue}, namespace {spec.cluster.namespace}"),
            (_("platform"), f"{spec.cluster.platform}, {plan.node_type.label}" if plan.wants_npus else str(spec.cluster.platform)),
            (_("rank table"), str(spec.rank_table.mode)),
        ]
        if spec.storage.output is not None:
            rows.append((_("output"), f"{spec.storage.output.claim or spec.storage.output.host_path}: {spec.storage.output.path}/jobs/{plan.name}"))
    rows.append((_("restarts"), _("{failures} failures, {preemptions} preemptions").format(failures=spec.retries.failures, preemptions=spec.retries.preemptions)))
    return Section("", _("Names and limits"), rows=tuple(rows))


PLAN_SECTIONS: list[SectionMaker] = [_job, _model, _training, _names]
"""In the order in which they are shown. A section's `value` goes into ``-o json`` under its key."""
