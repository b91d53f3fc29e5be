"""The model against its formulas written out plainly in fp64, its counts, and generation with a cache against without."""

import math

import pytest
import torch
from torch import Tensor

from nanochat.contract import ModelConfig, ModelShape
from nanochat.errors import BadConfig, BadData
from nanochat.model import GPT, KVCache, build

VOCAB, LENGTH = 70, 24


def shape_of(depth: int = 4, pattern: str = "L", length: int = LENGTH, vocab: int = VOCAB) -> ModelShape:
    return ModelShape.of(ModelConfig(depth=depth, aspect_ratio=16 if depth > 1 else 32, head_dim=16, sequence_len=length, window_pattern=pattern), vocab)


def trained_looking(shape: ModelShape, dtype: torch.dtype = torch.float32) -> GPT:
    """A model in which every part matters: at the start several are switched off."""
    model = GPT(shape, dtype)
    model.init_weights(1)
    noise = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for param in model.parameters():
            param.add_((0.3 / math.sqrt(param.size(-1)) * torch.randn(param.shape, generator=noise)).to(param.dtype))
        model.smear_lambda.fill_(0.7)
    return model


def tokens(rows: int = 2, length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


# -- against the formulas ---------------------------------------------------------------------------------------------


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()


def plain_attention(w: dict[str, Tensor], x: Tensor, ve: Tensor | None, layer: int, shape: ModelShape) -> Tensor:
    """One sequence (T, C), one head and one query after the other."""
    p = f"transformer.h.{layer}.attn."
    T, H, D = x.size(0), shape.heads, shape.head_dim
    q, k, v = (x @ w[p + name + ".weight"].T for name in ("c_q", "c_k", "c_v"))
    out = torch.zeros_like(x)
    for h in range(H):
        part = slice(h * D, (h + 1) * D)
        qh, kh, vh = (turned(q[:, part]), turned(k[:, part]), v[:, part])
        if ve is not None:
            gate = 3 * torch.sigmoid(x[:, :12] @ w[p + "ve_gate.weight"][h])
            vh = vh + gate[:, None] * ve[:, part]
        qh, kh = 1.2 * rms(qh), 1.2 * rms(kh)
        for i in range(T):
            first = max(0, i - shape.windows[layer])
            weights = torch.softmax(kh[first : i + 1] @ qh[i] / math.sqrt(D), dim=0)
            out[i, part] = weights @ vh[first : i + 1]
    return out @ w[p + "c_proj.weight"].T


def turned(x: Tensor) -> Tensor:
    """Each pair (d, d + D/2) turned by minus position / 100000^(2d/D)."""
    half = x.size(1) // 2
    angle = torch.arange(x.size(0), dtype=x.dtype)[:, None] * 100_000.0 ** (-torch.arange(half, dtype=x.dtype) * 2 / x.size(1))
    a, b = x[:, :half], x[:, half:]
    return torch.cat((a * angle.cos() + b * angle.sin(), b * angle.cos() - a * angle.sin()), dim=1)


def plain_logits(w: dict[str, Tensor], ids: Tensor, shape: ModelShape) -> Tensor:
    """Logits (T, V) of one sequence, each formula of the architecture written out."""
    x = rms(w["transformer.wte.weight"][ids])
    gate = w["smear_lambda"] * torch.sigmoid(x[1:, :24] @ w["smear_gate.weight"][0])
    x = torch.cat((x[:1], x[1:] + gate[:, None] * x[:-1]))
    first = middle = x
    for layer in range(shape.depth):
        x = w["resid_lambdas"][layer] * x + w["x0_lambdas"][layer] * first
        table = w.get(f"value_embeds.{layer}.weight")
        x = x + plain_attention(w, rms(x), None if table is None else table[ids], layer, shape)
        inner = rms(x) @ w[f"transformer.h.{layer}.mlp.c_fc.weight"].T
        x = x + inner.clamp(min=0).square() @ w[f"transformer.h.{layer}.mlp.c_proj.weight"].T
        if layer == shape.depth // 2:
            middle = x
    logits = rms(x - w["backout_lambda"] * middle) @ w["lm_head.weight"][: shape.vocab_size].T
    return 15 * torch.tanh(logits / 15)


@pytest.mark.parametrize(("depth", "pattern", "length"), [(4, "L", LENGTH), (3, "L", LENGTH), (1, "L", LENGTH), (4, "SSSL", 160)])
def test_logits_are_the_formulas(depth: int, pattern: str, length: int) -> None:
    shape = shape_of(depth, pattern, length)
    assert (min(shape.windows) < length) == (pattern == "SSSL")
    model, ids = trained_looking(shape), tokens(2, length)
    w = {name: value.double() for name, value in model.state_dict().items()}
    for row, logits in zip(ids, model(ids), strict=True):
        torch.testing.assert_close(logits.double(), plain_logits(w, row, shape), rtol=1e-4, atol=1e-4)


def test_gradients_are_the_formulas() -> None:
    shape = shape_of()
    model, ids, targets = trained_looking(shape), tokens(2), tokens(2, seed=9)
    targets[0, :5] = -1
    model(ids, targets).backward()
    w = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
    logits = torch.cat([plain_logits(w, row, shape) for row in ids])
    torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=-1).backward()
    for name, param in model.named_parameters():
        assert param.grad is not None, name
        expected = w[name].grad
        error = (param.grad.double() - expected).norm() / expected.norm()
        assert error < 1e-4, f"{name} is off by {error:.2e}"


