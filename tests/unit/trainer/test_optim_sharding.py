"""The sharded optimizer does what one rank does, for any number of ranks, and its state moves between world sizes."""

import itertools

import pytest
import torch
from simulated_ranks import run_ranks

from nanochat.contract import ModelConfig, ModelShape
from nanochat.distributed import Communicator
from nanochat.model import GPT
from nanochat.optim import LearningRates, MuonAdamW, build_optimizer
from nanochat.optim.kernels import MuonRule
from nanochat.optim.units import StackUnit
from nanochat.schedule import PretrainSchedule

ROWS, LENGTH, STEPS = 24, 16, 20
SHAPE = ModelShape.of(ModelConfig(depth=3, aspect_ratio=16, head_dim=16, sequence_len=LENGTH, window_pattern="L"), 97)
SCHEDULE = PretrainSchedule(STEPS, warmup_steps=2, weight_decay=0.1)


def fresh(comm: Communicator) -> tuple[GPT, MuonAdamW]:
    """A model away from its starting point, where output projections are zero, gradients of the scalars are nothing but
    rounding noise, and AdamW blows that noise up to full steps."""
    model = GPT(SHAPE)
    model.init_weights(3)
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn(param.shape, generator=noise), alpha=0.1)
    return model, build_optimizer(model, LearningRates(batch_scale=0.1), comm)


def train(model: GPT, optimizer: MuonAdamW, first: int, last: int) -> None:
    """Steps first…last-1 on a global batch of 24 rows, of which each rank takes every size-th."""
    comm = optimizer.comm
    for step in range(first, last):
        rows = torch.randint(97, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(step))[comm.rank :: comm.size]
        (model(rows[:, :-1], rows[:, 1:], reduction="sum") / (ROWS * LENGTH)).backward()
        optimizer.step(SCHEDULE.at(step))
        optimizer.zero_grad()


def weights(model: GPT) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def pieces(optimizer: MuonAdamW) -> dict[str, tuple[torch.Tensor, int, int]]:
    return {key: (s.tensor.clone(), s.offset, s.numel) for key, s in optimizer.shard_state().items()}


def assemble(parts: list[dict[str, tuple[torch.Tensor, int, int]]]) -> dict[str, torch.Tensor]:
    """Whole state tensors from all ranks' pieces; every element exactly once."""
    whole: dict[str, torch.Tensor] = {}
    covered: dict[str, int] = {}
    for part in parts:
        for key, (tensor, offset, numel) in part.items():
            whole.setdefault(key, torch.full((numel,), torch.nan))[offset : offset + tensor.numel()] = tensor
            covered[key] = covered.get(key, 0) + tensor.numel()
    assert all(covered[key] == tensor.numel() and not tensor.isnan().any() for key, tensor in whole.items())
    return whole


def train_and_report(comm: Communicator) -> tuple[dict[str, torch.Tensor], int, dict[str, tuple[torch.Tensor, int, int]]]:
    model, optimizer = fresh(comm)
    train(model, optimizer, 0, STEPS)
    return weights(model), optimizer.state_bytes(), pieces(optimizer)


@pytest.fixture(scope="module")
def one_rank() -> tuple[dict[str, torch.Tensor], int, dict[str, tuple[torch.Tensor, int, int]]]:
    return train_and_report(Communicator())


def padding_bytes(world: int) -> int:
    """What a rank may hold beyond total / W: one matrix of each stack, one element of each large tensor, all small ones."""
    model, _ = fresh(Communicator())
    shapes = {p.shape for name, p in model.named_parameters() if name.startswith("transformer.h.")}
    stacks = sum(4 * (shape.numel() + max(shape)) for shape in shapes)
    small = sum(8 * p.numel() for name, p in model.named_parameters() if p.numel() < 1024 and not name.startswith("transformer.h."))
    return stacks + small + 8 * world


