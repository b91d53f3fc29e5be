"""A trained model as it lies in a job's folder: opened by chat, serve and export, without ranks or a run config."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from nanochat.artifacts import MODEL_STAGES, shape_of
from nanochat.checkpoint_files import Manifest, Torn, load_weights, read_manifest, steps_of
from nanochat.contract import layout
from nanochat.device import Device
from nanochat.errors import BadConfig, BadData
from nanochat.model import GPT, build
from nanochat.tokenizer import Tokenizer

__all__ = ["TrainedModel", "add_arguments", "find", "open_trained"]

CHAT_STAGES = ("rl", "sft")
"""Stages after which a model answers; before them it goes on writing."""


@dataclass(frozen=True)
class TrainedModel:
    """A model with its tokenizer, and the checkpoint that they come from."""

    model: GPT
    tokenizer: Tokenizer
    manifest: Manifest

    @property
    def chats(self) -> bool:
        """True if it was taught to answer; a model that was only pretrained continues a text."""
        return self.manifest.stage in CHAT_STAGES


def add_arguments(parser: argparse.ArgumentParser, use: str) -> None:
    """The options that name a trained model, the same for every command; `use` ends "stage whose model ..."."""
    parser.add_argument("--job-dir", type=Path, required=True, help="folder of the job")
    parser.add_argument("--stage", choices=["pretrain", "sft", "rl"], help=f"stage whose model {use}; default: the last trained")
    parser.add_argument("--step", type=int, help="step of the checkpoint; default: the newest")


def find(job_dir: Path, stage: str | None = None, step: int | None = None) -> Manifest:
    """The newest complete checkpoint of a stage, or of the last stage that made one.

    Raises:
        BadData: There is none; torn ones are named.
    """
    if not job_dir.is_dir():
        raise BadData("there is no such job folder", where=str(job_dir))
    torn: list[str] = []
    for name in (stage,) if stage else MODEL_STAGES:
        for candidate in steps_of(job_dir, name):
            if step not in (None, candidate):
                continue
            try:
                return read_manifest(layout.checkpoint_dir(job_dir, name, candidate))
            except Torn as error:
                torn.append(str(error))
    wanted = " ".join(["complete checkpoint", *([f"of stage {stage}"] if stage else []), *([f"at step {step}"] if step is not None else [])])
    raise BadData(
        f"there is no {wanted}" + (f"; torn: {'; '.join(torn)}" if torn else ""), where=str(job_dir),
        hint="is the job still training? nanochat-npu status shows it",
    )


def open_trained(job_dir: Path, device: Device, *, stage: str | None = None, step: int | None = None) -> TrainedModel:
    """The model of a job, ready to answer.

    Args:
        job_dir: The job's folder.
        device: Where it will run.
        stage: Stage whose model is wanted; default: the last that made one.
        step: Step of the checkpoint; default: the newest.

    Raises:
        BadData: No checkpoint or no tokenizer, or one of them is damaged.
        BadConfig: They do not belong together.
    """
    manifest = find(job_dir, stage, step)
    tokenizer = _tokenizer(job_dir, manifest)
    if manifest.about.get("tokenizer", tokenizer.fingerprint) != tokenizer.fingerprint:
        raise BadConfig("the checkpoint was made with another tokenizer", where=str(manifest.folder))
    wanted = manifest.about.get("run", {}).get("dtype", "auto")
    model = build(shape_of(manifest), device.compute_dtype(wanted), device.torch)
    model.load_state_dict(load_weights(manifest))
    return TrainedModel(model.eval(), tokenizer, manifest)


def _tokenizer(job_dir: Path, manifest: Manifest) -> Tokenizer:
    """The job's own, or that of the job which it went on from."""
    resumed = str(manifest.about.get("run", {}).get("resume", ""))
    if not layout.tokenizer_dir(job_dir).exists() and "@" in resumed:
        return Tokenizer.load(layout.tokenizer_dir(job_dir.parent / resumed.partition("@")[0]))
    return Tokenizer.load(layout.tokenizer_dir(job_dir))
