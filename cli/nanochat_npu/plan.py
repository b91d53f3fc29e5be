"""From a spec to a plan: everything that follows from it, with every open number filled in. Pure: the date is an argument."""

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from nanochat.contract import REFERENCE_DEPTH, BudgetState, Horizon, ModelShape, RunConfig, RunFile, World, horizon
from nanochat_npu.spec import Backend, JobSpec, NodeType, node_type_of

__all__ = ["Plan", "billed_npus", "make_plan", "model_shapes", "spec_sha256", "window_pattern"]

SHARD_TRAINED_TOKENS = {"bestfit": 50e6, "upstream": 34e6}
"""Tokens trained per ClimbMix shard of 250 M characters, at 4.8 characters a token. Upstream's packing drops about 35 % of them
(karpathy/nanochat 92d63d4, ``nanochat/dataloader.py``; its speedrun takes 170 shards for 5.84 B tokens); ours drops none, and a
few percent are left for shards that are shorter."""
VALIDATION_SHARDS = 1
_DOWNLOADED = ("climbmix", "fineweb-edu")


@dataclass(frozen=True)
class Plan:
    """A spec and all that was derived from it; what `render`, the backends and the estimator read."""

    spec: JobSpec
    today: date
    run_file: RunFile
    shape: ModelShape
    horizon: Horizon
    spec_sha256: str

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.spec.name

    @property
    def run(self) -> RunConfig:
        """The resolved run config, as it stands in run.json."""
        return self.run_file.run

    @property
    def submission_id(self) -> str:
        """Identity of this submission: two equal specs have the same."""
        return self.run_file.submission_id

    @property
    def world_size(self) -> int:
        """Ranks over all nodes."""
        return self.spec.world_size

    @property
    def micro_tokens(self) -> int:
        """Tokens that all ranks together do in one forward/backward."""
        return self.run.pretrain.device_batch * self.shape.sequence_len * self.world_size

    @property
    def train_flops(self) -> float:
        """Model FLOPs of the whole pretraining."""
        return float(self.shape.flops_per_token) * self.horizon.tokens

    @property
    def node_type(self) -> NodeType:
        """The server it runs on (backend volcano)."""
        return node_type_of(self.spec.resources.npu, self.spec.cluster.node_type)

    @property
    def wants_npus(self) -> bool:
        """False for a CPU job (``npus_per_node: 0``)."""
        return self.spec.resources.npus_per_node > 0


_NOT_IDENTITY: dict[str, Any] = {"price": True, "estimate": True, "budget": True, "lifecycle": {"max_hours": True}}


