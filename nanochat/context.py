"""What a stage is given: the run config, this rank's place, its device, and the ways to speak to the outside."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanochat.contract import ModelShape, RunConfig, RunFile
from nanochat.device import Device
from nanochat.distributed import Communicator
from nanochat.eventlog import EventLog
from nanochat.guards import Guard
from nanochat.heartbeat import Heartbeat
from nanochat.peers import Peers
from nanochat.stopping import StopSignal

__all__ = ["SURVIVABLE", "Context", "SessionOver"]

SURVIVABLE: tuple[type[Exception], ...] = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
)
"""What goes wrong in code that training can do without. Not our own errors: a stop, a lost peer and bad data have a meaning of their own."""


class SessionOver(Exception):
    """A session limit was reached: a checkpoint is written, the job leaves with 0 and can be resumed.

    Args:
        reason: Which limit.
        step: Updates done.
    """

    def __init__(self, reason: str, step: int) -> None:
        super().__init__(reason)
        self.reason, self.step = reason, step


@dataclass
class Context:
    """One rank of one attempt."""

    run_file: RunFile
    job_dir: Path
    device: Device
    peers: Peers
    comm: Communicator
    events: EventLog
    stop: StopSignal
    heart: Heartbeat
    guards: list[Guard] = field(default_factory=list)
    stage_index: int = 0
    started: float = field(default_factory=time.time)
    """Unix time at which this attempt began."""
    checked: dict[str, Any] = field(default_factory=dict)
    """What a stage's ``check`` found out and its ``run`` needs; rank 0's is the one that counts."""

    @property
    def run(self) -> RunConfig:
        """The run config."""
        return self.run_file.run

    @property
    def is_first(self) -> bool:
        """True on rank 0."""
        return self.peers.is_first

    def tick(self) -> None:
        """Call between pieces of work outside of the training loop: leaves if a stop was asked for, else shows that this rank lives."""
        self.stop.check()
        self.heart.busy(self.events.stage, self.events.step)

    def shape(self, vocab_size: int) -> ModelShape:
        """Shape of the model for a vocabulary; ``window_pattern: auto`` is L unless the plan resolved it."""
        return ModelShape.of(self.run.model, vocab_size)

    @contextmanager
    def surviving(self, code: str, what: str, also: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Turn an ordinary failure within into a warning event: for what training can do without.

        Args:
            code: Of the warning.
            what: Failed.
            also: Errors of ours that count as such a failure here; only where no other rank waits for this one.
        """
        try:
            yield
        except (*SURVIVABLE, *also) as error:
            self.events.warn(code, f"{what}: {type(error).__name__}: {error}")
