"""``python -m nanochat import-upstream``: a model and tokenizer of upstream nanochat as a job of ours.

Reads ``$NANOCHAT_BASE_DIR`` as upstream (karpathy/nanochat 92d63d4) lays it out: ``tokenizer/tokenizer.pkl``, whose pickle is
read and not executed, and ``{base,chatsft,chatrl}_checkpoints/TAG/{model,meta}_STEP``. Weights only: its optimizer state is
sharded by its world size. Models from before 2026-03-14 (no smear gate; the Ascend port is one) compute another function with
the same matrices; they are refused, since what they would say here would be silently wrong. Their tokenizers can be imported.
"""

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from nanochat.checkpoint_files import MANIFEST
from nanochat.contract import ExitCode, ModelShape, layout
from nanochat.contract.arithmetic import pad_to, windows
from nanochat.errors import BadConfig, BadData, TrainerError
from nanochat.files import sha256_of, write_atomic
from nanochat.model import build
from nanochat.pickle_reading import Instance, read_pickle
from nanochat.tokenizer import SPECIAL_TOKENS, Tokenizer

__all__ = ["import_model", "import_tokenizer", "main"]

ENCODING = "tiktoken.core.Encoding"
STAGES = {"pretrain": "base_checkpoints", "sft": "chatsft_checkpoints", "rl": "chatrl_checkpoints"}
"""Our stage: upstream's folder."""


def import_tokenizer(base: Path) -> Tokenizer:
    """Upstream's tokenizer.

    Raises:
        BadData: There is none, or the pickle holds anything but a tokenizer.
    """
    path = base / "tokenizer" / "tokenizer.pkl"
    found = read_pickle(path, {ENCODING})
    state = found.state if isinstance(found, Instance) else None
    try:
        ranks, special, pattern = state["mergeable_ranks"], state["special_tokens"], state["pat_str"]  # type: ignore[index]
        vocabulary = [token for token, _ in sorted(ranks.items(), key=lambda item: item[1])]
        names = [name for name, _ in sorted(special.items(), key=lambda item: item[1])]
        in_order = sorted(ranks.values()) == list(range(len(ranks)))
        after = sorted(special.values()) == list(range(len(ranks), len(ranks) + len(special)))
    except (TypeError, KeyError, AttributeError) as error:
        raise BadData(f"it does not hold a tiktoken tokenizer: {error}", where=str(path)) from error
    if not (in_order and after) or not all(isinstance(token, bytes) for token in vocabulary):
        raise BadData("its token ids are not merges followed by special tokens", where=str(path))
    missing = [name for name in SPECIAL_TOKENS if name not in names]
    if missing:
        raise BadData(f"it has no token {missing[0]}", where=str(path))
    return Tokenizer(vocabulary, pattern=pattern, special_tokens=names)


def import_model(base: Path, stage: str, tag: str | None, step: int | None, tokenizer: Tokenizer) -> tuple[dict[str, torch.Tensor], ModelShape, int]:
    """Weights, shape and step of one of upstream's checkpoints.

    Args:
        base: Upstream's base folder.
        stage: Our name of the stage.
        tag: Upstream's model tag; default: the only one.
        step: Default: the newest.
        tokenizer: The tokenizer that came with it.

    Raises:
        BadData: It is not there, or damaged.
        BadConfig: It is of an architecture that is not ours.
    """
    folder = _tagged(base / STAGES[stage], tag)
    step = _newest(folder) if step is None else step
    shape = _shape(folder / f"meta_{step:06d}.json", tokenizer)
    path = folder / f"model_{step:06d}.pt"
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:
        raise BadData("the file holds more than weights; it is not read", where=str(path)) from error
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise BadData(f"the weights cannot be read: {str(error).splitlines()[0]}", where=str(path)) from error
    weights = {key.removeprefix("_orig_mod."): value for key, value in stored.items()}
    return _checked(weights, shape, path), shape, step


def _tagged(folder: Path, tag: str | None) -> Path:
    tags = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if tag is None and len(tags) != 1:
        raise BadData(f"{len(tags)} models: {', '.join(tags) or 'none'}", where=str(folder), hint="name one with --tag" if tags else None)
    if tag is not None and tag not in tags:
        raise BadData(f"there is no model {tag!r}; there are {', '.join(tags) or 'none'}", where=str(folder))
    return folder / (tag or tags[0])


def _newest(folder: Path) -> int:
    """The newest step that has both weights and meta: upstream writes them one after the other, without a marker."""
    steps = [int(match[1]) for path in folder.iterdir() if (match := re.fullmatch(r"model_(\d+)\.pt", path.name))]
    whole = [step for step in steps if (folder / f"meta_{step:06d}.json").is_file()]
    if not whole:
        raise BadData("no checkpoint with model_STEP.pt and meta_STEP.json", where=str(folder))
    return max(whole)


