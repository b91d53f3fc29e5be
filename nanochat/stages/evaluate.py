"""Stage eval: measures the model that the stages before it made."""

from typing import Any

from nanochat.artifacts import MODEL_STAGES, find_checkpoint, load_model, load_tokenizer, write_results
from nanochat.checkpoint_files import Manifest
from nanochat.context import Context
from nanochat.contract import DataSource, Stage
from nanochat.core import open_bundle
from nanochat.data import Place
from nanochat.errors import BadConfig
from nanochat.evaluation import Evaluator
from nanochat.exams import as_csv, chat_core, core
from nanochat.files import write_atomic
from nanochat.model import GPT
from nanochat.tasks.registry import CHAT_CORE, TASKS, open_task

__all__ = ["check", "run"]

GROUPS = ("auto", "bpb", "toy", "samples", "core", "chatcore")
ANSWERING = (Stage.SFT.value, Stage.RL.value)
RUNS_CODE = (
    "HumanEval runs programs that the model wrote. They get 5 s, 256 MiB, small files and an empty environment, and may still read what this user can read "
    "and use the network: a container without secrets and network is the place for models that are not trusted"
)


def check(context: Context) -> None:
    """There is a model to measure, and every task is known and has its examples: found now, and not after an hour of others.

    Raises:
        BadData: No checkpoint, no tokenizer, or a task's examples are missing.
        BadConfig: A task is unknown, or CORE has no bundle.
    """
    settings, known = context.run.eval, (*GROUPS, *TASKS)
    unknown = [name for name in settings.tasks if name not in known]
    if unknown:
        raise BadConfig(f"unknown task {unknown[0]!r}", where="run.eval.tasks", hint=f"one of {', '.join(known)}")
    load_tokenizer(context)
    manifest = _model_before(context)
    wanted = _wanted(context, manifest.stage)
    if "core" in wanted:
        if not settings.bundle:
            raise BadConfig("core needs an evaluation bundle", where="run.eval.bundle", hint="set it to a folder or a zip")
        open_bundle(settings.bundle, settings.max_per_task)
    for name in wanted:
        if name in TASKS:
            open_task(name, context.run, "val")
    for name in CHAT_CORE if "chatcore" in wanted else ():
        open_task(name, context.run, "val")
    if context.is_first and wanted & {"humaneval", "chatcore"}:
        context.events.warn("runs_model_code", RUNS_CODE)


def run(context: Context) -> dict[str, Any]:
    """Measure; gives back values by name, which are also in ``results/eval-STAGE.json`` and, as a table, ``.csv``."""
    manifest = _model_before(context)
    tokenizer = load_tokenizer(context)
    model = load_model(context, manifest, tokenizer).eval()
    rows = context.run.eval.device_batch or context.run.pretrain.device_batch
    place = Place(context.comm.rank, context.comm.size, rows, model.shape.sequence_len)
    evaluator = Evaluator(context, tokenizer, place, context.run.pretrain.eval_tokens, manifest.stage)
    context.events.step = manifest.step
    results = _measure(context, evaluator, model, manifest)
    if context.is_first:
        name = f"eval-{manifest.stage}"
        record = {"stage": manifest.stage, "step": manifest.step, "checkpoint": manifest.folder.name, **results}
        path = write_results(context, name, record)
        write_atomic(path.with_suffix(".csv"), as_csv(results))
    return results


def _model_before(context: Context) -> Manifest:
    """Checkpoint of the last stage before this one that makes a model; where none does, of the furthest that there is."""
    before = [stage.value for stage in context.run.stages[: context.stage_index] if stage.value in MODEL_STAGES]
    return find_checkpoint(context, (before[-1],) if before else MODEL_STAGES)


def _wanted(context: Context, stage: str) -> set[str]:
    """What is measured; auto is bpb, and what the data, the bundle and the model's stage make possible."""
    settings, data = context.run.eval, context.run.data
    wanted = set(settings.tasks)
    if "auto" in wanted:
        wanted |= {"bpb"}
        if data.source is DataSource.TOY:
            wanted |= {"toy"}
        if settings.bundle:
            wanted |= {"core"}
        if data.tasks_dir and stage in ANSWERING:
            wanted |= {"chatcore"}
    return wanted - {"auto"}


def _measure(context: Context, evaluator: Evaluator, model: GPT, manifest: Manifest) -> dict[str, Any]:
    settings, step = context.run.eval, manifest.step
    wanted = _wanted(context, manifest.stage)
    results: dict[str, Any] = {}
    if "bpb" in wanted:
        results["bpb"] = evaluator.bpb(model, step)
    if "toy" in wanted:
        for name, score in evaluator.toy_answers(model, step).items():
            results[name] = {"correct": score.correct, "total": score.total, "wrong": list(score.wrong)}
    if "core" in wanted and settings.bundle:
        rows = settings.device_batch or context.run.pretrain.device_batch
        results["core"] = core(evaluator, model, step, settings.bundle, settings.max_per_task, rows)
    if "chatcore" in wanted:
        results["chatcore"] = chat_core(evaluator, model, step, settings.max_per_task, settings.max_new_tokens)
    for name in sorted(wanted & set(TASKS)):
        score = evaluator.answers(model, open_task(name, context.run, "val"), step, settings.max_per_task, settings.max_new_tokens)
        results[name] = {"correct": score.correct, "total": score.total, "wrong": list(score.wrong)}
    if "samples" in wanted and context.is_first:
        evaluator.samples(model, step)
    return results
