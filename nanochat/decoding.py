"""One more token for every row, as fast as the model allows: the same formulas as `nanochat.model`, arranged for a single position.

At one position a forward pass is bound by reading weights and by the number of operations, not by arithmetic. So here the
weights are cast to the compute dtype once and not at each step, query, key and value are one product, and nothing is prepared for
a backward pass. Tests hold it to the model.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nanochat.contract.arithmetic import GATE_CHANNELS, SMEAR_CHANNELS
from nanochat.errors import BadData
from nanochat.model import GPT, QK_SCALE, SOFTCAP, VALUE_GATE_SCALE, Attention, Block, KVCache

__all__ = ["Decoder"]


class _Layer:
    """A block's weights in the compute dtype."""

    def __init__(self, block: Block, value_embed: Tensor | None, dtype: torch.dtype) -> None:
        attention: Attention = block.attn
        self.heads, self.window = attention.heads, attention.window
        self.qkv = torch.cat([projection.weight for projection in (attention.c_q, attention.c_k, attention.c_v)]).to(dtype)
        self.out, self.up, self.down = (matrix.weight.to(dtype) for matrix in (attention.c_proj, block.mlp.c_fc, block.mlp.c_proj))
        self.value_embed = value_embed
        self.gate = None if attention.ve_gate is None else attention.ve_gate.weight.to(dtype)


class Decoder:
    """Steps through positions. Takes the weights as they are now: make a new one after a model has been trained on.

    Args:
        model: The model.
    """

    @torch.inference_mode()
    def __init__(self, model: GPT) -> None:
        dtype, shape = model.dtype, model.shape
        self._model, self._dtype, self._middle = model, dtype, shape.depth // 2
        tables = {int(i): table.weight for i, table in model.value_embeds.items()}
        self._layers = [_Layer(block, tables.get(i), dtype) for i, block in enumerate(model.blocks)]  # type: ignore[arg-type]
        self._head = model.lm_head.weight[: shape.vocab_size].to(dtype)
        self._smear = model.smear_gate.weight.to(dtype)
        self._resid, self._again = model.resid_lambdas.to(dtype).unbind(), model.x0_lambdas.to(dtype).unbind()
        self._smear_lambda, self._backout_lambda = model.smear_lambda.to(dtype), model.backout_lambda.to(dtype)

    @torch.inference_mode()
    def step(self, tokens: list[int], cache: KVCache) -> Tensor:
        """Logits (B, vocab_size) in fp32 after one more token of each row.

        Args:
            tokens: The rows' tokens.
            cache: Their past, at least one position; the new position is added.

        Raises:
            BadData: The cache or the rotary tables are full.
        """
        model, position = self._model, cache.length
        if position >= min(cache.max_len, model.cos.size(1)):
            raise BadData(f"{position + 1} positions do not fit a cache of {cache.max_len}", hint="shorten the prompt or the answer")
        ids = torch.tensor(tokens, dtype=torch.long, device=model.device)
        x = first = self._smeared(_norm(F.embedding(ids, model.wte.weight)), cache)
        rotary = model.cos[0, position], model.sin[0, position]
        middle = x
        for i, layer in enumerate(self._layers):
            x = torch.addcmul(x * self._resid[i], first, self._again[i])
            x = x + self._attended(layer, _norm(x), ids, rotary, cache.data[i], position)
            x = x + F.linear(F.linear(_norm(x), layer.up).relu_().square_(), layer.down)
            if i == self._middle:
                middle = x
        cache.advance(1)
        final = _norm(torch.addcmul(x, self._backout_lambda, middle, value=-1.0))
        return F.linear(final, self._head).float().div_(SOFTCAP).tanh_().mul_(SOFTCAP)

    def _smeared(self, x: Tensor, cache: KVCache) -> Tensor:
        before, cache.previous = cache.previous, x.unsqueeze(1)
        if before is None:
            return x
        gate = torch.sigmoid(F.linear(x[:, :SMEAR_CHANNELS], self._smear)).mul_(self._smear_lambda)
        return torch.addcmul(x, gate, before.squeeze(1))

    def _attended(
        self, layer: _Layer, x: Tensor, ids: Tensor, rotary: tuple[Tensor, Tensor], past: Tensor, position: int
    ) -> Tensor:
        """Output of a layer's attention (B, C); `past` (2, B, T, H, D) gets the new key and value."""
        qkv = F.linear(x, layer.qkv).view(x.size(0), 3, layer.heads, -1)
        value = qkv[:, 2]
        if layer.gate is not None and layer.value_embed is not None:
            gate = torch.sigmoid(F.linear(x[:, :GATE_CHANNELS], layer.gate)).mul_(VALUE_GATE_SCALE)
            value = torch.addcmul(value, gate.unsqueeze(-1), F.embedding(ids, layer.value_embed).view_as(value))
        cos, sin = rotary
        a, b = qkv[:, :2].chunk(2, dim=-1)
        turned = torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)
        query, key = (_norm(turned) * QK_SCALE).unbind(1)
        past[0, :, position], past[1, :, position] = key, value
        start = max(0, position - layer.window)
        keys, values = past[:, :, start : position + 1].transpose(2, 3)
        mixed = F.scaled_dot_product_attention(query.unsqueeze(2), keys, values)
        return F.linear(mixed.flatten(1), layer.out)


def _norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.size(-1),))
