"""Makers of batches: rows from streams (`StreamBatches`), and what every maker has in common."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from nanochat.data.packing import RowStats
from nanochat.errors import BadConfig, BadData

__all__ = ["Batch", "BatchMaker", "RowStream", "StreamBatches", "batch_of", "untrained"]

IGNORED = -1
"""Target that no loss is computed for."""


@dataclass(frozen=True)
class Batch:
    """Rows for one forward pass.

    inputs and targets are (B, T) int64 on the CPU, each batch in memory of its own; targets are -1 where nothing is to be
    predicted, and then the input is BOS. `epoch` is 0-based, the lowest of the rows.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    epoch: int
    state: Any = field(default=None, repr=False)
    stats: RowStats = field(default_factory=RowStats, repr=False)


class BatchMaker(Protocol):
    """Makes one batch after the other, deterministically."""

    def make(self) -> Batch:
        """The next batch; its `state` is where the maker stands after it."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Where the maker stands, as JSON."""
        ...

    def jsonable(self, state: Any) -> dict[str, Any]:
        """The `state` of a batch as JSON."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to where a JSON state was taken."""
        ...

    def close(self) -> None:
        """Ends threads."""
        ...


def untrained(ids: np.ndarray) -> np.ndarray:
    """Token ids as they stand in a row where nothing is learnt from them: below -1."""
    return -2 - ids


def batch_of(rows: np.ndarray, bos_id: int, epoch: int, state: Any, stats: RowStats) -> Batch:
    """A batch from rows of T + 1 entries, (B, T + 1) int64: token ids, `untrained` ids, or -1 where there is nothing."""
    inputs = np.ascontiguousarray(rows[:, :-1])
    targets = np.ascontiguousarray(rows[:, 1:])
    if stats.padding_tokens or stats.untrained_tokens:
        inputs = np.where(inputs < 0, np.where(inputs == IGNORED, bos_id, -2 - inputs), inputs)
        targets = np.maximum(targets, IGNORED)
    return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), epoch, state, stats)


class RowStream(Protocol):
    """An endless sequence of rows, see `nanochat.data.packing.Stream`."""

    index: int
    rows: int

    @property
    def epoch(self) -> int:
        """Epoch of the oldest that is not trained on yet, 0-based."""
        ...

    def fill(self, row: np.ndarray) -> RowStats:
        """Fills a row in place."""
        ...

    def state(self) -> tuple[Any, ...]:
        """Where it stands: rows done, next chunk and place in it, pieces held."""
        ...

    def restore(self, state: Any) -> None:
        """Goes to where `state` was taken."""
        ...


class StreamBatches:
    """Batches whose rows come from streams: row j of micro batch m is the next row of stream m x B + j of this rank.

    Streams are filled one after the other: two threads that fill streams only take the interpreter's lock from each other
    (3.2 against 2.1 million tokens/s, `dev/bench_loader.py`); the thread that works ahead is `nanochat.data.prefetch`'s.

    Args:
        streams: The streams of this rank.
        device_batch: Rows B of a batch; it has to divide the number of streams.
        sequence_len: T.
        bos_id: Id of the BOS token.
        identity: What the order depends on; a state of another identity is refused.
    """

    def __init__(
        self, streams: Sequence[RowStream], device_batch: int, sequence_len: int, bos_id: int, *, identity: dict[str, Any]
    ) -> None:
        if not streams or len(streams) % device_batch:
            raise BadConfig(f"{len(streams)} rows of a rank in a step do not divide by device_batch {device_batch}")
        self._streams, self._device_batch, self._capacity, self._bos_id = streams, device_batch, sequence_len + 1, bos_id
        self._identity = identity
        self._next = 0
        self._positions = [stream.state() for stream in streams]

    def make(self) -> Batch:
        """The next batch."""
        first, end = self._next, self._next + self._device_batch
        group = self._streams[first:end]
        self._next = end % len(self._streams)
        rows = np.empty((self._device_batch, self._capacity), dtype=np.int64)
        total = RowStats()
        for stream, row in zip(group, rows, strict=True):
            total.add(stream.fill(row))
        self._positions[first:end] = [stream.state() for stream in group]
        return batch_of(rows, self._bos_id, min(stream.epoch for stream in group), self._state(), total)

    def _state(self) -> list[tuple[int, Any]]:
        return [(stream.index, position) for stream, position in zip(self._streams, self._positions, strict=True)]

    def snapshot(self) -> dict[str, Any]:
        """Where the streams stand."""
        return self.jsonable(self._state())

    def jsonable(self, state: Any) -> dict[str, Any]:
        """A batch's state as JSON: identity, and the position of each stream under its number."""
        return {**self._identity, "streams": {str(index): [rows, ordinal, offset, list(map(list, pieces))]
                                              for index, (rows, ordinal, offset, pieces) in state}}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a state; it may hold more streams than this rank has, as after `merge_states`.

        Raises:
            BadConfig: The state was taken with other data, tokenizer, seed or batch.
            BadData: A stream is missing or does not fit.
        """
        for key, mine in self._identity.items():
            if state.get(key) != mine:
                raise BadConfig(
                    f"the saved position is for {key} {state.get(key)!r}, this run has {mine!r}", where="data loader",
                    hint="resume with the data, tokenizer, seed and batch of the checkpoint, or start with run.resume: never",
                )
        missing = [stream.index for stream in self._streams if str(stream.index) not in state["streams"]]
        if missing:
            raise BadData(f"the saved position has no stream {missing[0]} ({len(missing)} are missing)", where="data loader")
        for stream in self._streams:
            stream.restore(state["streams"][str(stream.index)])
        self._positions = [stream.state() for stream in self._streams]
        if len({stream.rows for stream in self._streams}) > 1:
            raise BadData("the saved position is from the middle of a step", where="data loader")
        self._next = 0

    def close(self) -> None:
        """Nothing to end: the streams have no threads."""
