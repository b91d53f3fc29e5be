"""Sums that begin during the backward pass give the same bits as sums after it."""

import pytest
import torch
from simulated_ranks import run_ranks
from test_optim_sharding import LENGTH, SCHEDULE, fresh, weights

from nanochat.distributed import Communicator

TURNS = 3


def train(comm: Communicator, overlap: bool) -> dict[str, torch.Tensor]:
    """Two steps of three micro batches; with overlap the last backward pass of each starts the sums."""
    model, optimizer = fresh(comm)
    for step in range(2):
        for turn in range(TURNS):
            rows = torch.randint(97, (2, LENGTH + 1), generator=torch.Generator().manual_seed(100 * comm.rank + 10 * step + turn))
            loss = model(rows[:, :-1], rows[:, 1:]) / (TURNS * comm.size)
            if overlap and turn == TURNS - 1:
                with optimizer.overlapping():
                    loss.backward()
            else:
                loss.backward()
        optimizer.step(SCHEDULE.at(step))
        optimizer.zero_grad()
    return weights(model)


def overlapped(comm: Communicator) -> dict[str, torch.Tensor]:
    return train(comm, overlap=True)


def plain(comm: Communicator) -> dict[str, torch.Tensor]:
    return train(comm, overlap=False)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_overlapped_sums_change_no_bit(world: int) -> None:
    expected, found = run_ranks(world, plain), run_ranks(world, overlapped)
    for rank in range(world):
        assert all(torch.equal(found[rank][name], tensor) for name, tensor in expected[rank].items())


def started_during_backward(comm: Communicator) -> int:
    model, optimizer = fresh(comm)
    rows = torch.randint(97, (2, LENGTH + 1), generator=torch.Generator().manual_seed(comm.rank))
    with optimizer.overlapping():
        model(rows[:, :-1], rows[:, 1:]).backward()
    started = len(optimizer._started)
    optimizer.step(SCHEDULE.at(0))
    return started - len(optimizer.units)


def test_every_sum_begins_during_the_backward_pass() -> None:
    assert run_ranks(2, started_during_backward) == [0, 0]
