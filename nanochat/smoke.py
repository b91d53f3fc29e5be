"""A short all-reduce over all ranks before anything expensive: links work, sums are right, and how fast they are.

The launcher's watch names the rank that does not come (`nanochat.heartbeat`); this makes it come or be named within a minute
and not in the middle of the first step.
"""

import time
from dataclasses import dataclass

import torch

from nanochat.device import Device
from nanochat.distributed import Communicator
from nanochat.errors import DeviceLost
from nanochat.heartbeat import Heartbeat

__all__ = ["LIMIT_S", "Smoke", "all_reduce_smoke"]

LIMIT_S = 60.0
"""How long a rank may stay away from it."""
ELEMENTS = 16 << 20
"""64 MiB of float32: large enough for bandwidth to count and not latency."""
ROUNDS = 3


@dataclass(frozen=True)
class Smoke:
    """What was measured.

    Attributes:
        took_s: All rounds and the warm-up.
        bus_gb_per_s: Of the slowest rank, as NCCL's tests count it: 2 (W - 1) / W x bytes / seconds.
        per_node_gb_per_s: The same for the traffic of one node's ranks together.
    """

    took_s: float
    bus_gb_per_s: float
    per_node_gb_per_s: float


def all_reduce_smoke(
    comm: Communicator, device: Device, ranks_per_node: int, elements: int = ELEMENTS, heart: Heartbeat | None = None,
) -> Smoke:
    """Sum a tensor of ones over all ranks, a warm-up and some timed rounds.

    Args:
        comm: The group of all ranks.
        device: This rank's device.
        ranks_per_node: For the bandwidth of one node.
        elements: Size of the tensor, float32.
        heart: Says when this rank prepares and when it waits for the others, with LIMIT_S for each; so a rank that never comes is named.

    Raises:
        DeviceLost: The sum is wrong: a device or a link computes or carries rubbish.
    """
    started = time.perf_counter()
    _round(comm, device, elements, heart)
    took, total = 0.0, torch.empty(0)
    for _ in range(ROUNDS):
        total, seconds = _round(comm, device, elements, heart)
        took += seconds / ROUNDS
    low, high = float(total.min()), float(total.max())
    if low != comm.size or high != comm.size:
        raise DeviceLost(f"ones summed over {comm.size} ranks gave {low} to {high}", where=f"rank {comm.rank}", hint="take this node out and have its NPUs tested")
    moved = 2 * (comm.size - 1) / comm.size * elements * 4
    slowest = max(comm.gather_objects(took))
    speed = moved / slowest / 1e9
    return Smoke(took_s=time.perf_counter() - started, bus_gb_per_s=speed, per_node_gb_per_s=speed * min(ranks_per_node, comm.size))


def _round(comm: Communicator, device: Device, elements: int, heart: Heartbeat | None) -> tuple[torch.Tensor, float]:
    """The sum of ones over all ranks, and the seconds between "this rank is ready" and "the sum is here"."""
    patience = LIMIT_S / heart.limit_s if heart is not None and heart.limit_s else 1.0
    if heart is not None:
        heart.busy("", 0, patience=patience)
    tensor = torch.ones(elements, dtype=torch.float32, device=device.torch)
    device.synchronise()
    if heart is not None:
        heart.waiting("", 0, patience=patience)
    begun = time.perf_counter()
    result = comm.all_reduce(tensor).wait()
    device.synchronise()
    return result, time.perf_counter() - begun
