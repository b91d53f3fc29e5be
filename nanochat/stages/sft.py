"""Stage sft: teaches a pretrained model to answer, on conversations; only what the assistant says is trained on."""

from typing import Any

from nanochat.artifacts import about, find_checkpoint, load_tokenizer, require_fit, shape_of
from nanochat.checkpoint import Checkpoints
from nanochat.checkpoint_files import Manifest, load_weights
from nanochat.context import Context
from nanochat.contract import ModelShape, Stage
from nanochat.data import Place
from nanochat.data.conversations import open_conversations, own_files, skipped_records
from nanochat.data.sft import build_sft_loader, epoch_steps, left_out, sft_validation_batches
from nanochat.errors import BadConfig, BadData
from nanochat.evaluation import Evaluator
from nanochat.feed import Rows
from nanochat.loop import Loop, Plan
from nanochat.model import GPT, build
from nanochat.optim import LearningRates, MuonAdamW, build_optimizer
from nanochat.schedule import FineTuneSchedule
from nanochat.tokenizer import Tokenizer

__all__ = ["check", "run"]

STAGE = Stage.SFT.value
BASE = Stage.PRETRAIN.value
SHOWN = 10
"""Skipped records that are named."""
OWN_SKIPPED = "sft_own_records_skipped"
"""Key in `Context.checked`: how many records of one's own files are left out."""


def check(context: Context) -> None:
    """A pretrained model and its tokenizer are there.

    Raises:
        BadData: They are not, or a conversation is wrong.
        BadConfig: The model is another than the run config and the tokenizer say.
    """
    base, tokenizer = find_checkpoint(context, (BASE,)), load_tokenizer(context)
    require_fit(context, base, tokenizer)
    context.checked[OWN_SKIPPED] = context.peers.first_does(lambda: _open_data(context, tokenizer, shape_of(base).sequence_len + 1))


def run(context: Context) -> dict[str, Any]:
    """Fine-tune; gives back loss, bpb before and after, and tokens."""
    tokenizer = load_tokenizer(context)
    base = find_checkpoint(context, (BASE,))
    shape = shape_of(base)
    model = build(shape, context.device.compute_dtype(context.run.dtype), context.device.torch)
    optimizer = build_optimizer(model, _rates(context), context.comm)
    checkpoints = Checkpoints(
        context.job_dir, STAGE, context.peers, context.events, context.run.checkpoint, about(context, shape, tokenizer)
    )
    manifest = checkpoints.restore(optimizer, model.load_state_dict) if context.run.resume != "never" else None
    if manifest is None:
        _start_from(context, base, optimizer, model)
    place = _place(context, shape)
    steps = context.run.sft.steps or context.peers.first_does(lambda: epoch_steps(context.run_file, tokenizer, place))
    noted: dict[str, str] = {}
    loader = build_sft_loader(context.run_file, tokenizer, place, noted=noted)
    evaluator = Evaluator(context, tokenizer, place, context.run.sft.eval_tokens)
    loop = Loop(context, model, optimizer, _schedule(context, steps), Rows(loader, context), _plan(context, place, steps), checkpoints)

    def batches() -> Any:
        return sft_validation_batches(context.run_file, tokenizer, place, eval_tokens=context.run.sft.eval_tokens)

    loop.evaluate = lambda step: {"bpb": evaluator.bpb(model, step, batches)}
    if manifest is not None:
        loop.resume(manifest)
    try:
        result = loop.run()
        skipped = context.checked[OWN_SKIPPED] + _tell_left_out(context, left_out(loader), noted)
        return {**result, "rows": loader.stats.shares(), "skipped_records": skipped}
    finally:
        loader.close()


def _open_data(context: Context, tokenizer: Tokenizer, limit: int) -> int:
    """Reads all conversations once, so that a wrong record is found, and told, before a model is built; how many are left out."""
    skipped = _skipped(context, tokenizer, limit)
    open_conversations(context.run, "val")
    if skipped:
        more = f"; and {len(skipped) - SHOWN} more" if len(skipped) > SHOWN else ""
        context.events.warn("records_skipped", f"{len(skipped)} conversations are left out: {'; '.join(skipped[:SHOWN])}{more}")
    return len(skipped)


def _tell_left_out(context: Context, count: int, noted: dict[str, str]) -> int:
    """How many records of published sets all ranks left out while they trained; a warning tells it, with the first few of them."""
    total = sum(context.peers.gather(count))
    told = context.peers.gather(dict(noted))  # a copy: the loader's thread still reads ahead, and notes what it meets
    if total and context.is_first:
        named = [f"{place}: {why}" for entries in told for place, why in entries.items()][: min(SHOWN, total)]
        more = f"; and {total - len(named)} more" if total > len(named) else ""
        which = f": {'; '.join(named)}{more}" if named else ", all of them by earlier attempts"
        context.events.warn("records_skipped", f"{total} records of published sets were left out{which}")
    return total


def _skipped(context: Context, tokenizer: Tokenizer, limit: int) -> list[str]:
    """Which records of one's own files are left out, and why; those that are refused raise."""
    conversations = open_conversations(context.run, "train")
    for file in own_files(conversations):
        file.leave_out_unlearnable(lambda item: sum(tokenizer.render_conversation(item, limit)[1]), limit)
    return skipped_records(conversations)


def _place(context: Context, shape: ModelShape) -> Place:
    batch = context.run.sft.device_batch or context.run.pretrain.device_batch
    return Place(context.comm.rank, context.comm.size, batch, shape.sequence_len)


def _start_from(context: Context, base: Manifest, optimizer: MuonAdamW, model: GPT) -> None:
    """Take over weights and optimizer state: the moments fit the weights, and cold ones would shake them."""
    if not base.pieces:  # imported from upstream: its state is sharded by its world size and stays there
        model.load_state_dict(load_weights(base))
        if context.is_first:
            context.events.warn("cold_optimizer", "the pretrained model has no optimizer state; its moments start at zero")
        return
    source = Checkpoints(base.folder.parents[2], BASE, context.peers, context.events, context.run.checkpoint)
    if source.restore(optimizer, model.load_state_dict, step=base.step) is None:
        raise BadData("the pretrained model cannot be loaded", where=str(base.folder))


def _rates(context: Context) -> LearningRates:
    """Pretraining's rates; `FineTuneSchedule` scales them down."""
    config = context.run.pretrain
    return LearningRates(
        config.embedding_lr, config.unembedding_lr, config.matrix_lr, config.scalar_lr, batch_scale=config.batch_lr_scale or 1.0
    )


def _schedule(context: Context, steps: int) -> FineTuneSchedule:
    config = context.run.sft
    return FineTuneSchedule(steps, config.init_lr_frac, config.warmup_frac, config.warmdown_frac, config.final_lr_frac)


def _plan(context: Context, place: Place, steps: int) -> Plan:
    config, pretrain = context.run.sft, context.run.pretrain
    micro = place.device_batch * place.sequence_len * place.world_size
    batch = config.tokens_per_step or pretrain.tokens_per_step or micro
    if batch % micro:
        raise BadConfig(f"{batch} tokens per step are not a multiple of {micro}", where="run.sft.tokens_per_step")
    return Plan(
        steps=steps, tokens_per_step=batch, grad_accum=batch // micro, eval_every=config.eval_every, masked=True,
        max_session_s=pretrain.max_session_s, checkpoint=context.run.checkpoint,
    )