# -- losses -----------------------------------------------------------------------------------------------------------


def test_reductions_agree_and_ignored_targets_count_for_nothing() -> None:
    model, ids, targets = trained_looking(shape_of()), tokens(3), tokens(3, seed=5)
    targets[:, ::3] = -1
    each = model(ids, targets, reduction="none")
    assert each.shape == targets.shape and (each[targets == -1] == 0).all() and (each[targets >= 0] > 0).all()
    torch.testing.assert_close(model(ids, targets, reduction="sum"), each.sum())
    torch.testing.assert_close(model(ids, targets), each.sum() / (targets >= 0).sum())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_and_gradients_are_those_of_torchs_cross_entropy(reduction: str) -> None:
    model, ids, targets = trained_looking(shape_of()), tokens(3), tokens(3, seed=5)
    targets[1, 4:9] = -1
    weight = torch.rand(targets.shape, generator=torch.Generator().manual_seed(3)) if reduction == "none" else torch.tensor(0.37)
    loss = model(ids, targets, reduction=reduction)  # type: ignore[arg-type]
    (loss * weight).sum().backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    expected = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=-1, reduction=reduction)
    (expected.view(loss.shape) * weight).sum().backward()
    torch.testing.assert_close(loss, expected.view(loss.shape))
    for name, param in model.named_parameters():
        torch.testing.assert_close(ours[name], param.grad, rtol=1e-3, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_targets_that_are_all_ignored_give_a_zero_sum_and_zero_gradients() -> None:
    model, ids = trained_looking(shape_of()), tokens(2)
    loss = model(ids, torch.full_like(ids, -1), reduction="sum")
    loss.backward()
    assert loss.item() == 0 and all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_loss_without_gradients_is_the_loss_with_gradients() -> None:
    model, ids, targets = trained_looking(shape_of()), tokens(3), tokens(3, seed=5)
    with torch.no_grad():
        quiet = model(ids, targets)
    assert quiet.item() == model(ids, targets).item() and not quiet.requires_grad


# -- construction -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", range(2, 42, 2))
def test_parameters_are_the_contracts_count(depth: int) -> None:
    shape = ModelShape.of(ModelConfig(depth=depth), 32_768)
    with torch.device("meta"):
        model = GPT(shape)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters.total
    blocks = sum(p.numel() for p in model.transformer["h"].parameters())
    assert blocks == shape.parameters.matrices and model.lm_head.weight.numel() == shape.parameters.lm_head


def test_weights_are_a_function_of_the_seed_and_upstreams_first_draws() -> None:
    shape = shape_of()
    one, same, other = (build(shape, torch.float32, "cpu", seed) for seed in (42, 42, 43))
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), same.state_dict().values(), strict=True))
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
    torch.manual_seed(42)
    wte = torch.empty(shape.padded_vocab, shape.width).normal_(0, 0.8)
    assert torch.equal(one.transformer["wte"].weight, wte) and torch.equal(one.lm_head.weight, torch.empty_like(wte).normal_(0, 0.001))


