"""Hand-written backward passes against autograd over the plain formulas, in fp64 where the operation allows, and in bf16."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nanochat.banded import banded_attention
from nanochat.ops import mix, relu_squared, rms_norm, rotary_norm, softcap_cross_entropy


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradients(function, *inputs: Tensor) -> list[Tensor]:
    """Output and gradients for a fixed random direction."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = function(*leaves)
    (out.float() * random(*out.shape, seed=77)).sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def compare(ours, plain, *inputs: Tensor) -> None:
    """In fp32 against autograd in fp64; in bf16 within what bf16 can hold."""
    expected = gradients(plain, *(t.double() for t in inputs))
    for a, b in zip(gradients(ours, *inputs), expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=2e-5)
    for a, b in zip(gradients(ours, *(t.bfloat16() for t in inputs)), expected, strict=True):
        error = (a.double() - b).norm() / b.norm().clamp(min=1e-3)
        assert a.dtype == torch.bfloat16 and error < 0.02, f"off by {error:.3f}"


def test_rms_norm() -> None:
    compare(rms_norm, lambda x: F.rms_norm(x, (24,), eps=torch.finfo(torch.float32).eps), random(3, 5, 24) * 3)


def test_rms_norm_of_zeros_is_zero() -> None:
    out, grad = gradients(rms_norm, torch.zeros(2, 8))
    assert not out.any() and grad.isfinite().all()


def test_relu_squared() -> None:
    compare(relu_squared, lambda x: F.relu(x).square(), random(4, 9))


def test_rotary_norm() -> None:
    angle = random(1, 6, 1, 4)
    cos, sin = angle.cos(), angle.sin()

    def plain(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        c, s = cos.to(x.dtype), sin.to(x.dtype)
        return 1.2 * F.rms_norm(torch.cat((a * c + b * s, b * c - a * s), -1), (8,), eps=torch.finfo(torch.float32).eps)

    compare(lambda x: rotary_norm(x, cos.to(x.dtype), sin.to(x.dtype), 1.2), plain, random(2, 6, 3, 8) * 2)


def test_mix_passes_gradients_to_both_factors() -> None:
    x, first, a, b = random(2, 5, 8), random(2, 5, 8, seed=1), torch.tensor(1.1), torch.tensor(0.2)
    ours, plain = gradients(mix, x, a, first, b), gradients(lambda x, a, f, b: a * x + b * f, x, a, first, b)
    for got, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("chunk_rows", [1, 4, 100])
@pytest.mark.parametrize("want_sum", [True, False])
def test_softcap_cross_entropy_for_any_chunk(chunk_rows: int, want_sum: bool) -> None:
    targets = torch.randint(50, (11,), generator=torch.Generator().manual_seed(4))
    targets[3:5] = -1

    def ours(hidden: Tensor, weight: Tensor) -> Tensor:
        return softcap_cross_entropy(hidden, weight, targets, cap=15.0, chunk_rows=chunk_rows, want_sum=want_sum)

    def plain(hidden: Tensor, weight: Tensor) -> Tensor:
        logits = 15 * torch.tanh(hidden @ weight.T / 15)
        return F.cross_entropy(logits, targets, ignore_index=-1, reduction="sum" if want_sum else "none")

    expected = gradients(plain, random(11, 16).double() * 3, random(50, 16, seed=2).double())
    for got, wanted in zip(gradients(ours, random(11, 16) * 3, random(50, 16, seed=2)), expected, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5)
    half = gradients(ours, (random(11, 16) * 3).bfloat16(), random(50, 16, seed=2))
    assert half[1].dtype == torch.bfloat16 and half[2].dtype == torch.float32
    assert all(((a.double() - b).norm() / b.norm()) < 0.03 for a, b in zip(half, expected, strict=True))


def test_softcap_cross_entropy_stands_extreme_logits() -> None:
    hidden, weight = random(4, 8) * 1e4, random(9, 8, seed=1)
    out, grad_hidden, grad_weight = gradients(
        lambda h, w: softcap_cross_entropy(h, w, torch.tensor([0, 1, 2, 3]), cap=15.0, chunk_rows=2, want_sum=True), hidden, weight
    )
    assert out.isfinite() and grad_hidden.isfinite().all() and grad_weight.isfinite().all() and out < 4 * 31


def test_a_second_backward_through_the_loss_is_refused() -> None:
    hidden = random(4, 8).requires_grad_()
    loss = softcap_cross_entropy(hidden, random(9, 8).requires_grad_(), torch.tensor([0, 1, 2, 3]), cap=15.0, chunk_rows=2, want_sum=True)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(("length", "window"), [(5, 5), (5, 2), (300, 300), (300, 128), (300, 40), (257, 1), (130, 0)])
def test_banded_attention(length: int, window: int) -> None:
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    mask = (distance >= 0) & (distance <= window)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=mask).transpose(1, 2)

    compare(lambda q, k, v: banded_attention(q, k, v, window), plain, *(random(2, length, 3, 8, seed=s) for s in range(3)))


def test_banded_attention_holds_memory_that_grows_with_the_window() -> None:
    def peak(window: int) -> int:
        largest = 0

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                nonlocal largest
                out = func(*args, **(kwargs or {}))
                largest = max([largest, *(t.numel() for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, Tensor))])
                return out

        q, k, v = (random(1, 2048, 1, 4, seed=s).requires_grad_() for s in range(3))
        with Watch():
            banded_attention(q, k, v, window).sum().backward()
        return largest

    assert peak(64) < 130 * 200 and peak(512) < 130 * 700 < 2048 * 2048 / 40
