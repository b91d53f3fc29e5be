"""A stage that does what a test asks of it, instead of training: real processes, real collectives, real signals.

`launchers.py` exchanges the stage pretrain for this module. What it does is in the environment: STAND_IN = "done", "loop", or
"RANK:ACTION" with ACTION bad-data, bug, kill, exit3 or hang.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from nanochat.context import Context
from nanochat.errors import BadData, Interrupted


def check(context: Context) -> None:
    """Nothing is needed."""


def run(context: Context) -> dict[str, Any]:
    """Sum over the ranks again and again; in step 3 do what was asked for."""
    asked = os.environ.get("STAND_IN", "")
    if asked == "done":
        return {"fine": True}
    rank, _, action = asked.partition(":")
    with context.stop.deferred():
        for step in range(1, 3000):
            context.events.step = step
            context.heart.busy("pretrain", step)
            if step == 3:
                Path(context.job_dir / f"pid{context.peers.rank}").write_text(str(os.getpid()))
                if asked != "loop" and int(rank) == context.peers.rank:
                    _act(action)
            context.heart.waiting("pretrain", step)
            stop = context.comm.all_reduce(torch.tensor([float(context.stop.requested)])).wait()
            if stop.item() > 0:
                (context.job_dir / f"saved{context.peers.rank}").write_text(str(step))
                raise Interrupted(f"stopped after step {step}")
            time.sleep(0.02)
    raise AssertionError("the test did not end the loop")


def _act(action: str) -> None:
    if action == "bad-data":
        raise BadData("shard 7 is damaged", where="data/shard7", hint="fetch it again")
    if action == "bug":
        raise ZeroDivisionError("a planted bug")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "exit3":
        os._exit(3)
    if action == "hang":
        time.sleep(600)
