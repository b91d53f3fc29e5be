"""Batches made ahead of time by a thread: the same batches in the same order, and no waiting while text is tokenised."""

import queue
import threading
import time
from collections.abc import Callable

from nanochat.data.batches import Batch
from nanochat.errors import BadData

__all__ = ["Prefetcher"]

DEPTH = 16
"""Batches held ready: enough to cover the tokenising of a very long document."""
PATIENCE_S = 300.0
"""Seconds without a batch after which something is wrong with the storage (a hung network mount); better an error than a wait for ever."""


class _End:
    """Marks the end of the queue; carries what went wrong."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Prefetcher:
    """Calls make in a thread and hands out its results in order.

    Args:
        make: Gives the next batch.
        depth: Batches held ready.
        patience_s: Seconds that `next` waits.
    """

    def __init__(self, make: Callable[[], Batch], depth: int = DEPTH, patience_s: float = PATIENCE_S) -> None:
        self._make, self._patience_s = make, patience_s
        self._queue: queue.Queue[Batch | _End] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._ended: _End | None = None
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()
        self.wait_s = 0.0

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                item: Batch | _End = self._make()
            except BaseException as error:  # whatever it is belongs to the consumer, who re-raises it
                item = _End(error)
            while not self._stop.is_set():
                try:
                    self._queue.put(item, timeout=0.2)
                    break
                except queue.Full:
                    continue
            if isinstance(item, _End):
                return

    def next(self) -> Batch:
        """The next batch.

        Raises:
            BadData: None came in time.
            Exception: Whatever make raised.
        """
        if self._ended is not None:
            raise self._ended.error
        started = time.perf_counter()
        try:
            item = self._queue.get(timeout=self._patience_s)
        except queue.Empty:
            raise BadData(f"no batch came for {self._patience_s:.0f} s", where="data loader", hint="is the storage reachable?") from None
        self.wait_s += time.perf_counter() - started
        if isinstance(item, _End):
            self._ended = item
            raise item.error
        return item

    def close(self) -> None:
        """Ends the thread; batches made ahead are dropped."""
        self._stop.set()
        while not self._queue.empty():
            self._queue.get_nowait()
        self._thread.join(timeout=5.0)
