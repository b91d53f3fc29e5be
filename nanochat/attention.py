"""Causal attention with a sliding window, behind one function.

Shapes are (B, T, H, D) everywhere outside this file. Query i sees key j if ``0 <= i - j <= window``.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nanochat.banded import banded_attention
from nanochat.device import prefers_blocks

__all__ = ["attend"]


def attend(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Attention output (B, Tq, H, D) of queries (B, Tq, H, D) over keys and values (B, Tk, H, D).

    Queries are the last Tq of the Tk positions (Tq == Tk in training). Softmax scale is 1/sqrt(D).
    """
    tq, tk = q.size(1), k.size(1)
    if tq == 1 and tk > window + 1:
        k, v, tk = k[:, -(window + 1) :], v[:, -(window + 1) :], window + 1
    causal = tq > 1 and tq == tk and window >= tq - 1
    if tq == tk and not causal and tq > 1 and prefers_blocks(q.device):
        return banded_attention(q, k, v, window)
    mask = band_mask(tq, tk, window, q.device) if tq > 1 and not causal else None
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, is_causal=causal
    )
    return out.transpose(1, 2)


def band_mask(tq: int, tk: int, window: int, device: torch.device) -> Tensor:
    """Boolean mask (Tq, Tk), True where query i (the last Tq positions) may look at key j."""
    distance = torch.arange(tk - tq, tk, device=device)[:, None] - torch.arange(tk, device=device)[None, :]
    return (distance >= 0) & (distance <= window)
