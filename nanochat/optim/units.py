"""Units of optimizer work: what is reduced, updated and gathered together, and which part of it this rank owns.

Three kinds, as upstream has them (ZeRO-2: gradients and state sharded, parameters replicated), made for any world size:
one large AdamW tensor, sharded flat; all small AdamW tensors, replicated; one stack of equally shaped Muon matrices,
whole matrices to a rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nanochat.device import muon_chunk_elements
from nanochat.distributed import Communicator, Pending
from nanochat.optim.kernels import AdamWRule, MuonRule, adamw_update, muon_update
from nanochat.schedule import Rates

__all__ = ["Fetch", "Named", "ReplicatedUnit", "ShardedUnit", "StackUnit", "StateShard", "Unit"]

Named = tuple[str, torch.nn.Parameter]


@dataclass(frozen=True)
class StateShard:
    """One piece of the optimizer's state: a run of elements of a tensor that exists as a whole only across the ranks.

    The whole is named by `key` and flattened, so that any world size can cut its own pieces out of it.
    """

    key: str
    """``exp_avg/…``, ``exp_avg_sq/…``, ``momentum/…`` or ``second_moment/…`` and the parameter's name."""
    tensor: Tensor
    """1-D."""
    offset: int
    """Of its first element in the flattened whole."""
    numel: int
    """Elements of the whole."""


Fetch = Callable[[str, int, int], Tensor]
"""Gives the elements [offset, offset + length) of the flattened state tensor named by a key; any shape, dtype and device."""


class Unit(ABC):
    """Parameters that one set of collectives serves."""

    params: Sequence[Named]

    @abstractmethod
    def reduce(self) -> None:
        """Start summing the gradients over the ranks."""

    @abstractmethod
    def update(self, rates: Rates, step: int) -> None:
        """Wait for the gradients, update what this rank owns, start gathering the parameters."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until every rank's part has arrived in the parameters."""

    @abstractmethod
    def shards(self) -> Iterator[StateShard]:
        """This rank's pieces of state: views, not copies. Pieces that every rank has are given as well."""

    @abstractmethod
    def layout(self) -> Iterator[tuple[str, int, torch.dtype]]:
        """Key, elements and dtype of every whole state tensor of this unit, the same on every rank."""


def _grad(param: torch.nn.Parameter) -> Tensor:
    """The gradient; zeros where the last backward did not reach the parameter, since every rank must take part."""
    return param.grad if param.grad is not None else torch.zeros_like(param)


class ReplicatedUnit(Unit):
    """Small AdamW tensors: one all-reduce for all of them, state on every rank."""

    def __init__(self, params: Sequence[tuple[Named, AdamWRule]], comm: Communicator) -> None:
        self.params = [named for named, _ in params]
        self._rules = [rule for _, rule in params]
        self._comm = comm
        self._sizes = [p.numel() for _, p in self.params]
        self._moments = [(torch.zeros_like(p), torch.zeros_like(p)) for _, p in self.params]
        self._pending: Pending | None = None

    def reduce(self) -> None:
        self._pending = self._comm.all_reduce(torch.cat([_grad(p).flatten() for _, p in self.params]))

    def update(self, rates: Rates, step: int) -> None:
        assert self._pending is not None
        grads = self._pending.wait().split(self._sizes)
        self._pending = None
        for (_, param), rule, (m, v), grad in zip(self.params, self._rules, self._moments, grads, strict=True):
            adamw_update(param.data, grad.view_as(param), m, v, rule, rule.lr * rates.lr_scale, step)

    def finish(self) -> None:
        """Nothing to gather."""

    def shards(self) -> Iterator[StateShard]:
        for (name, param), (m, v) in zip(self.params, self._moments, strict=True):
            yield StateShard(f"exp_avg/{name}", m.view(-1), 0, param.numel())
            yield StateShard(f"exp_avg_sq/{name}", v.view(-1), 0, param.numel())

    def layout(self) -> Iterator[tuple[str, int, torch.dtype]]:
        for name, param in self.params:
            for kind in ("exp_avg", "exp_avg_sq"):
                yield f"{kind}/{name}", param.numel(), param.dtype


