"""nanochat's transformer for the `transformers` library: one file, copied beside the weights of an exported model.

    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

The architecture is upstream nanochat's (karpathy/nanochat 92d63d4, ``nanochat/gpt.py``). There is no KV cache here: ``generate`` works,
and computes every position again for each token. Rows of different lengths have to be padded on the right.
"""

# mypy: ignore-errors
# transformers leaves its types open, and this file has to stand alone.

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

ROTARY_BASE = 100_000.0
QK_SCALE = 1.2
VALUE_GATE_SCALE = 3.0
SOFTCAP = 15.0
GATE_CHANNELS = 12
SMEAR_CHANNELS = 24


class NanochatConfig(PretrainedConfig):
    """Sizes of a model. `windows`: how many earlier positions each layer sees."""

    model_type = "nanochat_npu"

    def __init__(
        self, vocab_size: int = 32_768, padded_vocab: int = 32_768, hidden_size: int = 768, num_hidden_layers: int = 12, num_attention_heads: int = 6,
        head_dim: int = 128, max_position_embeddings: int = 2048, windows: list[int] | None = None, value_embed_layers: list[int] | None = None, **rest: object,
    ) -> None:
        self.vocab_size, self.padded_vocab, self.hidden_size = vocab_size, padded_vocab, hidden_size
        self.num_hidden_layers, self.num_attention_heads, self.head_dim = num_hidden_layers, num_attention_heads, head_dim
        self.max_position_embeddings = max_position_embeddings
        self.windows = windows or [max_position_embeddings] * num_hidden_layers
        self.value_embed_layers = value_embed_layers or []
        rest.setdefault("tie_word_embeddings", False)
        rest.setdefault("use_cache", False)
        super().__init__(**rest)


def _norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.size(-1),), eps=torch.finfo(torch.float32).eps)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _rotary(x: Tensor) -> Tensor:
    """x (B, T, H, D) turned by minus its position's angle."""
    half = x.size(-1) // 2
    channel = torch.arange(0, x.size(-1), 2, dtype=torch.float32, device=x.device)
    position = torch.arange(x.size(1), dtype=torch.float32, device=x.device)
    angle = torch.outer(position, 1.0 / ROTARY_BASE ** (channel / x.size(-1)))[None, :, None, :]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1)


class Attention(nn.Module):
    """Causal attention with rotary positions, QK-norm, a window and, in some layers, a gated value embedding."""

    def __init__(self, config: NanochatConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.window = config.num_attention_heads, config.windows[layer]
        width, inner = config.hidden_size, config.num_attention_heads * config.head_dim
        self.c_q, self.c_k, self.c_v, self.c_proj = _linear(width, inner), _linear(width, inner), _linear(width, inner), _linear(inner, width)
        self.ve_gate = _linear(GATE_CHANNELS, self.heads) if layer in config.value_embed_layers else None

    def forward(self, x: Tensor, value_embed: Tensor | None) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        q, k, v = (proj(x).unflatten(-1, (self.heads, -1)) for proj in (self.c_q, self.c_k, self.c_v))
        if self.ve_gate is not None and value_embed is not None:
            gate = VALUE_GATE_SCALE * torch.sigmoid(self.ve_gate(x[..., :GATE_CHANNELS]))
            v = v + gate.unsqueeze(-1) * value_embed.unflatten(-1, (self.heads, -1))
        q, k = _norm(_rotary(q)) * QK_SCALE, _norm(_rotary(k)) * QK_SCALE
        place = torch.arange(x.size(1), device=x.device)
        back = place[:, None] - place[None, :]
        mask = (back >= 0) & (back <= self.window)
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear maps with a squared ReLU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = _linear(width, 4 * width), _linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        return self.c_proj(F.relu(self.c_fc(x)).square())


class Block(nn.Module):
    """Attention and MLP, each added from a normed input."""

    def __init__(self, config: NanochatConfig, layer: int) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(config, layer), MLP(config.hidden_size)

    def forward(self, x: Tensor, value_embed: Tensor | None) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        x = x + self.attn(_norm(x), value_embed)
        return x + self.mlp(_norm(x))


class NanochatForCausalLM(PreTrainedModel, GenerationMixin):
    """The model with its head."""

    config_class = NanochatConfig
    base_model_prefix = "transformer"

    def __init__(self, config: NanochatConfig) -> None:
        super().__init__(config)
        vocab, width = config.padded_vocab, config.hidden_size
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocab, width), "h": nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers)),
        })
        self.lm_head = _linear(width, vocab)
        self.resid_lambdas = nn.Parameter(torch.ones(config.num_hidden_layers))
        self.x0_lambdas = nn.Parameter(torch.zeros(config.num_hidden_layers))
        self.smear_gate = _linear(SMEAR_CHANNELS, 1)
        self.smear_lambda = nn.Parameter(torch.zeros(1))
        self.backout_lambda = nn.Parameter(torch.full((1,), 0.2))
        self.value_embeds = nn.ModuleDict({str(i): nn.Embedding(vocab, width) for i in config.value_embed_layers})
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token embeddings."""
        return self.transformer["wte"]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, return_dict: bool = True, **_rest: object
    ) -> CausalLMOutput:
        """Logits (B, T, vocab_size) in fp32; with labels (-100 counts for nothing) also the mean loss."""
        if attention_mask is not None and not bool((attention_mask[:, 0] != 0).all()):
            raise ValueError("rows are padded on the left; nanochat's smeared embeddings need padding on the right: tokenizer.padding_side = 'right'")
        hidden = self._hidden(input_ids)
        logits = SOFTCAP * torch.tanh(F.linear(hidden, self.lm_head.weight[: self.config.vocab_size]).float() / SOFTCAP)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return CausalLMOutput(loss=loss, logits=logits)

    def _hidden(self, tokens: Tensor) -> Tensor:
        x = first = self._smear(_norm(self.transformer["wte"](tokens)))
        middle = x
        for i, block in enumerate(self.transformer["h"]):
            x = self.resid_lambdas[i] * x + self.x0_lambdas[i] * first
            x = block(x, self.value_embeds[str(i)](tokens) if str(i) in self.value_embeds else None)
            if i == len(self.transformer["h"]) // 2:
                middle = x
        return _norm(x - self.backout_lambda * middle)

    def _smear(self, x: Tensor) -> Tensor:
        gate = self.smear_lambda * torch.sigmoid(self.smear_gate(x[:, 1:, :SMEAR_CHANNELS]))
        return torch.cat((x[:, :1], x[:, 1:] + gate * x[:, :-1]), dim=1)

    def prepare_inputs_for_generation(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_rest: object) -> dict[str, Tensor | None]:
        """All tokens again: there is no cache."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}
