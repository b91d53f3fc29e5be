"""Several ranks on this computer, for tests: forked from a server that has imported torch once, which costs seconds.

Not from the process of the tests: once a test there has used autograd on a simulated device, torch refuses to run it in a fork.
"""

import io
import multiprocessing
import os
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch
from loopback import free_port

from nanochat.device import pick
from nanochat.distributed import Communicator, join

_CONTEXT = multiprocessing.get_context("forkserver")
# One server serves all tests of a process; whoever starts it first decides what it has imported, which is only a matter of speed.
_CONTEXT.set_forkserver_preload(["nanochat.rank", "nanochat.launch.command"])


def run_ranks(world: int, work: Callable[[Communicator], Any], timeout_s: float = 120.0) -> list[Any]:
    """What `work` gives back on every rank of a real gloo group, in the order of ranks.

    Raises:
        AssertionError: A rank failed (with its traceback) or did not come back in time.
    """
    if world == 1:
        return [work(Communicator())]
    port, packed = free_port(), cloudpickle.dumps(work)  # what tests hand over are mostly functions inside of functions
    pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(world)]
    processes = [
        _CONTEXT.Process(target=_rank, args=(rank, world, port, pipes[rank][1], packed), daemon=True) for rank in range(world)
    ]
    for process in processes:
        process.start()
    try:
        return [_receive(pipe[0], rank, timeout_s) for rank, pipe in enumerate(pipes)]
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _receive(pipe: Any, rank: int, timeout_s: float) -> Any:
    assert pipe.poll(timeout_s), f"rank {rank} did not come back within {timeout_s} s"
    fine, value = pipe.recv()
    assert fine, f"rank {rank} failed:\n{value}"
    return torch.load(io.BytesIO(value), weights_only=False)


def _packed(value: Any) -> bytes:
    """The value as bytes: torch's own pickling of tensors would pass file descriptors of a process that is about to go."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _rank(rank: int, world: int, port: int, pipe: Any, work: bytes) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        comm = join(pick("cpu"), start_timeout_s=60, timeout_s=60)
        pipe.send((True, _packed(cloudpickle.loads(work)(comm))))
        comm.close()
    except BaseException:  # the parent raises it with this text
        pipe.send((False, traceback.format_exc()))
    finally:
        pipe.close()
        os._exit(0)
