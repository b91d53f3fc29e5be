"""torch.compile, for whoever asks for it (``run.compile``): off by default, since it costs a minute of start-up on a CPU and
is young on an NPU, where it needs triton-ascend.

Only training steps run compiled; evaluation and sampling have other shapes, and each shape would be compiled anew. And
only the way to the final states is: the compiler would unroll the loss's chunks and hold the logits of several at a time.
"""

import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nanochat.device import Device, generator
from nanochat.errors import BadConfig
from nanochat.model import GPT, Reduction

__all__ = ["check_gradients", "compiled"]

WHERE = "run.compile"
HINT = "set run.compile to false: training is the same, only slower"
TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 0.1}
"""How far a matrix's gradient may be from the eager one, as a part of its norm: several times what rounding makes of it."""


def compiled(model: GPT, device: Device, *, wanted: bool, tell: Callable[[str], None] | None = None) -> Callable[..., Tensor]:
    """The model's loss: compiled where that is wanted, else the model itself.

    The first call compares the compiled gradients with the eager ones, on its own batch: a compiler that loses a gradient
    says nothing, and the loss falls all the same, only less (torch 2.12 did that to us, see `nanochat.ops.mix`).

    Args:
        model: To train.
        device: It is on.
        wanted: ``run.compile``.
        tell: Takes the outcome of the comparison, a line.

    Raises:
        BadConfig: What compiling needs is not there. What torch finds out only in the first step is raised there, alike, and
            so is a gradient that is wrong.
    """
    if not wanted:
        return model
    if device.compiles_with_cxx and shutil.which(os.environ.get("CXX", "g++")) is None:
        raise BadConfig(f"there is no C++ compiler {os.environ.get('CXX', 'g++')!r}, which torch.compile needs here", where=WHERE, hint=HINT)
    hidden = torch.compile(model.hidden, dynamic=False)
    checked = False

    def call(tokens: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
        nonlocal checked
        with _named_failures(device):
            if not checked:
                outcome = check_gradients(model, hidden, tokens)
                checked = True
                if tell is not None:
                    tell(outcome)
            states = hidden(tokens)
        return model.loss(states, targets, reduction)

    return call


@contextmanager
def _named_failures(device: Device) -> Iterator[None]:
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadConfig(f"torch.compile failed on {device.name}: {first}", where=WHERE, hint=HINT) from error


def check_gradients(model: GPT, hidden: Callable[[Tensor], Tensor], tokens: Tensor) -> str:
    """Compare the gradients that `hidden` gives with those of the model's own, eager one.

    Of every matrix the norm and the sums of its columns are compared, so that two sets of gradients need not exist at a
    time. Scalars are not: theirs cancel to little more than rounding.

    Args:
        model: Its parameters are as they were when this returns; those that are zero get random numbers meanwhile, since a
            projection that starts at zero lets no gradient through to what comes before it.
        hidden: Final states (B, T, C) of tokens (B, T).
        tokens: (B, T).

    Returns:
        A line for the log.

    Raises:
        BadConfig: A gradient is off by more than rounding explains.
    """
    with _nothing_zero(model):
        eager = _fingerprints(model, model.hidden, tokens)
        ours = _fingerprints(model, hidden, tokens)
    off = {name: _distance(mark, ours.get(name)) for name, mark in eager.items()}
    worst = max(off, key=lambda name: math.inf if math.isnan(off[name]) else off[name])  # a comparison with NaN is false: max would pass over it
    if not off[worst] <= TOLERANCE[model.dtype]:
        raise BadConfig(
            f"torch.compile gives wrong gradients here: that of {worst} is off by {off[worst]:.2g} of its norm", where=WHERE, hint=HINT
        )
    return f"torch.compile: gradients agree with the eager step's within {off[worst]:.1e} (at most {TOLERANCE[model.dtype]:g} is allowed)"


@contextmanager
def _nothing_zero(model: GPT) -> Iterator[None]:
    zero = [param.data for param in model.parameters() if not param.any()]
    rng = generator(model.device, 0)
    for param in zero:
        param.normal_(std=0.02, generator=rng)
    try:
        yield
    finally:
        for param in zero:
            param.zero_()


def _fingerprints(model: GPT, hidden: Callable[[Tensor], Tensor], tokens: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Norm () and sums of the columns (n,) of the gradient of every matrix (m, n) that has one, fp32."""
    matrices = {name: param for name, param in model.named_parameters() if param.ndim == 2}
    states = hidden(tokens)
    probe = torch.randn(states.shape, generator=generator(states.device, 1), device=states.device)
    gradients = torch.autograd.grad((states.float() * probe).sum(), list(matrices.values()), allow_unused=True)
    return {
        name: (torch.linalg.vector_norm(grad, dtype=torch.float32), grad.sum(dim=0, dtype=torch.float32))
        for name, grad in zip(matrices, gradients, strict=True) if grad is not None
    }


def _distance(mark: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor] | None) -> float:
    """How far the other gradient is off, as a part of this one's norm."""
    if other is None:
        return 1.0
    (norm, sums), (other_norm, other_sums) = mark, other
    return float(torch.maximum(torch.linalg.vector_norm(sums - other_sums), (norm - other_norm).abs()) / norm.clamp_min(1e-20))
