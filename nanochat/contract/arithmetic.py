"""Exact arithmetic of the model and of its training horizon: parameters, FLOPs, tokens, batch, rates. No torch.

Formulas are upstream nanochat's at karpathy/nanochat 92d63d4 (``nanochat/gpt.py``, ``scripts/base_train.py``); parameter
counts agree with the real module for every even depth from 2 to 40 (tests).

Symbols: L depth, D width, H heads, V vocabulary padded to a multiple of 64, T sequence length, W world size.
"""

import math
from dataclasses import dataclass

from nanochat.contract.run import ModelConfig

__all__ = [
    "REFERENCE_BATCH_TOKENS", "REFERENCE_DEPTH", "Horizon", "ModelShape", "ParameterCounts", "horizon", "neighbouring_batches", "pad_to", "windows",
]

VOCAB_MULTIPLE = 64
"""Embedding and lm_head are padded up to a multiple of this."""
GATE_CHANNELS = 12
"""Channels of the normed block input that a value-embedding gate reads."""
SMEAR_CHANNELS = 24
"""Channels of the embedding that the smear gate reads."""
REFERENCE_DEPTH = 12
"""Depth at which the rates and the batch were tuned."""
REFERENCE_BATCH_TOKENS = 2**19
"""Best batch at the reference depth, in tokens."""
BATCH_EXPONENT = 0.383
"""Best batch grows with tokens to this power (arXiv:2505.13738)."""


def pad_to(value: int, multiple: int) -> int:
    """The smallest multiple that is not below value."""
    return -(-value // multiple) * multiple


def windows(pattern: str, depth: int, sequence_len: int) -> tuple[int, ...]:
    """Window of each layer in tokens: how many earlier tokens it sees (key j for query i if 0 <= i - j <= window).

    The pattern is tiled over the layers and the last layer is always full. A short window is a quarter of the sequence,
    rounded up to 128 (512 at 2048), never more than the sequence.
    """
    short = min(sequence_len, pad_to(-(-sequence_len // 4), 128))
    kinds = [pattern[i % len(pattern)] for i in range(depth)]
    kinds[-1] = "L"
    return tuple(sequence_len if kind == "L" else short for kind in kinds)


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters by group; `total` is what ``sum(p.numel())`` gives."""

    wte: int
    value_embeds: int
    lm_head: int
    matrices: int
    scalars: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.wte + self.value_embeds + self.lm_head + self.matrices + self.scalars

    @property
    def scaling(self) -> int:
        """Parameters that scaling laws count: matrices and lm_head (embeddings are look-ups)."""
        return self.matrices + self.lm_head


@dataclass(frozen=True)
class ModelShape:
    """Width, heads and windows that follow from the depth."""

    depth: int
    width: int
    heads: int
    head_dim: int
    vocab_size: int
    padded_vocab: int
    sequence_len: int
    windows: tuple[int, ...]

    @classmethod
    def of(cls, model: ModelConfig, vocab_size: int, *, default_pattern: str = "L", depth: int | None = None) -> "ModelShape":
        """Shape for a model config.

        Args:
            model: The model part of a run config.
            vocab_size: Tokens in the vocabulary, before padding.
            default_pattern: What ``window_pattern: auto`` means where this will run.
            depth: Another depth than the config's, everything else alike (for the reference model).
        """
        layers = depth or model.depth
        width = pad_to(layers * model.aspect_ratio, model.head_dim)
        pattern = default_pattern if model.window_pattern == "auto" else model.window_pattern
        return cls(
            depth=layers, width=width, heads=width // model.head_dim, head_dim=model.head_dim, vocab_size=vocab_size,
            padded_vocab=pad_to(vocab_size, VOCAB_MULTIPLE), sequence_len=model.sequence_len,
            windows=windows(pattern, layers, model.sequence_len),
        )

    @property
    def value_embed_layers(self) -> tuple[int, ...]:
        """Layers with a value embedding: every second one, the last included."""
        return tuple(i for i in range(self.depth) if i % 2 == (self.depth - 1) % 2)

    @property
    def parameters(self) -> ParameterCounts:
        """Parameter counts, group by group."""
        n_ve = len(self.value_embed_layers)
        table = self.padded_vocab * self.width
        return ParameterCounts(
            wte=table, value_embeds=n_ve * table, lm_head=table,
            matrices=12 * self.width**2 * self.depth + GATE_CHANNELS * self.heads * n_ve,
            scalars=2 * self.depth + SMEAR_CHANNELS + 2,
        )

    @property
    def flops_per_token(self) -> int:
        """Model FLOPs of forward and backward for one trained token; attention as upstream counts it (not halved for causality)."""
        attention = sum(12 * self.width * min(window, self.sequence_len) for window in self.windows)
        return 6 * (self.parameters.scaling + SMEAR_CHANNELS) + attention

    def kv_bytes_per_token(self, itemsize: int = 2) -> int:
        """Bytes that one token takes in the KV cache."""
        return self.depth * 2 * self.width * itemsize


@dataclass(frozen=True)
class Horizon:
    """How long and with which batch and rates a pretraining runs."""

    steps: int
    tokens_per_step: int
    grad_accum: int
    batch_lr_scale: float
    weight_decay_scaled: float

    @property
    def tokens(self) -> int:
        """Tokens trained in all."""
        return self.steps * self.tokens_per_step


def horizon(
    shape: ModelShape, reference: ModelShape, *, world_size: int, device_batch: int, ratio: float, weight_decay: float,
    tokens_per_step: int | None = None, steps: int | None = None, target_flops: float | None = None,
) -> Horizon:
    """Batch, steps and scaled rates, by upstream's rules.

    Args:
        shape: The model that is trained.
        reference: The same recipe at `REFERENCE_DEPTH`.
        world_size: Ranks.
        device_batch: Sequences of one rank in one forward/backward.
        ratio: Tokens per scaling parameter.
        weight_decay: Muon's weight decay at the reference.
        tokens_per_step: Global batch given by the spec; it must divide. A derived one is rounded to the nearest multiple.
        steps: Horizon given by the spec.
        target_flops: Compute given by the spec; `steps` wins.

    Raises:
        ValueError: tokens_per_step is not a multiple of device_batch x sequence x world size.
    """
    micro = device_batch * shape.sequence_len * world_size
    target_tokens = int(ratio * shape.parameters.scaling)
    reference_tokens = ratio * reference.parameters.scaling
    if tokens_per_step is None:
        exact = REFERENCE_BATCH_TOKENS * (target_tokens / reference_tokens) ** BATCH_EXPONENT
        batch = max(1, round(2 ** round(math.log2(exact)) / micro)) * micro
    elif tokens_per_step % micro:
        raise ValueError(f"{tokens_per_step} tokens per step are not a multiple of {micro}")
    else:
        batch = tokens_per_step
    if steps is None:
        steps = max(1, round(target_flops / (shape.flops_per_token * batch)) if target_flops else target_tokens // batch)
    lr_scale = math.sqrt(batch / REFERENCE_BATCH_TOKENS)
    return Horizon(
        steps=steps, tokens_per_step=batch, grad_accum=batch // micro, batch_lr_scale=lr_scale,
        weight_decay_scaled=weight_decay * lr_scale * (reference_tokens / max(1, target_tokens)),
    )


def neighbouring_batches(tokens_per_step: int, micro_tokens: int) -> tuple[int, int]:
    """The two multiples of micro_tokens around a batch that does not divide; the lower one is at least one micro batch."""
    below = max(micro_tokens, tokens_per_step // micro_tokens * micro_tokens)
    return below, (tokens_per_step // micro_tokens + 1) * micro_tokens
