"""A corpus: documents of one split, in blocks that can be read one at a time.

A block is what a file gives at once: a row group of a parquet file, some lines of a .jsonl file, a text file. Block sizes are
known without reading the blocks, so the order of training can be laid down before anything is read.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["BlockCache", "Corpus", "MemoryCorpus", "Splits", "iter_texts"]

CACHE_BYTES = 256 * 1024 * 1024
"""Characters of recently read blocks that are kept, roughly; a block is read by several streams when there are few."""


class Corpus(Protocol):
    """Documents of one split."""

    @property
    def name(self) -> str:
        """What it is, for messages: a folder or a source, and the split."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes if and only if documents or their order change."""
        ...

    @property
    def block_sizes(self) -> Sequence[int]:
        """Number of documents in each block."""
        ...

    def read_block(self, block: int) -> Sequence[str]:
        """Texts of one block, as many as `block_sizes` says. Called from several threads.

        Raises:
            BadData: The block cannot be read, or is not what it was.
        """
        ...


@dataclass(frozen=True)
class Splits:
    """Training and validation documents."""

    train: Corpus
    val: Corpus

    def of(self, split: str) -> Corpus:
        """The corpus called "train" or "val"."""
        return {"train": self.train, "val": self.val}[split]


class MemoryCorpus:
    """Documents that are held in memory, in blocks of equal size.

    Args:
        name: For messages.
        texts: The documents.
        block_documents: Documents of one block.
    """

    def __init__(self, name: str, texts: Sequence[str], block_documents: int = 1024) -> None:
        self.name = name
        self._blocks = [texts[i : i + block_documents] for i in range(0, len(texts), block_documents)]
        digest = hashlib.sha256()
        for text in texts:
            digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
        self.fingerprint = digest.hexdigest()

    @property
    def block_sizes(self) -> Sequence[int]:
        """Number of documents in each block."""
        return [len(block) for block in self._blocks]

    def read_block(self, block: int) -> Sequence[str]:
        """Texts of one block."""
        return self._blocks[block]


class BlockCache:
    """A corpus' blocks with the recently used ones kept in memory. Safe to use from several threads.

    Args:
        corpus: Where blocks come from.
        max_chars: Characters kept, at least one block.
    """

    def __init__(self, corpus: Corpus, max_chars: int = CACHE_BYTES) -> None:
        self.corpus = corpus
        self._max_chars = max_chars
        self._blocks: OrderedDict[int, tuple[Sequence[str], int]] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def text(self, block: int, index: int) -> str:
        """One document."""
        return self.block(block)[index]

    def block(self, block: int) -> Sequence[str]:
        """Texts of one block."""
        with self._lock:  # held while reading: two streams that want the same block must not read it twice
            if block in self._blocks:
                self._blocks.move_to_end(block)
                return self._blocks[block][0]
            texts = self.corpus.read_block(block)
            chars = sum(map(len, texts))
            self._blocks[block] = (texts, chars)
            self._chars += chars
            while self._chars > self._max_chars and len(self._blocks) > 1:
                _, (_, dropped) = self._blocks.popitem(last=False)
                self._chars -= dropped
            return texts


def iter_texts(corpus: Corpus) -> Iterator[str]:
    """All documents of a corpus once, block by block."""
    for block in range(len(corpus.block_sizes)):
        yield from corpus.read_block(block)
