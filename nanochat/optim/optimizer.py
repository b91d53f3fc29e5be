"""MuonAdamW over any number of ranks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from nanochat.distributed import Communicator
from nanochat.optim.units import Fetch, ReplicatedUnit, StateShard, Unit
from nanochat.schedule import Rates

__all__ = ["MuonAdamW"]


class MuonAdamW:
    """The optimizer: a list of units, three passes over it for every update.

    Not a ``torch.optim.Optimizer``: that class imports torch's compiler (seconds of start-up), and its state is keyed by
    position, which another world size could not read.

    Gradients are **summed** over the ranks. Whoever computes the loss divides it by world size x accumulation (or, where
    rows have different numbers of targets, by the global number of targets), so that no kernel is spent on a mean.

    Args:
        units: From `nanochat.optim.build_optimizer`.
        comm: Collectives.
    """

    def __init__(self, units: Sequence[Unit], comm: Communicator) -> None:
        self.units = list(units)
        self.comm = comm
        self.updates = 0
        """Updates done so far."""
        self._started: set[int] = set()
        self._left: list[int] | None = None
        if comm.size > 1:
            for number, unit in enumerate(self.units):
                for _, param in unit.params:
                    param.register_post_accumulate_grad_hook(partial(self._on_gradient, number))

    @contextmanager
    def overlapping(self) -> Iterator[None]:
        """Around the last backward pass before a step: a unit's sum starts as soon as its last gradient is complete.

        Ranks run the same graph, so their gradients, and with them the collectives, come in the same order.
        """
        self._left = [len(unit.params) for unit in self.units]
        try:
            yield
        finally:
            self._left = None

    def _on_gradient(self, number: int, param: Tensor) -> None:
        if self._left is None:
            return
        self._left[number] -= 1
        if self._left[number] == 0:
            self._started.add(number)
            self.units[number].reduce()

    @torch.no_grad()
    def step(self, rates: Rates) -> None:
        """Sum the gradients over the ranks and update every parameter. Gradients are left undefined: call `zero_grad`.

        All reductions start first and all gatherings end last, so that communication and arithmetic overlap.
        """
        self.updates += 1
        for number, unit in enumerate(self.units):
            if number not in self._started:
                unit.reduce()
        self._started.clear()
        for unit in self.units:
            unit.update(rates, self.updates)
        for unit in self.units:
            unit.finish()

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for unit in self.units:
            for _, param in unit.params:
                param.grad = None

    def state_bytes(self) -> int:
        """Bytes of optimizer state on this rank."""
        return sum(shard.tensor.numel() * shard.tensor.element_size() for unit in self.units for shard in unit.shards())

    def shard_state(self) -> dict[str, StateShard]:
        """This rank's pieces of state by key; what every rank has alike is given by rank 0 alone.

        The tensors are views of live state: write or copy them before the next step. `updates` is to be saved beside them.
        """
        units = [unit for unit in self.units if self.comm.is_first or not isinstance(unit, ReplicatedUnit)]
        return {shard.key: shard for unit in units for shard in unit.shards()}

    def state_layout(self) -> dict[str, tuple[int, torch.dtype]]:
        """Elements and dtype of every whole state tensor, the same on every rank and for every world size."""
        return {key: (numel, dtype) for unit in self.units for key, numel, dtype in unit.layout()}

    @torch.no_grad()
    def load_state(self, fetch: Fetch, updates: int) -> None:
        """Fill this rank's state, saved by any world size.

        Args:
            fetch: Gives any run of elements of any whole state tensor.
            updates: Updates that had been done.
        """
        for unit in self.units:
            for shard in unit.shards():
                shard.tensor.copy_(fetch(shard.key, shard.offset, shard.tensor.numel()).view(-1))
        self.updates = updates
