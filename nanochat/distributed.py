"""One process group and the four collectives that training needs; with one rank the same calls do nothing.

Only sums: HCCL has no average (torch_npu emulates it by a sum and a division on the communication stream), so whoever
wants a mean divides the loss once. Collectives are started and waited for apart, so that they overlap.
"""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nanochat.device import Device
from nanochat.errors import BadConfig, NotReady, PeerLost

__all__ = ["Communicator", "Pending", "Waits", "join"]

T = TypeVar("T")


class Waits:
    """How long computation stood still for collectives: by the clock where a wait blocks the process (gloo), by events on
    the device's queue where it only blocks that (HCCL, NCCL).

    Args:
        new_event: Gives a timing event of the device, or None on a device without a queue.
    """

    def __init__(self, new_event: Callable[[], Any] = lambda: None) -> None:
        self._new_event = new_event
        self._seconds = 0.0
        self._pairs: list[tuple[Any, Any]] = []

    def around(self, wait: Callable[[], Any]) -> None:
        """Wait, and remember for how long."""
        before, started = self._new_event(), time.perf_counter()
        if before is None:
            wait()
            self._seconds += time.perf_counter() - started
            return
        before.record()
        wait()
        after = self._new_event()
        after.record()
        self._pairs.append((before, after))

    def take(self) -> float:
        """Seconds since the last call. The device must have done what was queued (a value was read back from it)."""
        seconds = self._seconds + sum(before.elapsed_time(after) for before, after in self._pairs) / 1000
        self._seconds, self._pairs = 0.0, []
        return seconds


@dataclass(frozen=True)
class Pending:
    """A collective under way. With one rank there is nothing to wait for."""

    result: Tensor
    work: Any = None
    waits: Waits | None = None

    def wait(self) -> Tensor:
        """The collective's result, once it is there.

        Raises:
            PeerLost: Another rank left.
        """
        if self.work is not None and self.waits is not None:
            self.waits.around(lambda: _translate(self.work.wait))
        elif self.work is not None:
            _translate(self.work.wait)
        return self.result


def _translate(call: Callable[[], T]) -> T:
    try:
        return call()
    except RuntimeError as error:  # gloo and c10d have no class of their own for a lost peer
        raise PeerLost(f"a collective failed: {str(error).splitlines()[0]}", hint="the first rank that failed says why") from error


@dataclass(frozen=True)
class Communicator:
    """Collectives over all ranks. Made by `join`; ``Communicator()`` is the world of one."""

    rank: int = 0
    size: int = 1
    waits: Waits = field(default_factory=Waits, compare=False, repr=False)

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for all."""
        return self.rank == 0

    def all_reduce(self, tensor: Tensor) -> Pending:
        """Start summing a tensor over the ranks, in place."""
        if self.size == 1:
            return Pending(tensor)
        return Pending(tensor, _translate(lambda: dist.all_reduce(tensor, async_op=True)), self.waits)

    def reduce_scatter(self, tensor: Tensor) -> Pending:
        """Start summing a tensor (size·n, …) over the ranks; the result is this rank's part (n, …).

        With one rank the result is the tensor itself, not a copy.
        """
        if self.size == 1:
            return Pending(tensor)
        part = torch.empty((tensor.size(0) // self.size, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
        return Pending(part, _translate(lambda: dist.reduce_scatter_tensor(part, tensor, async_op=True)), self.waits)

    def all_gather(self, part: Tensor, into: Tensor) -> Pending:
        """Start gathering every rank's part (n, …) into a tensor (size·n, …).

        With one rank the result is the part itself, and `into` is left alone.
        """
        if self.size == 1:
            return Pending(part)
        return Pending(into, _translate(lambda: dist.all_gather_into_tensor(into, part, async_op=True)), self.waits)

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """The source rank's tensor, in every rank's own, in place."""
        if self.size > 1:
            _translate(lambda: dist.broadcast(tensor, source))
        return tensor

    def gather_objects(self, value: T) -> list[T]:
        """Every rank's value, in the order of ranks. For small things: it pickles."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        _translate(lambda: dist.all_gather_object(values, value))
        return values

    def sum_floats(self, values: list[float], device: torch.device | str) -> list[float]:
        """Element-wise sums over the ranks, in fp32 (HCCL reduces no fp64)."""
        if self.size == 1:
            return values
        return self.all_reduce(torch.tensor(values, dtype=torch.float32, device=device)).wait().tolist()

    def barrier(self) -> None:
        """Return once every rank has come here."""
        if self.size > 1:
            _translate(dist.barrier)

    def close(self) -> None:
        """Leave the process group."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join(device: Device, *, store: Any = None, start_timeout_s: float = 600.0, timeout_s: float = 1800.0) -> Communicator:
    """Join the group that the launcher's environment describes (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).

    Every rank reports to the store first, so that a start that hangs ends with the names of the missing ranks and not
    in the backend's own time-out, which names nobody.

    Args:
        device: This rank's device; it decides the backend.
        store: The control store, where the caller has it and all ranks have met in it; None opens it and waits for them.
        start_timeout_s: How long ranks may take to appear.
        timeout_s: How long one collective may take.

    Raises:
        BadConfig: The environment contradicts itself.
        NotReady: Ranks are missing.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if not 0 <= rank < size:
        raise BadConfig(f"rank {rank} of {size}", where="RANK, WORLD_SIZE", hint="start ranks through python -m nanochat launch")
    if size == 1:
        return Communicator()
    if store is None:
        store = _open_store(rank, size, start_timeout_s)
        _wait_for_all(store, rank, size, start_timeout_s)
    dist.init_process_group(
        device.backend, store=dist.PrefixStore("group", store), rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s),
        device_id=None if device.backend == "gloo" else device.torch,
    )
    return Communicator(rank, size, Waits(device.timing_event))


def _open_store(rank: int, size: int, timeout_s: float) -> Any:
    """The key-value store that torchrun's agent, or rank 0, keeps. It does not wait for the ranks: `_wait_for_all` names them."""
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdigit():
        raise BadConfig(f"no store at {host!r}:{port!r}", where="MASTER_ADDR, MASTER_PORT", hint="start ranks through python -m nanochat launch")
    keeps = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        return dist.TCPStore(
            host, int(port), size, keeps, timeout=timedelta(seconds=timeout_s), wait_for_workers=False, multi_tenant=True
        )
    except RuntimeError as error:  # DistNetworkError and DistStoreError are RuntimeErrors
        raise NotReady(f"rank {rank} cannot reach the store: {str(error).splitlines()[0]}", where=f"{host}:{port}") from error


def _wait_for_all(store: Any, rank: int, size: int, timeout_s: float) -> None:
    store.set(f"ready/{rank}", socket.gethostname())
    deadline = time.monotonic() + timeout_s
    missing = [peer for peer in range(size) if peer != rank]
    while missing:
        left = deadline - time.monotonic()
        if left <= 0:
            raise NotReady(f"ranks {_ranges(missing)} of {size} did not start within {timeout_s:.0f} s", hint="see their logs first")
        try:
            store.wait([f"ready/{missing[0]}"], timedelta(seconds=min(left, 5.0)))
        except RuntimeError:  # a time-out; which ranks are missing is asked below
            missing = [peer for peer in missing if not store.check([f"ready/{peer}"])]
        else:
            missing.pop(0)


def _ranges(ranks: list[int]) -> str:
    """Ranks as people write them: 0, 4-7."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ", ".join("-".join(str(end) for end in part) for part in parts)
