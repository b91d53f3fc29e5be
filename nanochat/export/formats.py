"""Writes a trained model in a format; what a format cannot hold is refused by name, never left out.

Formats that are not here, and why: GGUF, ONNX and TensorRT have no operations for the smeared embeddings, the gated value embeddings
and the layer-wise mixing with the first embedding; a file without them would load and say nonsense.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from nanochat import __version__
from nanochat.contract import ModelShape
from nanochat.errors import BadConfig
from nanochat.export.vocabulary import tokenizer_config, tokenizer_json
from nanochat.trained import TrainedModel

__all__ = ["FORMATS", "export"]

MODELING = Path(__file__).with_name("modeling_nanochat.py")
Writer = Callable[[TrainedModel, Path], None]


def export(trained: TrainedModel, format_: str, target: Path) -> list[Path]:
    """Files of the exported model, complete when this returns; where it fails, nothing is left.

    Args:
        trained: The model.
        format_: A name in `FORMATS`.
        target: Folder that does not exist yet, or is empty.

    Raises:
        BadConfig: The format is not known, or the folder has content.
        BadData: The format cannot hold the model; the message names the part.
    """
    if format_ not in FORMATS:
        raise BadConfig(
            f"{format_!r} cannot hold this model: smeared embeddings, gated value embeddings and mixing with the first embedding have no place there",
            where="--format", hint=f"one of {', '.join(FORMATS)}",
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadConfig("it is there already and is not an empty folder", where=str(target), hint="name another folder with --to")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        FORMATS[format_](trained, partial)
        (partial / "nanochat.json").write_text(json.dumps(_about(trained), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.chmod(0o755)
        if target.exists():
            target.rmdir()
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return sorted(target.iterdir())


def _about(trained: TrainedModel) -> dict[str, Any]:
    manifest, shape = trained.manifest, trained.model.shape
    return {
        "made_by": f"nanochat-npu {__version__}", "job": manifest.about.get("job"), "stage": manifest.stage, "step": manifest.step,
        "shape": asdict(shape), "tokenizer": trained.tokenizer.fingerprint, "not_included": ["optimizer state", "position in the data"],
    }


def _weights(trained: TrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in trained.model.state_dict().items()}


def _write_safetensors(trained: TrainedModel, folder: Path) -> None:
    """Weights under our names in their own dtypes, and the tokenizer as we keep it."""
    save_file(_weights(trained), folder / "model.safetensors", metadata={"format": "pt"})
    trained.tokenizer.save(folder)


def _write_hf(trained: TrainedModel, folder: Path) -> None:
    """A folder for ``from_pretrained(…, trust_remote_code=True)``."""
    (folder / "tokenizer.json").write_text(tokenizer_json(trained.tokenizer), encoding="utf-8")
    save_file(_weights(trained), folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(MODELING, folder / MODELING.name)
    for name, record in {
        "config.json": _config(trained), "tokenizer_config.json": tokenizer_config(trained.tokenizer, trained.model.shape.sequence_len),
        "generation_config.json": {
            "bos_token_id": trained.tokenizer.bos_id, "pad_token_id": trained.tokenizer.bos_id, "use_cache": False,
            "eos_token_id": [trained.tokenizer.encode_special("<|assistant_end|>"), trained.tokenizer.bos_id],
        },
    }.items():
        (folder / name).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(trained: TrainedModel) -> dict[str, Any]:
    shape: ModelShape = trained.model.shape
    module = MODELING.stem
    return {
        "model_type": "nanochat_npu", "architectures": ["NanochatForCausalLM"],
        "auto_map": {"AutoConfig": f"{module}.NanochatConfig", "AutoModelForCausalLM": f"{module}.NanochatForCausalLM"},
        "vocab_size": shape.vocab_size, "padded_vocab": shape.padded_vocab, "hidden_size": shape.width, "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads, "head_dim": shape.head_dim, "max_position_embeddings": shape.sequence_len, "windows": list(shape.windows),
        "value_embed_layers": list(shape.value_embed_layers), "tie_word_embeddings": False, "use_cache": False,
        "dtype": "float32",  # matrices are fp32; embeddings of a bf16 model are widened, so that nothing is lost in loading
        "bos_token_id": trained.tokenizer.bos_id, "eos_token_id": trained.tokenizer.encode_special("<|assistant_end|>"),
    }


FORMATS: dict[str, Writer] = {"safetensors": _write_safetensors, "hf": _write_hf}
"""Name: writer."""
