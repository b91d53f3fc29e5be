"""Bytes of parameters, gradients, optimizer state and of the peak, counted on a simulated NPU, against closed forms.

Counted are tensors; what the allocator, HCCL and CANN add on a real NPU is not.
"""

import types
from typing import Any

import pytest
import simulated_npu
import torch
from simulated_npu import NPU, fake_npu
from torch import Tensor

from nanochat import attention
from nanochat.contract import ModelConfig, ModelShape
from nanochat.device import Device, Kind
from nanochat.distributed import Communicator, Pending
from nanochat.model import GPT, build
from nanochat.optim import LearningRates, build_optimizer
from nanochat.schedule import PretrainSchedule

COUNTED_ACTIVATION_BYTES = 33.0
"""Per token, layer and channel in bf16: what `nanochat_npu.estimate.memory` plans with."""


class _Kernel(torch.autograd.Function):
    """The memory of a fused attention kernel: inputs and output are kept, and no scores."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(t) for t in ctx.saved_tensors[:3])


@pytest.fixture(autouse=True)
def _torch_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated_npu.install(monkeypatch)
    monkeypatch.setattr(attention, "_sdpa", lambda q, k, v, mask, causal=False: _Kernel.apply(q, k, v))


def shape_of(depth: int, length: int = 256, vocab: int = 4096) -> ModelShape:
    return ModelShape.of(ModelConfig(depth=depth, sequence_len=length, window_pattern="L"), vocab)


def size(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def weight_bytes(shape: ModelShape) -> int:
    """bf16 look-up tables, everything else fp32."""
    counts = shape.parameters
    return 2 * (counts.wte + counts.value_embeds) + 4 * (counts.scaling + counts.scalars)


def state_bytes(shape: ModelShape, world: int) -> tuple[float, int]:
    """Bytes of optimizer state that a rank holds at least on average, and what whole matrices may add."""
    counts = shape.parameters
    tables = counts.wte + counts.value_embeds
    sharded = 4 * counts.matrices + 8 * counts.lm_head + 4 * tables
    factored = 4 * shape.depth * shape.width * (4 + 4 + 4) + 4 * shape.depth * 12
    one_of_each = 4 * (9 * shape.width**2 + 12 * shape.heads) + 4 * (9 * shape.width + 12)
    return sharded / world + 8 * counts.scalars, one_of_each + factored // world


@pytest.mark.parametrize("depth", [4, 6, 12])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_weights_and_optimizer_state_are_the_closed_form(depth: int, world: int) -> None:
    shape = shape_of(depth)
    with fake_npu():
        model = build(shape, torch.bfloat16, NPU)
        assert size(model.parameters()) == weight_bytes(shape)
        held = [build_optimizer(model, LearningRates(), Communicator(rank, world)).state_bytes() for rank in range(world)]
    least, more = state_bytes(shape, world)
    assert all(bytes_ <= least + more for bytes_ in held)
    assert sum(held) >= world * least - 8 * shape.parameters.scalars * world
    if world == 1:
        assert held[0] == pytest.approx(least, rel=0.01)


def test_gradients_have_the_dtype_of_their_parameters() -> None:
    shape = shape_of(4)
    with fake_npu():
        model = build(shape, torch.bfloat16, NPU)
        ids = torch.zeros(1, 256, dtype=torch.long, device=NPU)
        model(ids, ids).backward()
        assert size(p.grad for p in model.parameters()) == weight_bytes(shape)


def peak(shape: ModelShape, rows: int) -> int:
    """Most bytes alive during forward and backward."""
    with fake_npu() as seen:
        model: GPT = build(shape, torch.bfloat16, NPU)
        ids = torch.zeros(rows, shape.sequence_len, dtype=torch.long, device=NPU)
        model(ids, ids).backward()
        return seen.peak_bytes


class OtherRanks(Communicator):
    """Collectives that take the memory that real ones take; what they bring is nothing."""

    def all_reduce(self, tensor: Tensor) -> Pending:
        return Pending(tensor)

    def reduce_scatter(self, tensor: Tensor) -> Pending:
        return Pending(tensor.new_empty((tensor.size(0) // self.size, *tensor.shape[1:])))

    def all_gather(self, part: Tensor, into: Tensor) -> Pending:
        return Pending(into)


OPTIMIZER_COPIES = 1.25
"""Of the stack of matrices that a rank owns, at the height of the update: parameters, and what orthogonalising takes."""


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("depth", [4, 8])
def test_the_peak_of_a_whole_step_is_the_closed_form(depth: int, rows: int, world: int) -> None:
    """Weights, gradients and this rank's state all the time; on top the larger of two: what the backward pass needs (activations,
    a chunk of logits with its gradient and a copy, bf16 copies of the matrices), or what the update needs (copies of the part that
    this rank owns and, where there are others, all gradients of the matrices once more, as stacks to sum over the ranks).
    """
    shape = shape_of(depth, 512)
    tokens = rows * shape.sequence_len
    with fake_npu() as seen:
        model = build(shape, torch.bfloat16, NPU)
        optimizer = build_optimizer(model, LearningRates(), OtherRanks(0, world))
        ids = torch.zeros(rows, shape.sequence_len, dtype=torch.long, device=NPU)
        model(ids, ids).backward()
        optimizer.step(PretrainSchedule(10, weight_decay=0.1).at(0))
        state, counted = optimizer.state_bytes(), seen.peak_bytes
    matrices = 4 * shape.parameters.matrices
    backward = (
        COUNTED_ACTIVATION_BYTES * tokens * depth * shape.width + 3 * 4 * min(tokens * shape.padded_vocab, 2**26) + 2 * shape.parameters.scaling
    )
    update = matrices * ((world > 1) + OPTIMIZER_COPIES / world)
    planned = 2 * weight_bytes(shape) + state + max(backward, update)
    assert 0.75 * planned < counted < 1.05 * planned, f"{counted / 1e6:.0f} MB counted, {planned / 1e6:.0f} MB planned"


def test_an_update_without_other_ranks_copies_a_few_matrices_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once all gradients and all parameters of the matrices were stacked: gigabytes for a deep model."""
    shape = shape_of(12, vocab=64)  # so few that the tables do not count
    largest = 4 * shape.width**2
    monkeypatch.setattr("nanochat.optim.units.muon_chunk_elements", lambda device: largest)
    with fake_npu() as seen:
        model = build(shape, torch.bfloat16, NPU)
        optimizer = build_optimizer(model, LearningRates(), OtherRanks(0, 1))
        ids = torch.zeros(1, 8, dtype=torch.long, device=NPU)
        model(ids, ids).backward()
        before = seen.peak_bytes = seen.live_bytes
        optimizer.step(PretrainSchedule(10, weight_decay=0.1).at(0))
        more = seen.peak_bytes - before
    assert 2 * 4 * largest < more < 6 * 4 * largest < 4 * shape.parameters.matrices / 2


