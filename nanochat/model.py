"""The transformer: upstream nanochat's architecture (karpathy/nanochat 92d63d4, ``nanochat/gpt.py``), written anew.

Names of parameters are upstream's, so that its checkpoints load. No biases, no learnable norms, untied embeddings.
Linear weights are kept in fp32 and cast to the activations' dtype for each product; embeddings are kept in that dtype.
"""

from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanochat.attention import Kernel, attend
from nanochat.contract import ModelShape
from nanochat.contract.arithmetic import GATE_CHANNELS, SMEAR_CHANNELS
from nanochat.device import generator, logits_chunk_elements
from nanochat.errors import BadConfig, BadData
from nanochat.ops import mix, relu_squared, rms_norm, rotary_norm, softcap_cross_entropy

__all__ = ["GPT", "KVCache", "Reduction", "build"]

Reduction = Literal["mean", "sum", "none"]

ROTARY_BASE = 100_000.0
ROTARY_SPAN = 10
"""Rotary tables cover this many times the training length."""
QK_SCALE = 1.2
"""Queries and keys are both sharpened by this, so attention logits by 1.44."""
VALUE_GATE_SCALE = 3.0
SOFTCAP = 15.0
"""Logits are squashed smoothly into (-15, 15)."""


class Linear(nn.Linear):
    """A bias-free linear map whose fp32 weight is cast to the input's dtype, so that a bf16 input means a bf16 GEMM."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Nothing: `GPT.init_weights` draws. On the meta device torch's own drawing imports its compiler (4 s of CPU time)."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, in_features) to (…, out_features)."""
        return F.linear(x, self.weight.to(x.dtype))


class Embedding(nn.Embedding):
    """A table of vectors, drawn by `GPT.init_weights`."""

    def reset_parameters(self) -> None:
        """Nothing, see `Linear.reset_parameters`."""


class KVCache:
    """Keys, values and smear state of a batch that generates in step: all rows are at the same position.

    Args:
        shape: The model's shape.
        batch: Rows.
        max_len: Positions that fit.
        dtype: The model's compute dtype.
        device: Where the model is.
    """

    def __init__(self, shape: ModelShape, batch: int, max_len: int, dtype: torch.dtype, device: torch.device | str) -> None:
        size = (shape.depth, 2, batch, max_len, shape.heads, shape.head_dim)
        self.data = torch.zeros(size, dtype=dtype, device=device)
        self.length = 0
        self.previous: Tensor | None = None
        """Last position's normed embedding before smearing, (batch, 1, C)."""

    @property
    def batch(self) -> int:
        """Rows."""
        return self.data.size(2)

    @property
    def max_len(self) -> int:
        """Positions that fit."""
        return self.data.size(3)

    def reset(self) -> None:
        """Forget everything; memory is kept."""
        self.length, self.previous = 0, None

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values (batch, length + T, H, D) of a layer, the new ones (batch, T, H, D) included.

        Raises:
            BadData: They do not fit.
        """
        end = self.length + k.size(1)
        if end > self.max_len:
            raise BadData(f"{end} positions do not fit a cache of {self.max_len}", hint="shorten the prompt or the answer")
        keys, values = self.data[layer, 0], self.data[layer, 1]
        keys[:, self.length : end] = k
        values[:, self.length : end] = v
        return keys[:, :end], values[:, :end]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        """Mixed values (batch, T, H, D) of the new positions, which are remembered."""
        return attend(q, *self.append(layer, k, v), window)

    def rotary(self, cos: Tensor, sin: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Rotary tables (1, count, 1, D/2) of the next positions.

        Raises:
            BadData: The tables end before.
        """
        return rotary_slice(cos, sin, self.length, count)

    def advance(self, count: int) -> None:
        """The next positions are behind us."""
        self.length += count

    def copy_from(self, other: "KVCache") -> None:
        """Take over another cache's content; a single row is repeated for every row here.

        Raises:
            ValueError: Row counts do not fit, or the content is longer than this cache.
        """
        if other.batch not in (1, self.batch) or other.length > self.max_len:
            raise ValueError(f"cannot copy {other.batch} rows of {other.length} into {self.batch} rows of {self.max_len}")
        self.data[:, :, :, : other.length] = other.data[:, :, :, : other.length]
        self.length = other.length
        self.previous = None if other.previous is None else other.previous.expand(self.batch, -1, -1).clone()


