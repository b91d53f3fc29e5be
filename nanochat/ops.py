"""The model's elementwise parts as operations with backward passes written by hand.

Autograd would save every intermediate and walk over memory once for each: on a CPU and on an NPU in eager mode those
walks, and not the products, take a third of the step. Each operation here saves what its formula needs and no more.
They compute what the formulas say, in fp32 where a reduction or a division is involved; tests hold them to autograd.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["mix", "relu_squared", "rms_norm", "rotary_norm", "softcap_cross_entropy"]

EPS = torch.finfo(torch.float32).eps
"""Added to the mean square, as ``torch.nn.functional.rms_norm`` does."""


def _inverse_rms(x: Tensor) -> Tensor:
    """1 / root mean square over the last dimension (…, 1), fp32."""
    norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return norms.square_().div_(x.size(-1)).add_(EPS).rsqrt_()


def _scale_rows(x: Tensor, scale: Tensor) -> Tensor:
    """x times an fp32 factor for each row, in x's dtype; the product itself is fp32."""
    return x * scale if x.dtype == torch.float32 else x.float().mul_(scale).to(x.dtype)


def _norm_backward(grad: Tensor, y: Tensor, scale: Tensor, gain: float = 1.0) -> Tensor:
    """Gradient of x where y = gain · x / rms(x) and scale = gain / rms(x): what points along y is taken out."""
    along = torch.linalg.vecdot(grad.float(), y.float()).unsqueeze(-1).mul_(-1.0 / (gain * gain * y.size(-1)))
    return torch.addcmul(grad.float(), y.float(), along).mul_(scale).to(grad.dtype)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scale = _inverse_rms(x)
        y = _scale_rows(x, scale)
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        y, scale = ctx.saved_tensors
        return _norm_backward(grad, y, scale)


def rms_norm(x: Tensor) -> Tensor:
    """x over its root mean square along the last dimension, without a learnable gain."""
    return _RmsNorm.apply(x)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False) -> Tensor:
    """x (B, T, H, D), contiguous, turned by minus the position's angle, or back by plus that angle."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    (a, b), (c, d) = x.chunk(2, dim=-1), out.chunk(2, dim=-1)
    sign = -1.0 if back else 1.0
    torch.mul(a, cos, out=c)
    torch.mul(b, cos, out=d)
    c.addcmul_(b, sin, value=sign)
    d.addcmul_(a, sin, value=-sign)
    return out


class _RotaryNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, gain: float) -> Tensor:
        scale = _inverse_rms(x).mul_(gain)  # turning does not change a norm
        y = _turn(x, cos, sin)
        y = y.mul_(scale) if y.dtype == torch.float32 else _scale_rows(y, scale)
        ctx.save_for_backward(y, scale, cos, sin)
        ctx.gain = gain
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        y, scale, cos, sin = ctx.saved_tensors
        return _turn(_norm_backward(grad, y, scale, ctx.gain), cos, sin, back=True), None, None, None


def rotary_norm(x: Tensor, cos: Tensor, sin: Tensor, gain: float) -> Tensor:
    """Queries or keys (B, T, H, D) turned by minus their position's angle, RMS-normalised over D, times gain.

    Args:
        x: Projected input.
        cos, sin: (1, T, 1, D/2), in x's dtype.
        gain: Factor on the result.
    """
    return _RotaryNorm.apply(x, cos, sin, gain)


class _ReluSquared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return torch.mul(grad, positive).mul_(2.0)


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)²."""
    return _ReluSquared.apply(x)


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, first: Tensor, b: Tensor) -> Tensor:
        a_cast, b_cast = a.to(x.dtype), b.to(x.dtype)
        ctx.save_for_backward(x, a_cast, first, b_cast)
        return torch.mul(x, a_cast).addcmul_(first, b_cast)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, a, first, b = ctx.saved_tensors
        grad_a, grad_b = (torch.linalg.vecdot(grad, t).float().sum() for t in (x, first))
        return grad * a, grad_a, grad * b, grad_b


def mix(x: Tensor, a: Tensor, first: Tensor, b: Tensor) -> Tensor:
    """a·x + b·first for 0-D a and b on the same device."""
    if first is x:  # the first layer's; of an argument that comes twice, torch.compile (2.12) loses one gradient in silence
        first = first.view_as(first)
    return _Mix.apply(x, a, first, b)