def test_bf16_starts_from_the_same_draws() -> None:
    full, half = (build(shape_of(), dtype, "cpu", 42) for dtype in (torch.float32, torch.bfloat16))
    for (name, a), b in zip(full.state_dict().items(), half.state_dict().values(), strict=True):
        assert torch.equal(a.to(b.dtype), b), name
        embedding = name.endswith("wte.weight") or name.startswith("value_embeds")
        assert b.dtype == (torch.bfloat16 if embedding else torch.float32), name


def test_a_model_filled_by_a_checkpoint_has_its_rotary_tables() -> None:
    source = trained_looking(shape_of())
    model = build(shape_of(), torch.float32, "cpu")
    model.load_state_dict(source.state_dict())
    assert torch.equal(model(tokens()), source(tokens()))


def test_a_model_too_narrow_for_its_gates_is_refused() -> None:
    with pytest.raises(BadConfig, match="width 16"):
        GPT(ModelShape.of(ModelConfig(depth=1, aspect_ratio=16, head_dim=16), VOCAB))


def test_the_state_holds_parameters_only() -> None:
    model = GPT(shape_of())
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


# -- the cache --------------------------------------------------------------------------------------------------------


def greedy(model: GPT, prompt: Tensor, new: int, cache: KVCache | None) -> list[list[int]]:
    ids = prompt
    feed = prompt
    for _ in range(new):
        logits = model(feed if cache is not None else ids, cache=cache)[:, -1]
        feed = logits.argmax(-1, keepdim=True)
        ids = torch.cat((ids, feed), dim=1)
    return ids.tolist()


@pytest.mark.parametrize(("pattern", "length"), [("L", 48), ("SSSL", 200)])
def test_generating_with_a_cache_is_generating_without(pattern: str, length: int) -> None:
    shape = shape_of(4, pattern, length)
    model, prompt = trained_looking(shape), tokens(2, length // 2)
    with torch.inference_mode():
        cached = greedy(model, prompt, 24, model.new_cache(2))
        assert cached == greedy(model, prompt, 24, None)
    assert len({tuple(row[length // 2 :]) for row in cached}) == 2, "two prompts that say the same would prove little"


def test_a_prompt_in_pieces_gives_the_logits_of_the_whole() -> None:
    model, ids = trained_looking(shape_of(4, "SSSL", 160)), tokens(2, 160)
    whole = model(ids)
    cache = model.new_cache(2)
    parts = [model(piece, cache=cache) for piece in ids.split([1, 40, 1, 1, 100, 17], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4)


def test_one_prefill_serves_many_rows() -> None:
    model, ids = trained_looking(shape_of()), tokens(1, 9)
    single, many = model.new_cache(1), model.new_cache(3)
    model(ids, cache=single)
    many.copy_from(single)
    following = torch.tensor([[3], [4], [5]])
    torch.testing.assert_close(model(following, cache=many)[:, -1], model(torch.cat((ids.expand(3, -1), following), 1))[:, -1])


def test_a_cache_forgets_on_reset_and_refuses_what_does_not_fit() -> None:
    model, ids = trained_looking(shape_of()), tokens(2, 10)
    cache = model.new_cache(2, max_len=12)
    first = model(ids, cache=cache)
    with pytest.raises(BadData, match="13 positions do not fit a cache of 12"):
        model(ids[:, :3], cache=cache)
    cache.reset()
    assert torch.equal(model(ids, cache=cache), first)
    with pytest.raises(ValueError, match="cannot copy"):
        model.new_cache(3).copy_from(cache)


def test_more_positions_than_the_rotary_tables_hold_are_refused() -> None:
    model = GPT(shape_of(length=4))
    with pytest.raises(BadData, match="41 positions"):
        model(tokens(1, 41))
