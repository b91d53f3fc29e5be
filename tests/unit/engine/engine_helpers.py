"""A small model with lively random weights, and a job's folder that holds one."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import torch

from nanochat.contract import ModelConfig, ModelShape, layout
from nanochat.model import GPT, build
from nanochat.tokenizer import Tokenizer

BYTES = Tokenizer.train(["x"], 265)


def lively_model(sequence_len: int = 64, vocab_size: int = 265, seed: int = 0) -> GPT:
    """A model whose every part matters: freshly drawn weights leave most of it switched off."""
    config = ModelConfig(depth=3, aspect_ratio=16, head_dim=16, sequence_len=sequence_len, window_pattern="SL")
    model = build(ModelShape.of(config, vocab_size), torch.float32, "cpu", seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


@torch.inference_mode()
def naive_greedy(model: GPT, prompt: list[int], count: int, stops: set[int]) -> list[int]:
    """The likeliest tokens, each from a whole forward pass without a cache."""
    tokens = list(prompt)
    for _ in range(count):
        token = int(model(torch.tensor([tokens]))[0, -1].argmax())
        if token in stops:
            break
        tokens.append(token)
    return tokens[len(prompt):]


def write_job(job: Path, model: GPT, tokenizer: Tokenizer, stage: str = "sft", step: int = 7) -> Path:
    """A job's folder with one complete checkpoint and its tokenizer."""
    folder = layout.checkpoint_dir(job, stage, step)
    folder.mkdir(parents=True)
    torch.save(model.state_dict(), folder / "model.pt")
    raw = (folder / "model.pt").read_bytes()
    manifest = {
        "v": 1, "complete": True, "stage": stage, "step": step, "world_size": 1, "pieces": {}, "updates": step, "loop": {}, "loader": [],
        "files": {"model.pt": {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}},
        "about": {"shape": asdict(model.shape), "tokenizer": tokenizer.fingerprint, "run": {"dtype": "float32"}},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    tokenizer.save(layout.tokenizer_dir(job))
    return folder