class _SoftcapCrossEntropy(torch.autograd.Function):
    """Works through the rows in chunks, so that logits of one chunk exist at a time.

    15·tanh(z/15) = 30·s - 15 with s = sigmoid(2z/15), and the constant cancels in the softmax: one sigmoid and one
    exponential, and no search for a maximum, since 30·s is at most 30. With d(30 s)/dz = 4·s·(1 - s).
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, cap: float, chunk_rows: int, want_sum: bool) -> Tensor:
        ctx.cap, ctx.chunk_rows, ctx.want_sum = cap, chunk_rows, want_sum
        losses = torch.empty(targets.shape, dtype=torch.float32, device=hidden.device)
        work = _Chunks(hidden, weight, targets, cap, chunk_rows)
        if want_sum and (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):
            ctx.save_for_backward(*work.losses_and_gradients(losses, None))
        else:
            work.losses_only(losses)
            ctx.save_for_backward(hidden, weight, targets)
        return losses.sum() if want_sum else losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        if ctx.want_sum:
            grad_hidden, grad_weight = ctx.saved_tensors
            return grad_hidden.mul(grad), grad_weight.mul_(grad), None, None, None, None
        hidden, weight, targets = ctx.saved_tensors
        work = _Chunks(hidden, weight, targets, ctx.cap, ctx.chunk_rows)
        return *work.losses_and_gradients(torch.empty_like(grad), grad), None, None, None, None


class _Chunks:
    """One pass over the rows of hidden (N, C) against weight (V, C) and targets (N,)."""

    def __init__(self, hidden: Tensor, weight: Tensor, targets: Tensor, cap: float, chunk_rows: int) -> None:
        self.hidden, self.targets, self.cap, self.chunk_rows = hidden, targets, cap, chunk_rows
        self.weight = weight.to(hidden.dtype)
        self.counts = targets >= 0
        self.safe = targets.clamp(min=0).unsqueeze(1)

    def _sigmoids(self, rows: slice) -> Tensor:
        return torch.mm(self.hidden[rows], self.weight.t()).float().mul_(2.0 / self.cap).sigmoid_()

    def _losses(self, rows: slice, s: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """Exponentials (n, V) and their sums (n, 1); writes the rows' losses."""
        exps = torch.mul(s, 2.0 * self.cap).exp_()
        sums = exps.sum(dim=1, keepdim=True)
        own = s.gather(1, self.safe[rows]).mul_(2.0 * self.cap)
        out[rows] = torch.where(self.counts[rows], (sums.log() - own).squeeze(1), 0.0)
        return exps, sums

    def _rows(self) -> list[slice]:
        return [slice(i, i + self.chunk_rows) for i in range(0, self.hidden.size(0), self.chunk_rows)]

    def losses_only(self, out: Tensor) -> None:
        for rows in self._rows():
            self._losses(rows, self._sigmoids(rows), out)

    def losses_and_gradients(self, out: Tensor, row_weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """Gradients of sum(row_weights · losses) by hidden and by weight; the latter fp32."""
        grad_hidden = torch.empty_like(self.hidden)
        grad_weight = torch.zeros(self.weight.shape, dtype=torch.float32, device=self.weight.device)
        factors = self.counts.float() if row_weights is None else self.counts * row_weights
        for rows in self._rows():
            s = self._sigmoids(rows)
            grad, sums = self._losses(rows, s, out)
            factor = factors[rows].unsqueeze(1) * 4.0
            grad.mul_(factor / sums).scatter_add_(1, self.safe[rows], -factor)
            grad.mul_(s.addcmul_(s, s, value=-1.0))
            grad = grad.to(self.hidden.dtype)
            torch.mm(grad, self.weight, out=grad_hidden[rows])
            if grad.dtype == torch.float32:
                grad_weight.addmm_(grad.t(), self.hidden[rows])
            else:
                grad_weight.add_(torch.mm(grad.t(), self.hidden[rows]))
        return grad_hidden, grad_weight


def softcap_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, cap: float, chunk_rows: int, want_sum: bool
) -> Tensor:
    """Cross entropy of softcapped logits cap·tanh(hidden·weightᵀ/cap), never holding more than a chunk of logits.

    Args:
        hidden: (N, C).
        weight: (V, C), any dtype; the product is made in hidden's.
        targets: (N,) ids; negative ones count for nothing.
        cap: Logits lie in (-cap, cap).
        chunk_rows: Rows whose logits exist at a time.
        want_sum: The sum (backward works once and costs nothing more), else the loss of each row (N,), fp32.
    """
    return _SoftcapCrossEntropy.apply(hidden, weight, targets, cap, chunk_rows, want_sum)