@pytest.mark.parametrize("depth", [4, 8])
def test_activations_grow_with_tokens_layers_and_width_as_planned(depth: int) -> None:
    shape = shape_of(depth, vocab=64)  # so few that logits do not count
    grown = peak(shape, 12) - peak(shape, 8)
    each = grown / (4 * shape.sequence_len * depth * shape.width)
    assert 0.8 * COUNTED_ACTIVATION_BYTES < each < 1.25 * COUNTED_ACTIVATION_BYTES, f"{each:.1f} bytes per token, layer and channel"


def test_the_peak_is_weights_gradients_activations_and_a_chunk_of_logits() -> None:
    shape, rows = shape_of(6, 512), 8
    tokens = rows * 512
    planned = 2 * weight_bytes(shape) + 2 * shape.parameters.scaling + COUNTED_ACTIVATION_BYTES * tokens * shape.depth * shape.width
    logits = tokens * shape.padded_vocab * 4 * 3
    assert planned * 0.6 < peak(shape, rows) < (planned + logits) * 1.1


def test_a_device_answers_through_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    driver = types.SimpleNamespace(
        max_memory_allocated=lambda d: 7, mem_get_info=lambda d: (1, 64), synchronize=asked.append, reset_peak_memory_stats=asked.append,
        is_bf16_supported=lambda: True,
    )
    monkeypatch.setattr(torch, "npu", driver)
    device = Device(Kind.NPU, 0, "Ascend910B3", "simulated")
    assert (device.torch, device.peak_memory_bytes(), device.total_memory_bytes()) == (NPU, 7, 64)
    device.synchronise()
    device.reset_peak_memory()
    assert asked == [NPU, NPU]