@pytest.mark.parametrize("world", [2, 3, 4, 6, *(pytest.param(w, marks=pytest.mark.slow) for w in (12, 24))])
def test_any_world_size_trains_as_one_rank_and_holds_its_share(world, one_rank) -> None:
    results = run_ranks(world, train_and_report)
    expected, total, whole = one_rank
    for got, held, _ in results:
        for name, tensor in expected.items():
            torch.testing.assert_close(got[name], tensor, rtol=2e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
        assert held <= total / world + padding_bytes(world)
    for (first, *_), (other, *_) in itertools.pairwise(results):
        assert all(torch.equal(first[name], other[name]) for name in first), "ranks must hold the same weights to the bit"
    state = assemble([part for *_, part in results])
    assert state.keys() == whole.keys()
    for key, (tensor, _, _) in whole.items():
        torch.testing.assert_close(state[key], tensor, rtol=5e-3, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}")


def test_state_saved_by_three_ranks_goes_on_with_two(one_rank) -> None:
    def first_half(comm: Communicator):
        model, optimizer = fresh(comm)
        train(model, optimizer, 0, STEPS // 2)
        return weights(model), pieces(optimizer)

    saved = run_ranks(3, first_half)
    state, start = assemble([part for _, part in saved]), saved[0][0]

    def second_half(comm: Communicator):
        model, optimizer = fresh(comm)
        model.load_state_dict(start, strict=False)
        optimizer.load_state(lambda key, offset, length: state[key][offset : offset + length], STEPS // 2)
        train(model, optimizer, STEPS // 2, STEPS)
        return weights(model)

    for got in run_ranks(2, second_half):
        for name, tensor in one_rank[0].items():
            torch.testing.assert_close(got[name], tensor, rtol=2e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_one_rank_continues_from_its_own_state_to_the_bit() -> None:
    model, optimizer = fresh(Communicator())
    train(model, optimizer, 0, 3)
    state, start = assemble([pieces(optimizer)]), weights(model)
    train(model, optimizer, 3, 6)
    other, continued = fresh(Communicator())
    other.load_state_dict(start, strict=False)
    continued.load_state(lambda key, offset, length: state[key][offset : offset + length], 3)
    train(other, continued, 3, 6)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_layout_names_every_state_tensor_alike_for_any_world_size() -> None:
    def describe(comm: Communicator):
        optimizer = fresh(comm)[1]
        return {key: (numel, str(dtype)) for key, (numel, dtype) in optimizer.state_layout().items()}

    one = describe(Communicator())
    assert run_ranks(3, describe) == [one] * 3
    assert one.keys() == pieces(fresh(Communicator())[1]).keys()


def test_a_parameter_without_gradient_on_one_rank_takes_the_others_gradient() -> None:
    def work(comm: Communicator):
        model, optimizer = fresh(comm)
        rows = torch.randint(97, (2, LENGTH + 1), generator=torch.Generator().manual_seed(1))
        if comm.rank == 0:
            model(rows[:, :-1], rows[:, 1:]).backward()
        optimizer.step(SCHEDULE.at(0))
        return weights(model)

    alone = work(Communicator())
    for got in run_ranks(2, work):
        for name, tensor in alone.items():
            torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_an_update_whose_gradients_were_not_summed_is_refused() -> None:
    """Each rank would go its own way, and no loss would tell."""

    def update_at_once(comm: Communicator) -> str:
        matrix = torch.nn.Parameter(torch.ones(4, 8))
        matrix.grad = torch.ones(4, 8)
        unit = StackUnit([("m", matrix)], MuonRule(lr=0.1), comm, dtype=torch.float32)
        try:
            unit.update(PretrainSchedule(10, weight_decay=0.1).at(0), 1)
        except AssertionError as error:
            return str(error)
        return "updated"

    assert run_ranks(1, update_at_once) == ["updated"]
    assert ["drift apart" in told for told in run_ranks(2, update_at_once)] == [True, True]
