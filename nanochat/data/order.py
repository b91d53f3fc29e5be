"""In which order documents are trained on: a function of the seed and the corpus, and of nothing else.

The corpus is cut into chunks of neighbouring documents. Each epoch has its own random order of the chunks, and the epochs,
one after another, are one endless list. With R streams, stream i takes the chunks i, i + R, i + 2R, … of that list. Hence in
every epoch each document belongs to exactly one stream, whatever the number of files, row groups, documents or ranks.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from nanochat.data.corpus import Corpus
from nanochat.errors import BadData

__all__ = ["Chunk", "ChunkOrder"]

CHUNKS_PER_STREAM = 8
"""An epoch gives each stream about so many chunks, or more: then streams end an epoch at about the same time."""


@dataclass(frozen=True)
class Chunk:
    """Neighbouring documents of one block, and the epoch in which they are read (0-based)."""

    block: int
    start: int
    stop: int
    epoch: int


class ChunkOrder:
    """The endless list of chunks.

    Args:
        corpus: Gives the block sizes; nothing is read.
        seed: Of the order.
        streams: Number of streams that share the list.
        shuffle: False keeps the corpus' own order in every epoch.

    Raises:
        BadData: The corpus has no documents: nothing could ever be yielded.
    """

    def __init__(self, corpus: Corpus, seed: int, streams: int, *, shuffle: bool = True) -> None:
        sizes = corpus.block_sizes
        documents = sum(sizes)
        if documents == 0:
            raise BadData("there are no documents", where=corpus.name)
        self.seed, self.streams, self.documents, self._shuffle = seed, streams, documents, shuffle
        self._chunks = _cut(sizes, max(1, documents // (CHUNKS_PER_STREAM * streams)))
        self._order = lru_cache(maxsize=4)(self._order_of)  # streams may be in neighbouring epochs

    def chunk(self, stream: int, ordinal: int) -> Chunk:
        """Chunk number `ordinal` (0-based) of a stream."""
        epoch, position = divmod(stream + ordinal * self.streams, len(self._chunks))
        block, start, stop = self._chunks[self._order(epoch)[position]]
        return Chunk(block, start, stop, epoch)

    def _order_of(self, epoch: int) -> Sequence[int]:
        indices = range(len(self._chunks))
        if not self._shuffle:
            return indices
        # Sorted by hash and not by a library's generator: those may change between versions, and a resumed job must not.
        prefix = f"{self.seed} {epoch} ".encode()
        return sorted(indices, key=lambda i: hashlib.blake2b(prefix + str(i).encode(), digest_size=16).digest())


def _cut(sizes: Sequence[int], chunk: int) -> list[tuple[int, int, int]]:
    return [
        (block, start, min(start + chunk, size))
        for block, size in enumerate(sizes)
        for start in range(0, size, chunk)
    ]