def rotary_slice(cos: Tensor, sin: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Rotary tables (1, count, 1, D/2) from a position on.

    Raises:
        BadData: The tables end before.
    """
    end = start + count
    if end > cos.size(1):
        raise BadData(f"{end} positions, and the model's rotary tables hold {cos.size(1)}", hint="shorten the text")
    return cos[:, start:end], sin[:, start:end]


class Attention(nn.Module):
    """Multi-head causal attention with rotary positions, QK-norm and a gated value embedding in every second layer."""

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.window = layer, shape.heads, shape.windows[layer]
        self.kernel: Kernel | None = None
        width = shape.width
        self.c_q, self.c_k, self.c_v, self.c_proj = (Linear(width, width) for _ in range(4))
        self.ve_gate = Linear(GATE_CHANNELS, shape.heads) if layer in shape.value_embed_layers else None

    def forward(self, x: Tensor, value_embed: Tensor | None, rotary: tuple[Tensor, Tensor], cache: KVCache | None) -> Tensor:
        """Mixed values (B, T, C) for normed input x (B, T, C) and the layer's value embeddings (B, T, C)."""
        q, k, v = (proj(x).unflatten(-1, (self.heads, -1)) for proj in (self.c_q, self.c_k, self.c_v))
        if self.ve_gate is not None and value_embed is not None:
            gate = VALUE_GATE_SCALE * torch.sigmoid(self.ve_gate(x[..., :GATE_CHANNELS]))
            v = v + gate.unsqueeze(-1) * value_embed.unflatten(-1, (self.heads, -1))
        q, k = (rotary_norm(t, *rotary, QK_SCALE) for t in (q, k))
        mixed = attend(q, k, v, self.window, self.kernel) if cache is None else cache.attend(self.layer, q, k, v, self.window)
        return self.c_proj(mixed.flatten(2))


class MLP(nn.Module):
    """Two linear maps with a squared ReLU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = Linear(width, 4 * width), Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        return self.c_proj(relu_squared(self.c_fc(x)))


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream from a normed input."""

    def __init__(self, shape: ModelShape, layer: int) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(shape, layer), MLP(shape.width)

    def forward(self, x: Tensor, value_embed: Tensor | None, rotary: tuple[Tensor, Tensor], cache: KVCache | None) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        x = x + self.attn(rms_norm(x), value_embed, rotary, cache)
        return x + self.mlp(rms_norm(x))


class GPT(nn.Module):
    """The model. Construct on the meta device through `build`, or directly for small shapes, then `init_weights`.

    Args:
        shape: Sizes and windows.
        dtype: Compute dtype: of activations, GEMMs, embeddings and rotary tables.

    Raises:
        BadConfig: The model is too narrow for its gates, or heads cannot be halved.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: ModelShape, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if shape.width < SMEAR_CHANNELS or shape.head_dim % 2:
            raise BadConfig(
                f"width {shape.width} with heads of {shape.head_dim}: the width must be at least {SMEAR_CHANNELS} and heads even",
                where="run.model", hint="raise depth, aspect_ratio or head_dim",
            )
        self.shape, self.dtype = shape, dtype
        vocab, width = shape.padded_vocab, shape.width
        self.transformer = nn.ModuleDict({
            "wte": Embedding(vocab, width, dtype=dtype),
            "h": nn.ModuleList(Block(shape, layer) for layer in range(shape.depth)),
        })
        self.lm_head = Linear(width, vocab)
        self.resid_lambdas = nn.Parameter(torch.ones(shape.depth))
        self.x0_lambdas = nn.Parameter(torch.zeros(shape.depth))
        self.smear_gate = Linear(SMEAR_CHANNELS, 1)
        self.smear_lambda = nn.Parameter(torch.zeros(1))
        self.backout_lambda = nn.Parameter(torch.full((1,), 0.2))
        self.value_embeds = nn.ModuleDict({str(i): Embedding(vocab, width, dtype=dtype) for i in shape.value_embed_layers})
        self._set_rotary_tables()

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.lm_head.weight.device

    @property
    def blocks(self) -> list[Block]:
        """The layers in order."""
        return cast(list[Block], list(cast(nn.ModuleList, self.transformer["h"])))

    @property
    def wte(self) -> nn.Embedding:
        """The token embedding."""
        return cast(nn.Embedding, self.transformer["wte"])

    def new_cache(self, batch: int, max_len: int | None = None) -> KVCache:
        """An empty cache for this model; max_len defaults to the sequence length that it was trained with."""
        return KVCache(self.shape, batch, max_len or self.shape.sequence_len, self.dtype, self.device)

    def _set_rotary_tables(self) -> None:
        """(1, positions, 1, head_dim/2) cosines and sines, worked out in fp32: an NPU has no fast fp64."""
        shape, device = self.shape, self.device
        if self.lm_head.weight.is_meta:  # `build` calls again once there is storage; arange on meta imports torch's compiler
            angle = torch.empty(1, ROTARY_SPAN * shape.sequence_len, 1, shape.head_dim // 2, device=device)
            self.register_buffer("cos", angle.to(self.dtype), persistent=False)
            self.register_buffer("sin", angle.to(self.dtype), persistent=False)
            return
        channel = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=device)
        position = torch.arange(ROTARY_SPAN * shape.sequence_len, dtype=torch.float32, device=device)
        angle = torch.outer(position, 1.0 / ROTARY_BASE ** (channel / shape.head_dim))[None, :, None, :]
        self.register_buffer("cos", angle.cos().to(self.dtype), persistent=False)
        self.register_buffer("sin", angle.sin().to(self.dtype), persistent=False)

    def use_kernel(self, kernel: Kernel | None) -> None:
        """Take another attention kernel than the device's own choice."""
        for block in self.blocks:
            block.attn.kernel = kernel

    @torch.no_grad()
    def init_weights(self, seed: int = 42) -> None:
        """Draw all weights. The order of draws is upstream's, so seed 42 on CPU gives upstream's weights to the bit."""
        rng = generator(self.device, seed)
        bound = 3**0.5 * self.shape.width**-0.5  # uniform with the standard deviation 1/sqrt(width)
        blocks = self.blocks
        _draw_normal(self.wte.weight, 0.8, rng)
        _draw_normal(self.lm_head.weight, 0.001, rng)
        for block in blocks:
            for matrix in (block.attn.c_q, block.attn.c_k, block.attn.c_v):
                _draw_uniform(matrix.weight, -bound, bound, rng)
            block.attn.c_proj.weight.zero_()
            _draw_uniform(block.mlp.c_fc.weight, -0.4 * bound, 0.4 * bound, rng)
            block.mlp.c_proj.weight.zero_()
        _draw_uniform(self.smear_gate.weight, 0.0, 0.02, rng)
        for table in self.value_embeds.values():
            _draw_uniform(cast(nn.Embedding, table).weight, -bound, bound, rng)
        for block in blocks:
            if block.attn.ve_gate is not None:
                _draw_uniform(block.attn.ve_gate.weight, 0.0, 0.02, rng)
        self._init_scalars()
        self._set_rotary_tables()

    def _init_scalars(self) -> None:
        """Early layers keep more of the residual stream and get more of the first embedding; smearing starts switched off."""
        last = max(self.shape.depth - 1, 1)
        for i in range(self.shape.depth):
            self.resid_lambdas[i].fill_(1.15 - 0.10 * i / last)
            self.x0_lambdas[i].fill_(0.20 - 0.15 * i / last)
        self.smear_lambda.zero_()
        self.backout_lambda.fill_(0.2)

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None, cache: KVCache | None = None, reduction: Reduction = "mean"
    ) -> Tensor:
        """Loss of the targets, or logits (B, T, vocab_size) in fp32 where no targets are given.

        Args:
            tokens: Token ids (B, T).
            targets: Ids (B, T) of the tokens that should follow; -1 counts for nothing.
            cache: Keys and values of earlier positions; tokens continue them.
            reduction: mean or sum over targets that count, or none: (B, T) losses, 0 where the target is -1.

        Raises:
            BadData: More positions than the rotary tables or the cache hold.
        """
        hidden = self.hidden(tokens, cache)
        return self.logits(hidden) if targets is None else self.loss(hidden, targets, reduction)

    def loss(self, hidden: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        """Loss of targets (B, T) from final states (B, T, C); see `forward`."""
        loss = softcap_cross_entropy(
            hidden.flatten(0, 1), self.lm_head.weight[: self.shape.vocab_size], targets.flatten(), cap=SOFTCAP,
            chunk_rows=max(1, logits_chunk_elements(self.device) // self.shape.vocab_size), want_sum=reduction != "none",
        )
        if reduction == "none":
            return loss.view(targets.shape)
        return loss / (targets >= 0).sum().clamp(min=1) if reduction == "mean" else loss

    def logits(self, hidden: Tensor) -> Tensor:
        """Softcapped logits (…, vocab_size) in fp32 of final states (…, C); padding of the vocabulary is cut off."""
        return SOFTCAP * torch.tanh(F.linear(hidden, self.lm_head.weight[: self.shape.vocab_size].to(hidden.dtype)).float() / SOFTCAP)

    def hidden(self, tokens: Tensor, cache: KVCache | None = None) -> Tensor:
        """Final normed states (B, T, C) of tokens (B, T)."""
        count = tokens.size(1)
        rotary = rotary_slice(self.cos, self.sin, 0, count) if cache is None else cache.rotary(self.cos, self.sin, count)
        x = first = self._smear(rms_norm(self.transformer["wte"](tokens)), cache)
        middle = x
        resid, again = self.resid_lambdas.unbind(), self.x0_lambdas.unbind()
        for i, block in enumerate(self.blocks):
            x = mix(x, resid[i], first, again[i])
            value_embed = self.value_embeds[str(i)](tokens) if str(i) in self.value_embeds else None
            x = block(x, value_embed, rotary, cache)
            if i == self.shape.depth // 2:
                middle = x
        if cache is not None:
            cache.advance(count)
        return rms_norm(x - self.backout_lambda.to(x.dtype) * middle)

    def _smear(self, x: Tensor, cache: KVCache | None) -> Tensor:
        """x (B, T, C) with a gated part of the position before added; the first position has none, unless a cache knows it."""
        before = None if cache is None else cache.previous
        if cache is not None:
            cache.previous = x[:, -1:].clone()
        shifted = x[:, :-1] if before is None else torch.cat((before, x[:, :-1]), dim=1)
        kept, smeared = (x[:, :1], x[:, 1:]) if before is None else (x[:, :0], x)
        gate = self.smear_lambda.to(x.dtype) * torch.sigmoid(self.smear_gate(smeared[..., :SMEAR_CHANNELS]))
        return torch.cat((kept, smeared + gate * shifted), dim=1)


def _draw_normal(weight: Tensor, std: float, rng: torch.Generator) -> None:
    """Fill with N(0, std), drawn in fp32 whatever the weight's dtype, so that all dtypes start from the same numbers."""
    weight.copy_(torch.empty(weight.shape, dtype=torch.float32, device=weight.device).normal_(0.0, std, generator=rng))


def _draw_uniform(weight: Tensor, low: float, high: float, rng: torch.Generator) -> None:
    """Fill with U(low, high), drawn in fp32."""
    weight.copy_(torch.empty(weight.shape, dtype=torch.float32, device=weight.device).uniform_(low, high, generator=rng))


def _give_storage(model: nn.Module, device: torch.device | str) -> None:
    """As ``to_empty`` does, by shape: empty_like of a meta tensor imports sympy and half of torch's compiler."""
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None:
                module._parameters[name] = nn.Parameter(torch.empty(param.shape, dtype=param.dtype, device=device))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)


def build(shape: ModelShape, dtype: torch.dtype, device: torch.device | str, seed: int | None = None) -> GPT:
    """A model on a device: constructed without memory first, then given storage once.

    Args:
        shape: Sizes and windows.
        dtype: Compute dtype.
        device: Where it lives.
        seed: Draws the weights; None leaves them undefined, for a checkpoint to fill.
    """
    with torch.device("meta"):
        model = GPT(shape, dtype)
    _give_storage(model, device)
    with torch.no_grad():
        if seed is None:
            model._set_rotary_tables()
        else:
            model.init_weights(seed)
    return model
