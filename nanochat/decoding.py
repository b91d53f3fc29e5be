"""One more token for every row, as fast as the model allows: the same formulas as `nanochat.model`, arranged for a single position.

At one position a forward pass is bound by reading weights and by the number of operations, not by arithmetic. So here the weights are
cast to the compute dtype and laid out for their product once and not at each step, query, key and value are one product, what is
added is added in place, and nothing is prepared for a backward pass. Tests hold it to the model.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nanochat.contract.arithmetic import GATE_CHANNELS, SMEAR_CHANNELS
from nanochat.device import alone, attends_in_fp32, packs_weights
from nanochat.errors import BadData
from nanochat.model import GPT, QK_SCALE, SOFTCAP, VALUE_GATE_SCALE, Attention, Block, KVCache

__all__ = ["SMALL", "Decoder"]

EPS = torch.finfo(torch.float32).eps
SMALL = 2**14
"""Elements of a matrix below which it is not worth preparing."""
PACKED_ROWS = 64
"""The number of rows that oneDNN lays a packed matrix out for; it takes any other, and that for one row is twice as slow with eight."""
FEW_ELEMENTS = 2**23
"""Weights read in a step for one row, at most, for one thread to be faster than several: a d4 step takes 2.1 ms on one
thread and 2.3 to 2.9 on two; of larger models one thread may not fill the memory bus."""

Product = Callable[[Tensor], Tensor]


def _product(weight: Tensor, rows: int) -> Product:
    """What takes x (B, in) to x · weightᵀ (B, out).

    On a CPU the usual layout is the slowest: with it a d4 step's products take 2.0 ms for one row in fp32 and 3.1 ms for eight, with columns
    in sequence 1.5 and 2.4, packed 1.7 and 1.6; in bf16 0.9 and 1.1 usual, 0.4 and 0.7 packed (one thread, Zen 4).

    Args:
        weight: (out, in), in the compute dtype.
        rows: How many there will be, mostly.
    """
    if weight.numel() < SMALL or not packs_weights(weight.device, weight.dtype):
        return partial(F.linear, weight=weight)
    if rows == 1 and weight.dtype == torch.float32:
        return partial(torch.mm, mat2=weight.t().contiguous())
    packed = torch.ops.mkldnn._reorder_linear_weight.default(weight, PACKED_ROWS)
    return lambda x: torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "none", [], "")


class _Layer:
    """A block's weights, ready for use."""

    def __init__(self, block: Block, value_embed: Tensor | None, dtype: torch.dtype, rows: int) -> None:
        attention: Attention = block.attn
        self.heads, self.window = attention.heads, attention.window
        joined = torch.cat([projection.weight for projection in (attention.c_q, attention.c_k, attention.c_v)])
        self.qkv, self.out, self.up, self.down = (
            _product(weight.to(dtype), rows) for weight in (joined, attention.c_proj.weight, block.mlp.c_fc.weight, block.mlp.c_proj.weight)
        )
        self.value_embed = value_embed
        self.gate = None if attention.ve_gate is None else attention.ve_gate.weight.to(dtype)


