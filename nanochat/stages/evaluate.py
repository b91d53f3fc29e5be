"""Stage eval: measures the model that the stages before it made."""

from typing import Any

from nanochat.artifacts import find_checkpoint, load_model, load_tokenizer, write_results
from nanochat.context import Context
from nanochat.contract import DataSource
from nanochat.data import Place
from nanochat.errors import BadConfig
from nanochat.evaluation import Evaluator
from nanochat.model import GPT

__all__ = ["check", "run"]

KNOWN = ("auto", "bpb", "toy", "samples")
"""Names in run.eval.tasks that this version can measure."""


def check(context: Context) -> None:
    """There is a model to measure, and every task is known.

    Raises:
        BadData: No checkpoint or no tokenizer.
        BadConfig: A task is unknown.
    """
    unknown = [name for name in context.run.eval.tasks if name not in KNOWN]
    if unknown:
        raise BadConfig(f"unknown task {unknown[0]!r}", where="run.eval.tasks", hint=f"one of {', '.join(KNOWN)}")
    load_tokenizer(context)
    find_checkpoint(context)


def run(context: Context) -> dict[str, Any]:
    """Measure; gives back values by name, which are also in ``results/eval-STAGE.json``."""
    manifest = find_checkpoint(context)
    tokenizer = load_tokenizer(context)
    model = load_model(context, manifest, tokenizer).eval()
    pretrain, settings = context.run.pretrain, context.run.eval
    place = Place(
        context.comm.rank, context.comm.size, settings.device_batch or pretrain.device_batch, model.shape.sequence_len
    )
    evaluator = Evaluator(context, tokenizer, place, pretrain.eval_tokens)
    context.events.step = manifest.step
    results = _measure(context, evaluator, model, manifest.step)
    if context.is_first:
        record = {"stage": manifest.stage, "step": manifest.step, "checkpoint": manifest.folder.name, **results}
        write_results(context, f"eval-{manifest.stage}", record)
    return results


def _measure(context: Context, evaluator: Evaluator, model: GPT, step: int) -> dict[str, Any]:
    wanted = set(context.run.eval.tasks)
    is_toy = context.run.data.source is DataSource.TOY
    results: dict[str, Any] = {}
    if wanted & {"auto", "bpb"}:
        results["bpb"] = evaluator.bpb(model, step)
    if "toy" in wanted or ("auto" in wanted and is_toy):
        for name, score in evaluator.toy_answers(model, step).items():
            results[name] = {"correct": score.correct, "total": score.total, "wrong": list(score.wrong)}
    if "samples" in wanted and context.is_first:
        evaluator.samples(model, step)
    return results
