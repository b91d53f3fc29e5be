"""What stages leave for each other in the job's folder, found by name and checked before it is used."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nanochat.checkpoint_files import Manifest, Torn, load_weights, read_manifest, steps_of
from nanochat.context import Context
from nanochat.contract import ModelShape, layout
from nanochat.errors import BadConfig, BadData
from nanochat.files import write_atomic
from nanochat.model import GPT, build
from nanochat.tokenizer import Tokenizer

__all__ = [
    "MODEL_STAGES", "about", "find_checkpoint", "load_model", "load_tokenizer", "other_job", "read_results", "require_fit", "shape_of", "write_results",
]

MODEL_STAGES = ("rl", "sft", "pretrain")
"""Stages that make a model, the furthest first."""


def other_job(context: Context) -> tuple[Path, int | None] | None:
    """Folder and step (None: the newest) of the job that ``run.resume: JOB@STEP`` names; None for auto and never."""
    name, _, step = context.run.resume.partition("@")
    if not step:
        return None
    return context.job_dir.parent / name, None if step == "latest" else int(step)


def load_tokenizer(context: Context) -> Tokenizer:
    """This job's tokenizer, or that of the job that it goes on from.

    Raises:
        BadData: There is none, or it is damaged.
    """
    own = layout.tokenizer_dir(context.job_dir)
    other = other_job(context)
    if not own.exists() and other is not None:
        return Tokenizer.load(layout.tokenizer_dir(other[0]))
    return Tokenizer.load(own)


def find_checkpoint(context: Context, stages: tuple[str, ...] = MODEL_STAGES) -> Manifest:
    """The newest complete checkpoint of the first of these stages that has one, in this job or the one it goes on from.

    Torn ones are passed over with a warning.

    Raises:
        BadData: There is none.
    """
    other = other_job(context)
    for job, step in [(context.job_dir, None), *([other] if other else [])]:
        for stage in stages:
            for candidate in steps_of(job, stage):
                if step is not None and candidate != step:
                    continue
                try:
                    return read_manifest(layout.checkpoint_dir(job, stage, candidate))
                except Torn as error:
                    if context.is_first:
                        context.events.warn("torn_checkpoint", str(error))
    raise BadData(
        f"no complete checkpoint of {' or '.join(stages)}", where=str(layout.checkpoints_dir(context.job_dir, stages[-1])),
        hint="put the stage that makes the model before this one in run.stages, or set run.resume: JOB@STEP",
    )


def about(context: Context, shape: ModelShape, tokenizer: Tokenizer) -> dict[str, Any]:
    """What a manifest says about the model that it holds."""
    return {
        "job": context.run_file.job, "shape": asdict(shape), "tokenizer": tokenizer.fingerprint,
        "run": context.run.model_dump(mode="json"), "spec_sha256": context.run_file.spec_sha256,
    }


def shape_of(manifest: Manifest) -> ModelShape:
    """Shape of the model in a checkpoint.

    Raises:
        BadData: The manifest does not say.
    """
    try:
        stored = dict(manifest.about["shape"])
        return ModelShape(**{**stored, "windows": tuple(stored["windows"])})
    except (KeyError, TypeError) as error:
        raise BadData(f"the manifest does not give the model's shape: {error}", where=str(manifest.folder)) from error


def require_fit(context: Context, manifest: Manifest, tokenizer: Tokenizer) -> None:
    """Refuses to go on from a model that is another than the run config and the tokenizer say.

    Raises:
        BadConfig: Another tokenizer, or another depth or width.
    """
    if manifest.about.get("tokenizer", tokenizer.fingerprint) != tokenizer.fingerprint:
        raise BadConfig("the checkpoint was made with another tokenizer", where=str(manifest.folder))
    found, wanted = shape_of(manifest), context.shape(tokenizer.vocab_size)
    for name in ("depth", "width", "head_dim"):
        if getattr(found, name) != getattr(wanted, name):
            raise BadConfig(
                f"the checkpoint has {name} {getattr(found, name)}, run.model says {getattr(wanted, name)}", where=str(manifest.folder),
                hint=f"set run.model to what the model was trained with (depth {found.depth}, width {found.width}, head_dim {found.head_dim})",
            )


def load_model(context: Context, manifest: Manifest, tokenizer: Tokenizer) -> GPT:
    """The model of a checkpoint, on this rank's device.

    Raises:
        BadConfig: The checkpoint was made with another tokenizer.
        Torn: The file is damaged.
    """
    if manifest.about.get("tokenizer", tokenizer.fingerprint) != tokenizer.fingerprint:
        raise BadConfig("the checkpoint was made with another tokenizer", where=str(manifest.folder))
    model = build(shape_of(manifest), context.device.compute_dtype(context.run.dtype), context.device.torch)
    model.load_state_dict(load_weights(manifest))
    return model


def write_results(context: Context, name: str, results: dict[str, Any]) -> Path:
    """Path of ``results/NAME.json``. Rank 0 only."""
    path = layout.results_file(context.job_dir, name)
    write_atomic(path, json.dumps(results, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    return path


def read_results(context: Context, name: str) -> dict[str, Any]:
    """What `write_results` wrote, or nothing."""
    try:
        found: dict[str, Any] = json.loads(layout.results_file(context.job_dir, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