class Decoder:
    """Steps through positions. Takes the weights as they are now: make a new one after a model has been trained on.

    Args:
        model: The model.
        rows: How many rows there will be, mostly; any other number works as well.
    """

    @torch.inference_mode()
    def __init__(self, model: GPT, rows: int = 1) -> None:
        dtype, shape = model.dtype, model.shape
        self.rows = rows
        self._model, self._middle = model, shape.depth // 2
        tables = {int(i): table.weight for i, table in model.value_embeds.items()}
        self._layers = [_Layer(block, tables.get(i), dtype, rows) for i, block in enumerate(model.blocks)]  # type: ignore[arg-type]
        self._head = _product(model.lm_head.weight[: shape.vocab_size].to(dtype), rows)
        self._smear = model.smear_gate.weight.to(dtype)
        self._resid, self._again, (self._smear_lambda,), (self._backout_lambda,) = (
            scalars.to(dtype).tolist() for scalars in (model.resid_lambdas, model.x0_lambdas, model.smear_lambda, model.backout_lambda)
        )
        self._eps = torch.full((1,), EPS, device=model.device)
        self._attends_in_fp32 = attends_in_fp32(model.device)
        read = [*(weight for block in model.blocks for weight in block.parameters()), model.lm_head.weight]
        self._small = sum(weight.numel() for weight in read) <= FEW_ELEMENTS

    @torch.inference_mode()
    def step(self, tokens: list[int], cache: KVCache) -> Tensor:
        """Logits (B, vocab_size) in fp32 after one more token of each row.

        Args:
            tokens: The rows' tokens.
            cache: Their past, at least one position; the new position is added.

        Raises:
            BadData: The cache or the rotary tables are full.
        """
        with alone(self._model.device, when=self._small and len(tokens) == 1):
            return self._step(tokens, cache)

    def _step(self, tokens: list[int], cache: KVCache) -> Tensor:
        model, position = self._model, cache.length
        if position >= min(cache.max_len, model.cos.size(1)):
            raise BadData(f"{position + 1} positions do not fit a cache of {cache.max_len}", hint="shorten the prompt or the answer")
        ids = torch.tensor(tokens, dtype=torch.long, device=model.device)
        cos, sin = model.cos[0, position, 0], model.sin[0, position, 0]
        rotary = torch.cat((cos, cos)), torch.cat((sin, -sin))
        past = cache.data[:, :, :, : position + 1].unbind()
        x = first = middle = self._smeared(self._norm(F.embedding(ids, model.wte.weight)), cache)
        for i, layer in enumerate(self._layers):
            x = torch.mul(x, self._resid[i]).add_(first, alpha=self._again[i])
            x += self._attended(layer, self._norm(x), ids, rotary, past[i])
            x += layer.down(layer.up(self._norm(x)).relu_().square_())
            if i == self._middle:
                middle = x
        cache.advance(1)
        final = self._norm(torch.sub(x, middle, alpha=self._backout_lambda))
        return self._head(final).float().div_(SOFTCAP).tanh_().mul_(SOFTCAP)

    def _smeared(self, x: Tensor, cache: KVCache) -> Tensor:
        before, cache.previous = cache.previous, x.unsqueeze(1)
        if before is None:
            return x
        gate = torch.sigmoid(F.linear(x[:, :SMEAR_CHANNELS], self._smear))
        return torch.addcmul(x, gate, before.squeeze(1), value=self._smear_lambda)

    def _attended(self, layer: _Layer, x: Tensor, ids: Tensor, rotary: tuple[Tensor, Tensor], past: Tensor) -> Tensor:
        """Output of a layer's attention (B, C); the last position of `past` (2, B, T, H, D) gets the new key and value."""
        query_key_value = layer.qkv(x).view(x.size(0), 3, layer.heads, -1)
        value = query_key_value[:, 2]
        if layer.gate is not None and layer.value_embed is not None:
            gate = torch.sigmoid(F.linear(x[:, :GATE_CHANNELS], layer.gate)).unsqueeze(-1)
            value = torch.addcmul(value, gate, F.embedding(ids, layer.value_embed).view_as(value), value=VALUE_GATE_SCALE)
        query, key = self._norm(_turned(query_key_value[:, :2], *rotary), QK_SCALE).unbind(1)
        new_key, new_value = past[:, :, -1].unbind()
        new_key.copy_(key)
        new_value.copy_(value)
        keys, values = past[:, :, -(layer.window + 1) :].transpose(2, 3).unbind()
        query = query.unsqueeze(2)
        if self._attends_in_fp32:
            query, keys, values = query.float(), keys.float(), values.float()
        return layer.out(F.scaled_dot_product_attention(query, keys, values).flatten(1).to(x.dtype))

    def _norm(self, x: Tensor, gain: float = 1.0) -> Tensor:
        """gain · x / rms(x) along the last dimension; the factor is worked out in fp32."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self._eps, length, length, value=1.0 / x.size(-1)).rsqrt_()
        return torch.mul(x, scale if gain == 1.0 else scale.mul_(gain)).to(x.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (…, D) turned by minus the angle whose cosines (D,) are given twice, and whose sines (D,) then with the other sign."""
    return torch.addcmul(x * cos, x.roll(x.size(-1) // 2, -1), sin)
