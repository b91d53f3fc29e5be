"""Causal attention over a band, in blocks: time and memory grow with the window and not with the square of the length.

For CPUs and for checking device kernels. Torch's own CPU kernel has no window (a mask makes it compute and hold every
pair), and at lengths of a few hundred it does not skip what lies above the diagonal.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["banded_attention"]

BLOCK = 128
"""Queries that are worked on at once."""


def _blocks(length: int, window: int, device: torch.device) -> Iterator[tuple[slice, slice, Tensor]]:
    """Queries, the keys that some of them see, and what to add to their scores (0 or minus infinity)."""
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        first = max(0, start - window)
        distance = torch.arange(start, end, device=device)[:, None] - torch.arange(first, end, device=device)[None, :]
        bias = torch.zeros(distance.shape, device=device).masked_fill_((distance < 0) | (distance > window), -math.inf)
        yield slice(start, end), slice(first, end), bias


class _Banded(torch.autograd.Function):
    """On (N, T, D) tensors, N heads of all rows. Probabilities are made anew in the backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, window: int, scale: float) -> Tensor:
        out = torch.empty_like(q)
        log_sums = torch.empty(q.shape[:2], dtype=q.dtype, device=q.device)
        for rows, keys, bias in _blocks(q.size(1), window, q.device):
            scores = torch.baddbmm(bias, q[:, rows], k[:, keys].mT, alpha=scale)
            top = scores.amax(dim=-1, keepdim=True)
            sums = scores.sub_(top).exp_().sum(dim=-1, keepdim=True)
            out[:, rows] = torch.bmm(scores, v[:, keys]).div_(sums)
            log_sums[:, rows] = sums.log_().add_(top).squeeze(-1)
        ctx.save_for_backward(q, k, v, out, log_sums)
        ctx.window, ctx.scale = window, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, out, log_sums = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        along = torch.linalg.vecdot(grad, out).unsqueeze(-1)
        for rows, keys, bias in _blocks(q.size(1), ctx.window, q.device):
            probs = torch.baddbmm(bias, q[:, rows], k[:, keys].mT, alpha=ctx.scale).sub_(log_sums[:, rows].unsqueeze(-1)).exp_()
            grad_v[:, keys].baddbmm_(probs.mT, grad[:, rows])
            grad_scores = torch.bmm(grad[:, rows], v[:, keys].mT).sub_(along[:, rows]).mul_(probs)
            grad_q[:, rows] = torch.bmm(grad_scores, k[:, keys]).mul_(ctx.scale)
            grad_k[:, keys].baddbmm_(grad_scores.mT, q[:, rows], alpha=ctx.scale)
        return grad_q, grad_k, grad_v, None, None


def banded_attention(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Attention output (B, T, H, D) of q, k, v (B, T, H, D), computed in fp32; query i sees keys i - window … i."""
    batch, length, heads, dim = q.shape
    flat = (t.transpose(1, 2).reshape(batch * heads, length, dim).float() for t in (q, k, v))
    out = _Banded.apply(*flat, window, dim**-0.5)
    return out.view(batch, heads, length, dim).transpose(1, 2).to(q.dtype)
