"""torch.compile changes how fast a step is, and not what it computes. Slow: the compiler takes most of a minute."""

import shutil

import pytest
import torch

from nanochat.compilation import compiled
from nanochat.contract import ModelConfig, ModelShape
from nanochat.device import pick
from nanochat.model import build

pytestmark = [
    pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore"),  # torch.compile warns within torch
    pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler"),
]


def test_a_compiled_step_gives_the_eager_steps_loss_and_gradients() -> None:
    shape = ModelShape.of(ModelConfig(depth=2, sequence_len=64, window_pattern="SL"), 256)
    rng = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(256, (2, 64), generator=rng), torch.randint(256, (2, 64), generator=rng)
    targets[0, :20] = -1
    found = []
    for wanted in (False, True):
        model = build(shape, torch.float32, "cpu", 7)
        with torch.no_grad():  # projections start at zero, and would hide the blocks
            for block in model.blocks:
                block.attn.c_proj.weight.normal_(std=0.05, generator=torch.Generator().manual_seed(2))
                block.mlp.c_proj.weight.normal_(std=0.05, generator=torch.Generator().manual_seed(3))
        forward = compiled(model, pick("cpu"), wanted=wanted)
        mean, total = forward(tokens, targets), forward(tokens, targets, reduction="sum")
        total.backward()
        found.append((mean.item(), total.item(), {name: param.grad for name, param in model.named_parameters()}))
    (mean, total, eager), (compiled_mean, compiled_total, gradients) = found
    assert (compiled_mean, compiled_total) == pytest.approx((mean, total), rel=1e-5)
    assert compiled_total / compiled_mean == pytest.approx(108, rel=1e-4), "only 108 targets count"
    assert {name for name, grad in eager.items() if grad is None} == {name for name, grad in gradients.items() if grad is None}
    for name, grad in eager.items():
        if grad is not None:
            bound = 1e-4 * grad.abs().max().item() + 1e-7
            torch.testing.assert_close(gradients[name], grad, rtol=1e-3, atol=bound, msg=lambda text, n=name: f"{n}: {text}")
