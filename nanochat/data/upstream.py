"""Upstream nanochat's packing, for comparison: its order of documents and its rows, token for token.

Rank r of W reads the row groups r, r + W, … of each file in sorted order, tokenises 128 documents at a time and keeps at least
1,000 in a buffer. A row takes the longest document that fits, again and again; when none fits, the shortest is cropped to fill
the rest, and what was cut off is lost. Documents longer than a row are hardly ever reached (karpathy/nanochat 92d63d4,
``nanochat/dataloader.py``). Here the buffer is sorted by length, so a choice takes a bisection and not a scan, and the position
is exact.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from nanochat.data.batches import Batch, batch_of
from nanochat.data.corpus import Corpus
from nanochat.data.packing import RowStats
from nanochat.data.shards import ShardCorpus
from nanochat.errors import BadConfig, BadData
from nanochat.tokenizer import Tokenizer

__all__ = ["UpstreamBatches"]

BUFFER_DOCUMENTS = 1000
DOCUMENTS_AT_ONCE = 128
THREADS = 4

Reference = tuple[int, int, int]
"""Where a document is: file, row group, document."""


class _SortedBuffer:
    """Documents by length; among equally long ones the first that came is the first that goes."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._documents: dict[int, deque[tuple[int, np.ndarray]]] = {}
        self._held: dict[int, Reference] = {}  # by number of arrival, hence in the order of arrival
        self._arrived = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, reference: Reference, tokens: np.ndarray) -> None:
        length = len(tokens)
        if length not in self._documents:
            insort(self._lengths, length)
            self._documents[length] = deque()
        self._documents[length].append((self._arrived, tokens))
        self._held[self._arrived] = reference
        self._arrived += 1

    def take(self, room: int) -> tuple[np.ndarray, bool]:
        """The longest document that fits and True; or the shortest and False."""
        at = bisect_right(self._lengths, room) - 1
        length = self._lengths[max(at, 0)]
        number, tokens = self._documents[length].popleft()
        if not self._documents[length]:
            del self._documents[length], self._lengths[max(at, 0)]
        del self._held[number]
        return tokens, at >= 0

    def references(self) -> tuple[Reference, ...]:
        """Where the documents are, in the order of arrival."""
        return tuple(self._held.values())


class UpstreamBatches:
    """Makes upstream's batches.

    Args:
        corpus: Parquet shards of one split.
        tokenizer: Encodes the documents.
        rank: This rank.
        world_size: Ranks that share the row groups.
        shape: Rows and sequence length (B, T).

    Raises:
        BadData: No file has a row group for this rank (upstream waits for ever).
    """

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, rank: int, world_size: int, shape: tuple[int, int]) -> None:
        if not isinstance(corpus, ShardCorpus):
            raise BadConfig("packing upstream needs parquet files", where="run.data.packing")
        self._corpus, self._tokenizer, self._rank, self._world_size = corpus, tokenizer, rank, world_size
        self._rows, self._capacity = shape[0], shape[1] + 1
        if not any(sum(groups[rank::world_size]) for groups in corpus.groups_of_file):
            raise BadData(
                f"no row group for rank {rank} of {world_size}: files have at most "
                f"{max(map(len, corpus.groups_of_file), default=0)}", where=corpus.name, hint="set run.data.packing: bestfit",
            )
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tokens")
        self._restart([0, 0, 0, 0])

    def _restart(self, cursor: list[int]) -> None:
        self._cursor = cursor  # epoch, file, how many of this rank's row groups of the file are done, documents done in the group
        self._buffer = _SortedBuffer()
        self._texts = self._documents()

    def _documents(self) -> Iterator[list[tuple[Reference, str]]]:
        while True:
            epoch, file, done, offset = self._cursor
            mine = range(self._rank, len(self._corpus.groups_of_file[file]), self._world_size)
            if done >= len(mine):
                file += 1
                wrapped = file == len(self._corpus.files)
                self._cursor = [epoch + wrapped, 0 if wrapped else file, 0, 0]
                continue
            texts = self._corpus.read_group(file, mine[done])
            for first in range(offset, len(texts), DOCUMENTS_AT_ONCE):
                end = min(first + DOCUMENTS_AT_ONCE, len(texts))
                self._cursor = [epoch, file, done, end]
                yield [((file, mine[done], i), texts[i]) for i in range(first, end)]
            self._cursor = [epoch, file, done + 1, 0]

    def _refill(self) -> None:
        while len(self._buffer) < BUFFER_DOCUMENTS:
            references, texts = zip(*next(self._texts), strict=True)
            for reference, tokens in zip(references, self._pool.map(self._encode, texts), strict=True):
                self._buffer.add(reference, tokens)

    def _encode(self, text: str) -> np.ndarray:
        return np.concatenate([np.asarray([self._tokenizer.bos_id], dtype=np.int32), self._tokenizer.encode_array(text)])

    def make(self) -> Batch:
        """The next batch."""
        rows = np.empty((self._rows, self._capacity), dtype=np.int64)
        stats = RowStats()
        for row in rows:
            position = 0
            while position < self._capacity:
                self._refill()
                tokens, fits = self._buffer.take(self._capacity - position)
                taken = min(len(tokens), self._capacity - position)
                row[position : position + taken] = tokens[:taken]
                position += taken
                stats.documents += 1
                stats.cropped_tokens += 0 if fits else len(tokens) - taken
            stats.tokens += self._capacity
        return batch_of(rows, self._tokenizer.bos_id, self._cursor[0], self._state(), stats)

    def _state(self) -> tuple[list[int], tuple[Reference, ...]]:
        return self._cursor, self._buffer.references()

    def snapshot(self) -> dict[str, Any]:
        """Cursor and the documents in the buffer."""
        return self.jsonable(self._state())

    def jsonable(self, state: Any) -> dict[str, Any]:
        """A batch's state as JSON."""
        mine = {"cursor": list(state[0]), "buffer": [list(reference) for reference in state[1]]}
        return {
            "packing": "upstream", "corpus": self._corpus.fingerprint, "tokenizer": self._tokenizer.fingerprint,
            "world_size": self._world_size, "ranks": {str(self._rank): mine},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a state of the same world size."""
        fresh = self.snapshot()
        for key in ("packing", "corpus", "tokenizer", "world_size"):
            if state.get(key) != fresh[key]:
                raise BadConfig(
                    f"the saved position is for {key} {state.get(key)!r}, this run has {fresh[key]!r}", where="data loader",
                    hint="the order of packing upstream depends on the world size; bestfit's does not" if key == "world_size" else None,
                )
        mine = state["ranks"][str(self._rank)]
        self._restart(list(mine["cursor"]))
        groups: dict[tuple[int, int], Sequence[str]] = {}
        for file, group, index in mine["buffer"]:
            if (file, group) not in groups:
                groups[file, group] = self._corpus.read_group(file, group)
            self._buffer.add((file, group, index), self._encode(groups[file, group][index]))

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
