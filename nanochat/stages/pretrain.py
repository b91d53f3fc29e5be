"""Stage pretrain: trains the model from its first draw, or from a checkpoint, to the end of the horizon."""

from typing import Any

from nanochat.artifacts import about, load_tokenizer, other_job, require_fit, write_results
from nanochat.checkpoint import Checkpoints
from nanochat.checkpoint_files import Manifest
from nanochat.context import Context
from nanochat.contract import DataSource, ModelShape, PretrainConfig, Stage
from nanochat.data import Place, build_loader
from nanochat.errors import BadConfig
from nanochat.evaluation import Evaluator
from nanochat.feed import Rows
from nanochat.loop import Loop, Plan
from nanochat.model import GPT, build
from nanochat.optim import LearningRates, MuonAdamW, build_optimizer
from nanochat.schedule import PretrainSchedule
from nanochat.tokenizer import Tokenizer

__all__ = ["check", "run"]

STAGE = Stage.PRETRAIN.value
HORIZON = ("steps", "tokens_per_step", "batch_lr_scale", "weight_decay_scaled")
"""Settings that a resumed run takes from the run that it goes on from: a moved horizon is another schedule."""


def check(context: Context) -> None:
    """The tokenizer is there, and the plan has filled in the horizon.

    Raises:
        BadData: There is no tokenizer.
        BadConfig: run.json lacks what the plan derives.
    """
    load_tokenizer(context)
    missing = [name for name in HORIZON if getattr(context.run.pretrain, name) is None]
    if missing:
        raise BadConfig(f"not resolved: {', '.join(missing)}", where="run.pretrain", hint="run.json is written by nanochat-npu render")


def run(context: Context) -> dict[str, Any]:
    """Train; gives back loss, bpb before and after, and tokens."""
    config = context.run.pretrain
    tokenizer = load_tokenizer(context)
    shape = context.shape(tokenizer.vocab_size)
    model = build(shape, context.device.compute_dtype(context.run.dtype), context.device.torch, context.run.seed)
    optimizer = build_optimizer(model, _rates(config), context.comm)
    checkpoints = Checkpoints(
        context.job_dir, STAGE, context.peers, context.events, context.run.checkpoint, about(context, shape, tokenizer)
    )
    manifest = _restore(context, checkpoints, optimizer, model, tokenizer)
    config = _frozen(context, config, manifest)
    place = Place(context.comm.rank, context.comm.size, config.device_batch, shape.sequence_len)
    loader = build_loader(context.run_file, tokenizer, place, context.job_dir)
    evaluator = Evaluator(context, tokenizer, place, config.eval_tokens)
    loop = Loop(context, model, optimizer, _schedule(config), Rows(loader, context), _plan(context, config, shape), checkpoints)
    loop.evaluate = lambda step: _evaluate(context, evaluator, model, step)
    loop.sample = lambda step: evaluator.samples(model, step)
    if manifest is not None:
        loop.resume(manifest)
    try:
        return {**loop.run(), "rows": loader.stats.shares()}
    finally:
        loader.close()


def _rates(config: PretrainConfig) -> LearningRates:
    return LearningRates(
        config.embedding_lr, config.unembedding_lr, config.matrix_lr, config.scalar_lr, batch_scale=config.batch_lr_scale or 1.0
    )


def _schedule(config: PretrainConfig) -> PretrainSchedule:
    return PretrainSchedule(
        config.steps or 1, config.warmup_steps, config.warmdown_frac, config.final_lr_frac, config.weight_decay_scaled or 0.0
    )


def _plan(context: Context, config: PretrainConfig, shape: ModelShape) -> Plan:
    steps, batch = config.steps or 1, config.tokens_per_step or 1
    return Plan(
        steps=steps, tokens_per_step=batch, grad_accum=batch // (config.device_batch * shape.sequence_len * context.comm.size),
        eval_every=config.eval_every, sample_every=config.sample_every, stop_at_step=config.stop_at_step,
        max_session_s=config.max_session_s, checkpoint=context.run.checkpoint,
    )


def _restore(context: Context, checkpoints: Checkpoints, optimizer: MuonAdamW, model: GPT, tokenizer: Tokenizer) -> Manifest | None:
    """Load the newest checkpoint of this job, else that of the job named in run.resume; None for a fresh start.

    Raises:
        BadConfig: run.resume names a checkpoint that is not there, or one of another model.
        Torn: There are checkpoints, and none can be used.
    """
    if context.run.resume == "never":
        return None

    def require(manifest: Manifest) -> None:
        require_fit(context, manifest, tokenizer)

    found = checkpoints.restore(optimizer, model.load_state_dict, require=require)
    other = other_job(context)
    if found is None and other is not None:
        job, step = other
        found = checkpoints.restore(optimizer, model.load_state_dict, job, step, require)
        if found is None:
            raise BadConfig(f"{context.run.resume} has no complete checkpoint of {STAGE}", where="run.resume", hint=f"look into {job}")
    return found


def _frozen(context: Context, config: PretrainConfig, manifest: Manifest | None) -> PretrainConfig:
    """The config with the horizon of the run that is resumed."""
    if manifest is None:
        return config
    before = manifest.about.get("run", {}).get("pretrain", {})
    changed = {name: before[name] for name in HORIZON if before.get(name) not in (None, getattr(config, name))}
    if changed and context.is_first:
        told = ", ".join(f"{name} {value} (not {getattr(config, name)})" for name, value in changed.items())
        context.events.warn("horizon_kept", f"the resumed run's horizon stays: {told}")
    return config.model_copy(update=changed)


def _evaluate(context: Context, evaluator: Evaluator, model: GPT, step: int) -> dict[str, float]:
    """bpb; before the first step also what an untrained model answers, for comparison afterwards."""
    values = {"bpb": evaluator.bpb(model, step)}
    if step == 0:
        results: dict[str, Any] = {"bpb": values["bpb"]}
        if context.run.data.source is DataSource.TOY and {Stage.EVAL, Stage.SFT} & set(context.run.stages):
            scores = evaluator.toy_answers(model, step)
            results |= {name: {"correct": s.correct, "total": s.total} for name, s in scores.items()}
        if context.is_first:
            write_results(context, "before", results)
    return values
