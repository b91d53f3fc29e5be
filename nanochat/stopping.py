"""Stopping on request: SIGTERM, or Ctrl-C where there is no launcher."""

import contextlib
import signal
from collections.abc import Iterator

from nanochat.errors import Interrupted

__all__ = ["StopSignal"]


class StopSignal:
    """Whether a stop was asked for, and what that does: at once, or when the loop next asks.

    Most of a job holds nothing that is worth saving, so there a signal raises `Interrupted` on the spot. A training
    loop wraps itself in `deferred` and looks at `requested` once a step, to leave with a checkpoint.
    """

    def __init__(self) -> None:
        self.requested = False
        self._deferred = 0

    def install(self) -> None:
        """Answer SIGTERM and SIGINT from now on. Call from the main thread."""
        signal.signal(signal.SIGTERM, self._on_signal)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # ignored: a launcher answers for us
            signal.signal(signal.SIGINT, self._on_signal)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Within, a signal only sets `requested`."""
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1

    def over(self) -> None:
        """From now on signals are only noted: what there was to do is done, or has failed, and is being told."""
        self._deferred += 1

    def check(self) -> None:
        """Raise `Interrupted` if a stop was asked for."""
        if self.requested:
            raise Interrupted("stopped on request")

    def _on_signal(self, number: int, frame: object) -> None:
        again, self.requested = self.requested, True
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self._deferred and not again:
            raise Interrupted(f"stopped by {signal.Signals(number).name}")
