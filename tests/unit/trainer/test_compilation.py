"""What is compiled is compared with the eager step before hours are spent on it. Here without a compiler: faults are planted."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nanochat.compilation import check_gradients
from nanochat.contract import ModelConfig, ModelShape
from nanochat.errors import BadConfig
from nanochat.model import GPT, build

TOKENS = torch.randint(128, (2, 32), generator=torch.Generator().manual_seed(1))


def small(dtype: torch.dtype = torch.float32) -> GPT:
    return build(ModelShape.of(ModelConfig(depth=2, sequence_len=32, window_pattern="L"), 128), dtype, "cpu", 7)


def a_lost_path(model: GPT) -> Callable[[Tensor], Tensor]:
    def hidden(tokens: Tensor) -> Tensor:
        states = model.hidden(tokens)
        return 0.5 * states + 0.5 * states.detach()

    return hidden


def a_frozen_table(model: GPT) -> Callable[[Tensor], Tensor]:
    def hidden(tokens: Tensor) -> Tensor:
        model.value_embeds["1"].weight.requires_grad_(False)
        states = model.hidden(tokens)
        model.value_embeds["1"].weight.requires_grad_(True)
        return states

    return hidden


def a_turned_sign(model: GPT) -> Callable[[Tensor], Tensor]:
    def hidden(tokens: Tensor) -> Tensor:
        states = model.hidden(tokens)
        return 2 * states.detach() - states

    return hidden


@pytest.mark.parametrize("plant", [a_lost_path, a_frozen_table, a_turned_sign])
def test_a_gradient_that_is_wrong_is_refused_and_named(plant: Callable[[GPT], Callable[[Tensor], Tensor]]) -> None:
    model = small()
    with pytest.raises(BadConfig, match=r"run.compile: torch.compile gives wrong gradients here: that of \S+ is off by .* set run.compile to false"):
        check_gradients(model, plant(model), TOKENS)


def test_a_nan_is_refused() -> None:
    model = small()
    with pytest.raises(BadConfig, match="off by nan"):
        check_gradients(model, lambda tokens: model.hidden(tokens) * float("nan"), TOKENS)


@pytest.mark.parametrize("name", ["transformer.h.0.attn.c_q.weight", "transformer.h.1.mlp.c_proj.weight"])
def test_a_nan_in_one_matrix_alone_is_refused(name: str) -> None:
    """NaN is neither more nor less than another distance: a search for the largest passes over it."""
    model = small()

    def hidden(tokens: Tensor) -> Tensor:
        model.get_parameter(name).register_hook(lambda grad: grad * float("nan"))
        return model.hidden(tokens)

    with pytest.raises(BadConfig, match=f"{name} is off by nan"):
        check_gradients(model, hidden, TOKENS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_gradients_pass_and_leave_no_trace(dtype: torch.dtype) -> None:
    model = small(dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    assert "agree with the eager step's within 0.0e+00" in check_gradients(model, model.hidden, TOKENS)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(param.grad is None for param in model.parameters()) and torch.equal(state, torch.get_rng_state())
