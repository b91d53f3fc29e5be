"""Causal attention with a sliding window, behind one function; which kernel does the work is chosen once and tested.

Shapes are (B, T, H, D). Query i sees key j if ``0 <= i - j <= window``; softmax scale 1/sqrt(D).

=========  ======================================================================================================
sdpa       Torch's own. Full windows use its causal mode, which on a 910B is the fused kernel (op-plugin maps it to
           npu_fusion_attention, sparse mode 2); windows need a T x T mask.
fused      As sdpa for full windows; windows by npu_fusion_attention in band mode, without a T x T mask.
blocks     As sdpa for full windows; windows block by block in plain operations (`nanochat.banded`).
=========  ======================================================================================================
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from nanochat.banded import banded_attention
from nanochat.device import native_ops, prefers_blocks
from nanochat.errors import BadConfig

__all__ = ["Kernel", "SelfTest", "attend", "band_mask", "choose", "self_test"]

Kernel = Literal["sdpa", "fused", "blocks"]
Windowed = Callable[[Tensor, Tensor, Tensor, int], Tensor]

BAND_MASK_SIZE = 2048
"""Sparse mode 4 of npu_fusion_attention wants a mask of exactly this size, whatever the length (op-plugin's documentation)."""
BAND_MODE = 4


def attend(q: Tensor, k: Tensor, v: Tensor, window: int, kernel: Kernel | None = None) -> Tensor:
    """Attention output (B, Tq, H, D) of queries (B, Tq, H, D) over keys and values (B, Tk, H, D).

    Queries are the last Tq of the Tk positions: Tq == Tk in training, fewer when a cache is continued.

    Args:
        q, k, v: Of one dtype, on one device.
        window: How many earlier keys a query sees.
        kernel: Who does windows; default: what `choose` gives for the tensors' device.
    """
    tq, tk = q.size(1), k.size(1)
    if tq == 1:
        return _sdpa(q, k[:, -(window + 1) :], v[:, -(window + 1) :], None)
    if tq != tk:
        return _sdpa(q, k, v, band_mask(tq, tk, window, q.device))
    if window >= tq - 1:
        return _sdpa(q, k, v, None, causal=True)
    return _WINDOWED[kernel or choose(q.device)](q, k, v, window)


def choose(device: torch.device) -> Kernel:
    """The kernel for windows on a device: the native one where there is one, blocks on CPU, else torch's with a mask."""
    if hasattr(native_ops(device), "npu_fusion_attention"):
        return "fused"
    return "blocks" if prefers_blocks(device) else "sdpa"


def band_mask(tq: int, tk: int, window: int, device: torch.device) -> Tensor:
    """Boolean mask (Tq, Tk), True where query i (of the last Tq positions) may look at key j. Torch's polarity."""
    distance = torch.arange(tk - tq, tk, device=device)[:, None] - torch.arange(tk, device=device)[None, :]
    return (distance >= 0) & (distance <= window)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal).transpose(1, 2)


def _masked(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    return _sdpa(q, k, v, band_mask(q.size(1), k.size(1), window, q.device))


def _fused(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """Band mode: keys i - window … i. Three traps of the interface: the default scale is 1; without a mask everything
    else about the band is ignored and attention is not even causal; and True means masked, the opposite of torch.
    """
    ops = native_ops(q.device)
    if not hasattr(ops, "npu_fusion_attention"):
        raise BadConfig(f"{q.device} has no fused kernel for windows", where="run.attention", hint="set run.attention to auto")
    return ops.npu_fusion_attention(
        q, k, v, q.size(2), "BSND", atten_mask=_hidden_above_diagonal(q.device), scale=q.size(3) ** -0.5, pre_tockens=window,
        next_tockens=0, sparse_mode=BAND_MODE,
    )[0]


@functools.lru_cache(maxsize=8)
def _hidden_above_diagonal(device: torch.device) -> Tensor:
    """True above the diagonal: what must not be seen."""
    return torch.ones(BAND_MASK_SIZE, BAND_MASK_SIZE, dtype=torch.bool, device=device).triu_(1)


_WINDOWED: dict[Kernel, Windowed] = {"sdpa": _masked, "fused": _fused, "blocks": banded_attention}


@dataclass(frozen=True)
class SelfTest:
    """What the start-up test found."""

    kernel: Kernel
    worst: float
    """Largest relative error of an output or gradient."""
    seconds: float

    def __str__(self) -> str:
        return f"attention: {self.kernel}, off by at most {self.worst:.1e}, tested in {self.seconds:.2f} s"


def self_test(device: torch.device, dtype: torch.dtype, kernel: Kernel | None = None) -> SelfTest:
    """Compare the chosen kernel with the formula, computed in fp32 on the host: outputs and gradients, full and windowed.

    Raises:
        BadConfig: It is wrong: training on would give a model that nobody could explain.
    """
    started = time.perf_counter()
    kernel = kernel or choose(device)
    errors = [error for window in (_TEST_LENGTH, 40) for error in _errors(device, dtype, kernel, window)]
    limit = 1e-3 if dtype == torch.float32 else 3e-2
    if not all(error < limit for error in errors):  # NaN fails too; max would lose it
        raise BadConfig(
            f"attention kernel {kernel} is off by {', '.join(f'{error:.1g}' for error in errors)} (more than {limit:g}) in {dtype} on {device}", where="run.attention",
            hint="set run.attention to sdpa, and report versions of driver, CANN and torch_npu",
        )
    return SelfTest(kernel, max(errors), time.perf_counter() - started)


_TEST_LENGTH = 160


def _errors(device: torch.device, dtype: torch.dtype, kernel: Kernel, window: int) -> list[float]:
    """Relative errors of output and gradients for random input."""
    rng = torch.Generator().manual_seed(0)
    host = [torch.randn(2, _TEST_LENGTH, 2, 64, generator=rng).to(dtype).float() for _ in range(4)]
    expected = _with_gradients(host, lambda q, k, v: _masked(q, k, v, window))
    got = _with_gradients([t.to(device, dtype) for t in host], lambda q, k, v: attend(q, k, v, window, kernel))
    return [float((a.float().cpu() - b).norm() / b.norm()) for a, b in zip(got, expected, strict=True)]


def _with_gradients(inputs: list[Tensor], function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Tensor]:
    q, k, v = (t.requires_grad_() for t in inputs[:3])
    with torch.enable_grad():
        out = function(q, k, v)
        return [out.detach(), *torch.autograd.grad((out * inputs[3]).sum(), (q, k, v))]  # a gradient given apart imports sympy