def _shape(path: Path, tokenizer: Tokenizer) -> ModelShape:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))["model_config"]
        depth, width, heads = int(config["n_layer"]), int(config["n_embd"]), int(config["n_head"])
        length, vocab, kv_heads = int(config["sequence_len"]), int(config["vocab_size"]), int(config["n_kv_head"])
        pattern = str(config.get("window_pattern", "L"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadData(f"the model's description cannot be read: {error}", where=str(path)) from error
    if kv_heads != heads:
        raise BadConfig(f"{heads} heads share {kv_heads} key heads; ours have one each", where=str(path))
    if vocab != tokenizer.vocab_size:
        raise BadConfig(f"the model has {vocab} tokens, the tokenizer {tokenizer.vocab_size}", where=str(path))
    return ModelShape(
        depth=depth, width=width, heads=heads, head_dim=width // heads, vocab_size=vocab, padded_vocab=pad_to(vocab, 64), sequence_len=length,
        windows=windows(pattern, depth, length),
    )


def _checked(weights: dict[str, torch.Tensor], shape: ModelShape, path: Path) -> dict[str, torch.Tensor]:
    expected = {name: parameter.shape for name, parameter in build(shape, torch.float32, "meta").named_parameters()}
    missing, unknown = sorted(set(expected) - set(weights)), sorted(set(weights) - set(expected))
    if any(name.startswith("smear_") for name in missing):
        raise BadConfig(
            "the model is from before 2026-03-14: rotary base, query scale, softcap and windows were others, so the same weights mean another model",
            where=str(path), hint="train it anew, or import the tokenizer alone with --tokenizer-only",
        )
    if missing or unknown:
        raise BadConfig(f"parameters missing: {', '.join(missing[:3]) or 'none'}; unknown: {', '.join(unknown[:3]) or 'none'}", where=str(path))
    wrong = next((name for name in expected if expected[name] != weights[name].shape), None)
    if wrong:
        raise BadConfig(f"{wrong} is {tuple(weights[wrong].shape)}, it has to be {tuple(expected[wrong])}", where=str(path))
    return {name: weights[name] for name in expected}


def _write(job: Path, stage: str, step: int, weights: dict[str, torch.Tensor], about: dict[str, Any]) -> Path:
    """Folder of the checkpoint, complete when this returns."""
    final = layout.checkpoint_dir(job, stage, step)
    if final.exists():
        raise BadConfig("there is a checkpoint already", where=str(final), hint="import into another job folder")
    partial = final.with_name(f"{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    torch.save({name: value.clone() for name, value in weights.items()}, partial / "model.pt")
    content = partial / "model.pt"
    manifest = {
        "v": 1, "stage": stage, "step": step, "world_size": 1, "files": {"model.pt": {"bytes": content.stat().st_size, "sha256": sha256_of(content)}},
        "pieces": {}, "updates": step, "loop": {}, "loader": [], "about": about, "complete": True, "t": time.time(),
    }
    write_atomic(partial / MANIFEST, json.dumps(manifest) + "\n")
    partial.rename(final)
    return final


def main(argv: Sequence[str] = ()) -> int:
    """Import; gives back the exit code."""
    parser = argparse.ArgumentParser(prog="python -m nanochat import-upstream", description="Import a model of upstream nanochat.")
    parser.add_argument("base", type=Path, help="upstream's base folder ($NANOCHAT_BASE_DIR, ~/.cache/nanochat)")
    parser.add_argument("--job-dir", type=Path, required=True, help="job folder to import into")
    parser.add_argument("--stage", choices=list(STAGES), default="pretrain", help="base, chatsft or chatrl checkpoint (default: %(default)s)")
    parser.add_argument("--tag", help="upstream's model tag; default: the only one")
    parser.add_argument("--step", type=int, help="default: the newest")
    parser.add_argument("--tokenizer-only", action="store_true")
    arguments = parser.parse_args(argv)
    try:
        tokenizer = import_tokenizer(arguments.base)
        if not arguments.tokenizer_only:
            weights, shape, step = import_model(arguments.base, arguments.stage, arguments.tag, arguments.step, tokenizer)
            about = {
                "job": arguments.job_dir.name, "shape": asdict(shape), "tokenizer": tokenizer.fingerprint, "imported_from": str(arguments.base),
                "run": {},
            }
            folder = _write(arguments.job_dir, arguments.stage, step, weights, about)
            print(f"{shape.parameters.total:,} parameters, step {step}: {folder}")
        print(f"{tokenizer.vocab_size:,} tokens: {tokenizer.save(layout.tokenizer_dir(arguments.job_dir))}")
        return int(ExitCode.DONE)
    except TrainerError as error:
        print(f"nanochat import-upstream: {error}", file=sys.stderr)
        return int(error.code)