class ShardedUnit(Unit):
    """One large AdamW tensor, flat: rank r owns elements [r·n, (r+1)·n) with n = ceil(elements / world size)."""

    def __init__(self, named: Named, rule: AdamWRule, comm: Communicator) -> None:
        self.params = [named]
        self._name, self._param = named
        self._rule, self._comm = rule, comm
        self._numel = self._param.numel()
        self._part = -(-self._numel // comm.size)
        self._start = min(comm.rank * self._part, self._numel)
        self._owned = min(self._part, self._numel - self._start)
        self._exp_avg, self._exp_avg_sq = (torch.zeros_like(self._flat()[: self._owned]) for _ in range(2))
        self._reduced: Pending | None = None
        self._gathered: Pending | None = None

    def _flat(self) -> Tensor:
        return self._param.data.view(-1)

    @property
    def _is_even(self) -> bool:
        return self._part * self._comm.size == self._numel

    def _padded(self, flat: Tensor) -> Tensor:
        """The flat tensor itself where it divides, else a copy with room at the end."""
        if self._is_even:
            return flat
        padded = flat.new_zeros(self._part * self._comm.size)
        padded[: self._numel] = flat
        return padded

    def reduce(self) -> None:
        self._reduced = self._comm.reduce_scatter(self._padded(_grad(self._param).view(-1)))

    def update(self, rates: Rates, step: int) -> None:
        assert self._reduced is not None
        grad = self._reduced.wait()[: self._owned]
        self._reduced = None
        mine = self._flat()[self._start : self._start + self._owned]
        adamw_update(mine, grad, self._exp_avg, self._exp_avg_sq, self._rule, self._rule.lr * rates.lr_scale, step)
        if self._comm.size > 1:
            part = mine if self._is_even else torch.cat((mine, mine.new_zeros(self._part - self._owned)))
            self._gathered = self._comm.all_gather(part, self._flat() if self._is_even else part.new_empty(self._part * self._comm.size))

    def finish(self) -> None:
        if self._gathered is not None:
            whole = self._gathered.wait()
            if not self._is_even:
                self._flat().copy_(whole[: self._numel])
            self._gathered = None

    def shards(self) -> Iterator[StateShard]:
        if self._owned:
            yield StateShard(f"exp_avg/{self._name}", self._exp_avg, self._start, self._numel)
            yield StateShard(f"exp_avg_sq/{self._name}", self._exp_avg_sq, self._start, self._numel)

    def layout(self) -> Iterator[tuple[str, int, torch.dtype]]:
        for kind in ("exp_avg", "exp_avg_sq"):
            yield f"{kind}/{self._name}", self._numel, self._param.dtype


class StackUnit(Unit):
    """A stack of K equally shaped Muon matrices: a rank owns ceil(K / world size) of them, or what is left.

    `shift` turns the ranks, so that the rank that gets least of one stack need not get least of the next.
    """

    def __init__(self, params: Sequence[Named], rule: MuonRule, comm: Communicator, *, dtype: torch.dtype, shift: int = 0) -> None:
        self.params = params
        self._rule, self._comm, self._dtype, self._shift = rule, comm, dtype, shift % comm.size
        self._per_rank = -(-len(params) // comm.size)
        self._mine = self._chunk_of(comm.rank)
        first = params[0][1]
        rows, cols = first.shape
        self._lr = rule.lr * max(1.0, rows / cols) ** 0.5
        self._momentum = first.new_zeros((len(self._mine), rows, cols))
        self._second = first.new_zeros((len(self._mine), *((rows, 1) if rows >= cols else (1, cols))))
        self._reduced: Pending | None = None
        self._gathered: Pending | None = None

    def _chunk_of(self, rank: int) -> range:
        """Numbers of the matrices that a rank owns."""
        start = (rank - self._shift) % self._comm.size * self._per_rank
        return range(min(start, len(self.params)), min(start + self._per_rank, len(self.params)))

    def _slots(self) -> Iterator[tuple[int, int]]:
        """(place in the gathered stack, number of the matrix) of every matrix."""
        for rank in range(self._comm.size):
            for i, number in enumerate(self._chunk_of(rank)):
                yield rank * self._per_rank + i, number

    def reduce(self) -> None:
        if self._comm.size == 1:  # nothing to sum: `update` takes the gradients where they are
            return
        nothing = torch.zeros_like(self.params[0][1])
        by_slot = [nothing] * (self._per_rank * self._comm.size)
        for slot, number in self._slots():
            by_slot[slot] = _grad(self.params[number][1])
        self._reduced = self._comm.reduce_scatter(torch.stack(by_slot))

    def update(self, rates: Rates, step: int) -> None:
        assert (self._reduced is None) == (self._comm.size == 1), "with gradients of its own each rank would drift apart in silence"
        summed = None if self._reduced is None else self._reduced.wait()
        self._reduced = None
        first = self.params[0][1]
        at_once = max(1, muon_chunk_elements(first.device) // first.numel())
        for start in range(0, len(self._mine), at_once):  # stacked a few at a time, the copies stay in a CPU's caches too
            part = slice(start, min(start + at_once, len(self._mine)))
            params = [self.params[number][1] for number in self._mine[part]]
            stack = torch.stack([param.data for param in params])
            muon_update(
                stack, torch.stack([_grad(param) for param in params]) if summed is None else summed[part], self._momentum[part],
                self._second[part], self._rule, lr=self._lr * rates.lr_scale, momentum=rates.momentum, weight_decay=rates.weight_decay,
                dtype=self._dtype,
            )
            if summed is None:
                torch._foreach_copy_([param.data for param in params], list(stack.unbind()))
            else:
                summed[part] = stack
        if summed is not None:
            self._gathered = self._comm.all_gather(summed, summed.new_empty((self._per_rank * self._comm.size, *summed.shape[1:])))

    def finish(self) -> None:
        if self._gathered is None:
            return
        whole = self._gathered.wait()
        self._gathered = None
        slots = list(self._slots())
        torch._foreach_copy_([self.params[number][1].data for _, number in slots], [whole[slot] for slot, _ in slots])

    def shards(self) -> Iterator[StateShard]:
        for i, number in enumerate(self._mine):
            name = self.params[number][0]
            for kind, stack in (("momentum", self._momentum), ("second_moment", self._second)):
                yield StateShard(f"{kind}/{name}", stack[i].view(-1), 0, stack[i].numel())

    def layout(self) -> Iterator[tuple[str, int, torch.dtype]]:
        for name, param in self.params:
            yield f"momentum/{name}", param.numel(), param.dtype
            yield f"second_moment/{name}", max(param.shape), param.dtype
