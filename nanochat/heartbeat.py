"""Signs of life of a rank, and what the first node's launcher concludes from their absence.

A collective that one rank never reaches hangs all of them, and the backend's own time-out (30 minutes) names nobody. So each
rank says what it does, *busy* or *waiting* for others; a small thread publishes that through the control store. If nothing
has moved for longer than allowed, the ranks that are not waiting are the ones that the others wait for.
"""

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch.distributed import Store

__all__ = ["Heartbeat", "Pulse", "Silence", "Watch", "beat_key"]

Doing = Literal["busy", "waiting", "resting"]
PUBLISH_S = 2.0


def beat_key(rank: int) -> str:
    """Key under which a rank publishes."""
    return f"nanochat/beat/{rank}"


@dataclass(frozen=True)
class Pulse:
    """What a rank said last."""

    doing: Doing
    stage: str
    step: int
    limit_s: float
    """How long it may stay like this; 0 for ever."""
    age_s: float
    """How long it had been like this when it was published."""
    count: int
    """Of publications: a frozen process stops counting."""

    @classmethod
    def parse(cls, text: str) -> "Pulse | None":
        """The pulse in a text, or None."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None


class Heartbeat:
    """One rank's side. `busy`, `waiting` and `rest` cost a few hundred nanoseconds; publishing is the thread's.

    Args:
        store: Control store; None makes it silent.
        rank: This rank.
        limit_s: How long the rank may be silent; 0 for ever.
    """

    def __init__(self, store: "Store | None", rank: int, limit_s: float) -> None:
        self._store, self._rank, self.limit_s = store, rank, limit_s
        self._state: tuple[Doing, str, int, float, float] = ("resting", "", 0, 0.0, time.monotonic())
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if store is not None and limit_s > 0:
            self._thread = threading.Thread(target=self._publish, name="heartbeat", daemon=True)
            self._thread.start()

    def busy(self, stage: str, step: int, *, patience: float = 1.0) -> None:
        """This rank works by itself now.

        Args:
            stage: Stage.
            step: Step that it works on.
            patience: Factor on the limit, for what takes long (a checkpoint on a slow volume).
        """
        self._state = ("busy", stage, step, self.limit_s * patience, time.monotonic())

    def waiting(self, stage: str, step: int, *, patience: float = 1.0) -> None:
        """This rank has done its part and waits for the others."""
        self._state = ("waiting", stage, step, self.limit_s * patience, time.monotonic())

    def rest(self) -> None:
        """Nothing is expected of this rank."""
        self._state = ("resting", "", 0, 0.0, time.monotonic())

    def close(self) -> None:
        """End the thread."""
        self._stop.set()

    def _publish(self) -> None:
        assert self._store is not None
        count = 0
        while not self._stop.wait(min(PUBLISH_S, self.limit_s / 4)):
            count += 1
            doing, stage, step, limit_s, since = self._state
            age_s = round(time.monotonic() - since, 2)
            pulse = {"doing": doing, "stage": stage, "step": step, "limit_s": limit_s, "age_s": age_s, "count": count}
            try:
                self._store.set(beat_key(self._rank), json.dumps(pulse))
            except RuntimeError:
                return  # the store is gone, and so is whoever would have listened


@dataclass(frozen=True)
class Silence:
    """The conclusion: nothing moves, and these ranks are why."""

    ranks: tuple[int, ...]
    stage: str
    step: int
    silent_s: float
    all_wait: bool
    """True if every rank waits: then it is a link or the backend, not a rank."""


class Watch:
    """The launcher's side: follows the pulses of all ranks by its own clock."""

    def __init__(self, size: int) -> None:
        self._last: list[tuple[Pulse, float] | None] = [None] * size
        """Last pulse of each rank, and when its count was first seen."""

    def look(self, texts: Sequence[str], now: float) -> Silence | None:
        """The conclusion from what the ranks have published, or None while all is well.

        Args:
            texts: One entry a rank, "" where it has published nothing.
            now: Seconds on any steady clock.
        """
        for rank, text in enumerate(texts):
            pulse, before = Pulse.parse(text), self._last[rank]
            if pulse is not None and (before is None or before[0].count != pulse.count):
                self._last[rank] = (pulse, now)
        seen = {rank: entry for rank, entry in enumerate(self._last) if entry is not None}
        silent = {rank: pulse.age_s + now - at for rank, (pulse, at) in seen.items()}
        over = [rank for rank, (pulse, _) in seen.items() if pulse.limit_s and silent[rank] > pulse.limit_s]
        return self._conclude(over, silent) if over else None

    def _conclude(self, over: list[int], silent: dict[int, float]) -> Silence:
        pulses = {rank: entry[0] for rank, entry in enumerate(self._last) if entry is not None}
        culprits = [rank for rank in over if pulses[rank].doing == "busy"]
        named = culprits or over
        first = pulses[named[0]]
        return Silence(tuple(named), first.stage, first.step, silent[named[0]], not culprits)