def spec_sha256(spec: JobSpec) -> str:
    """Hash of the resolved spec: equal for specs that mean the same, whatever file or option a value came from.

    Prices, assumptions of the estimate and limits are left out: a job is the same job when they move, so one that its budget
    has stopped goes on when the same spec is submitted with more.
    """
    canonical = json.dumps(spec.model_dump(mode="json", exclude=_NOT_IDENTITY), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def window_pattern(spec: JobSpec) -> str:
    """What ``window_pattern: auto`` means: SSSL on NPUs, whose fused attention gains from a band; full windows on CPU.

    Full windows also with ``run.attention: sdpa``, which does a window by a T x T mask: it computes as much as without, and takes
    the memory of the mask on top.
    """
    on_npu = spec.resources.npu is not None and spec.resources.npus_per_node > 0
    return "SSSL" if on_npu and spec.run.attention != "sdpa" else "L"


def model_shapes(spec: JobSpec) -> tuple[ModelShape, ModelShape]:
    """The model that is trained, and the same recipe at the depth where the rates were tuned."""
    model, vocab, pattern = spec.run.model, spec.run.tokenizer.vocab_size, window_pattern(spec)
    shape = ModelShape.of(model, vocab, default_pattern=pattern)
    return shape, ModelShape.of(model, vocab, default_pattern=pattern, depth=REFERENCE_DEPTH)


def make_plan(spec: JobSpec, today: date) -> Plan:
    """The plan of a valid spec.

    Args:
        spec: A spec that passed the rules (`nanochat_npu.load.load_spec` sees to that).
        today: For the age of prices and the like.

    Raises:
        ValueError: tokens_per_step does not divide; the rules refuse that earlier, with its line.
    """
    shape, reference = model_shapes(spec)
    pretrain = spec.run.pretrain
    plan_horizon = horizon(
        shape, reference, world_size=spec.world_size, device_batch=pretrain.device_batch, ratio=pretrain.target_param_data_ratio,
        weight_decay=pretrain.weight_decay, tokens_per_step=pretrain.tokens_per_step, steps=pretrain.steps, target_flops=pretrain.target_flops,
    )
    given = {name: getattr(pretrain, name) for name in ("batch_lr_scale", "weight_decay_scaled")}
    plan_horizon = replace(plan_horizon, **{name: value for name, value in given.items() if value is not None})
    sha256 = spec_sha256(spec)
    return Plan(
        spec=spec, today=today, shape=shape, horizon=plan_horizon, spec_sha256=sha256,
        run_file=RunFile(
            job=spec.name, submission_id=sha256[:16], spec_sha256=sha256, run=_resolve(spec, plan_horizon), world=_world(spec),
            retries_failures=spec.retries.failures, grace_period_s=spec.lifecycle.grace_period_s, start_timeout_s=spec.rank_table.timeout_s,
            budget=_budget(spec),
        ),
    )


def _world(spec: JobSpec) -> World:
    if spec.resources.npus_per_node == 0:
        device = "cpu"
    else:
        device = "npu" if spec.backend is Backend.VOLCANO else "auto"
    return World.model_validate({"nodes": spec.resources.nodes, "ranks_per_node": spec.ranks_per_node, "device": device})


def _budget(spec: JobSpec) -> BudgetState:
    """Seconds that all attempts together may take: the smallest of the limits, money turned into time by the price.

    ``on_limit: refuse`` holds the budget against the estimate only, and lets a job that has begun finish.
    """
    budget = spec.budget
    limits = [spec.lifecycle.max_hours * 3600] if spec.lifecycle.max_hours else []
    if budget.on_limit == "checkpoint_and_stop":
        rate = spec.price.per_npu_hour * billed_npus(spec) if spec.price else 0.0
        limits += [budget.max_hours * 3600] if budget.max_hours else []
        limits += [budget.max_total / rate * 3600] if budget.max_total and rate > 0 else []
    return BudgetState(max_run_s=min(limits) if limits else None, on_limit=spec.budget.on_limit)


def billed_npus(spec: JobSpec) -> int:
    """NPUs that are paid for while the job holds its nodes: whole servers where the bill or a job over several asks for them."""
    resources = spec.resources
    if resources.npus_per_node == 0:
        return 0
    whole = spec.price is not None and spec.price.bill == "nodes"
    whole = whole or (resources.nodes > 1 and (spec.price is None or spec.price.bill == "auto") and spec.backend is Backend.VOLCANO)
    per_node = node_type_of(resources.npu, spec.cluster.node_type).ranks if whole else resources.npus_per_node
    return resources.nodes * max(per_node, resources.npus_per_node)


def _resolve(spec: JobSpec, plan_horizon: Horizon) -> RunConfig:
    """The run config with a value wherever the spec left one to be derived, so that the trainer derives nothing."""
    run = spec.run
    batch = plan_horizon.tokens_per_step
    pretrain = run.pretrain.model_copy(
        update={
            "tokens_per_step": batch, "steps": plan_horizon.steps, "batch_lr_scale": plan_horizon.batch_lr_scale,
            "weight_decay_scaled": plan_horizon.weight_decay_scaled,
        }
    )
    sft_batch = run.sft.device_batch or pretrain.device_batch
    sft = run.sft.model_copy(update={"device_batch": sft_batch, "tokens_per_step": run.sft.tokens_per_step or batch})
    evaluation = run.eval.model_copy(update={"device_batch": run.eval.device_batch or pretrain.device_batch})
    pattern = window_pattern(spec) if run.model.window_pattern == "auto" else run.model.window_pattern
    return run.model_copy(
        update={
            "pretrain": pretrain, "sft": sft, "eval": evaluation, "model": run.model.model_copy(update={"window_pattern": pattern}),
            "data": run.data.model_copy(update={"shards": _shards(spec, plan_horizon), "dir": _data_dir(spec)}),
        }
    )


def _shards(spec: JobSpec, plan_horizon: Horizon) -> int | None:
    data = spec.run.data
    if data.shards is not None or data.source not in _DOWNLOADED:
        return data.shards
    return int(-(-plan_horizon.tokens // SHARD_TRAINED_TOKENS[data.packing])) + VALIDATION_SHARDS


def _data_dir(spec: JobSpec) -> str | None:
    volume = spec.storage.data
    if spec.run.data.dir is not None or spec.backend is not Backend.VOLCANO or volume is None:
        return spec.run.data.dir
    return volume.path
