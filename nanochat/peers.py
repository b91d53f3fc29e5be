"""Agreement between ranks on small values over the control store: no device, no collective, no blind waiting.

Whoever waits also looks for a verdict, so a rank that waits for one that failed learns
of it within a second and not at a collective's 30-minute timeout.
"""

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from nanochat.errors import NotReady, PeerLost

if TYPE_CHECKING:
    from torch.distributed import Store

__all__ = ["VERDICT_KEY", "Peers"]

VERDICT_KEY = "nanochat/verdict"
LONGEST_PAUSE_S = 0.5
"""Between two questions to the store; 1,000 ranks that wait ask it 2,000 times a second."""
SMALL_WORLD = 32
NAMED_AT_MOST = 16

T = TypeVar("T")


def name_ranks(ranks: list[int]) -> str:
    """Ranks as a person reads them: "rank 3", "ranks 1, 2, 7", cut after a few."""
    shown = ", ".join(map(str, ranks[:NAMED_AT_MOST])) + (", …" if len(ranks) > NAMED_AT_MOST else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


class Peers:
    """The ranks of a job, seen from one of them.

    All methods that agree on something must be called by all ranks in the same order.

    Args:
        rank: This rank.
        size: World size.
        store: Control store; None if and only if size is 1.
        per_node: Ranks on a node, to name nodes in messages.
    """

    def __init__(self, rank: int = 0, size: int = 1, store: "Store | None" = None, per_node: int = 1) -> None:
        self.rank, self.size, self.store, self.per_node = rank, size, store, per_node
        self._turn = 0

    @property
    def is_first(self) -> bool:
        """True on rank 0, which does what is done once."""
        return self.rank == 0

    def join(self, timeout_s: float) -> None:
        """Wait until all ranks have started.

        Raises:
            NotReady: Some did not in time; the message names them and their nodes.
        """
        if self.store is None or self.size == 1:
            return
        keys = [f"nanochat/joined/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], "1")
        deadline = time.monotonic() + timeout_s
        while not self._has(*keys):
            if self._has(VERDICT_KEY):
                raise PeerLost("another rank failed")
            if time.monotonic() > deadline:
                missing = [rank for rank, key in enumerate(keys) if not self._has(key)]
                nodes = sorted({rank // self.per_node for rank in missing})
                raise NotReady(
                    f"{name_ranks(missing)} of {self.size} did not start within {timeout_s:.0f} s (node {', '.join(map(str, nodes))})",
                    hint="look at the launcher's output on that node",
                )
            time.sleep(0.05 if self.size <= SMALL_WORLD else LONGEST_PAUSE_S)

    def share(self, value: T | None = None) -> T:
        """Rank 0's value, on every rank. The value must be JSON."""
        if self.store is None or self.size == 1:
            return value  # type: ignore[return-value]
        key = self._next_key()
        if self.is_first:
            self.store.set(key, json.dumps(value))
            return value  # type: ignore[return-value]
        return json.loads(self._await(key))

    def collect(self, value: T) -> list[T] | None:
        """Every rank's value in order of ranks, on rank 0; None elsewhere. The values must be JSON.

        Traffic grows with the number of ranks and not with its square, so values may be large.
        """
        if self.store is None or self.size == 1:
            return [value]
        key = self._next_key()
        if not self.is_first:
            self.store.set(f"{key}/{self.rank}", json.dumps(value))
            return None
        others = [self._take(f"{key}/{rank}") for rank in range(1, self.size)]
        return [value, *others]

    def gather(self, value: T) -> list[T]:
        """Every rank's value in order of ranks, on every rank. For small values, as JSON."""
        return self.share(self.collect(value))

    def meet(self) -> None:
        """Wait until every rank is here."""
        self.collect(None)
        self.share(None)

    def any_problem(self, problem: str) -> str:
        """The first rank's problem that has one, on every rank; "" if none has."""
        told = self.collect(problem)
        return self.share(next((text for text in told if text), "") if told is not None else None)

    def first_does(self, work: Callable[[], T]) -> T:
        """What work gives on rank 0, on every rank; the others wait. The result must be JSON.

        If it raises, rank 0 leaves with that error, and its verdict ends the waiting of the others.
        """
        return self.share(work() if self.is_first else None)

    def _next_key(self) -> str:
        self._turn += 1
        return f"nanochat/turn/{self._turn}"

    def _await(self, key: str) -> str:
        """The key's value once it is there. Asked for again and again: torch's own wait prints a C++ stack per timeout."""
        assert self.store is not None
        pause_s = 0.002
        while not self._has(key):
            if self._has(VERDICT_KEY):
                raise PeerLost("another rank failed")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return self.store.get(key).decode()

    def _take(self, key: str) -> Any:
        """The value, which nobody else will ask for."""
        assert self.store is not None
        value = json.loads(self._await(key))
        self.store.delete_key(key)
        return value

    def _has(self, *keys: str) -> bool:
        assert self.store is not None
        try:
            return bool(self.store.check(list(keys)))
        except RuntimeError as error:
            raise PeerLost(f"the control store is gone: {error}") from error
