"""Packing documents into rows, so that every row begins with BOS and every token of every document is trained on.

One stream fills one row of every step. It keeps a small buffer of documents and fills a row by three rules:

1. The row starts with the oldest piece in the buffer: none waits for ever.
2. Then the longest piece that fits, again and again.
3. When none fits, the rest of the row takes the head of the longest piece. Its tail stays in the buffer at its place, with a
   BOS of its own, so that long documents are cut where rows end and nothing is thrown away.

Upstream's rule (see `nanochat.data.upstream`) crops instead, and never reaches documents that are longer than a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanochat.data.order import ChunkOrder
from nanochat.errors import BadData

__all__ = ["DocumentReader", "Piece", "RowStats", "Stream"]

DocumentReader = Callable[[int, int], np.ndarray]
"""Token ids (int32, without BOS) of document `index` of block `block`."""

MAX_BARREN_DOCUMENTS = 1_000_000
"""A stream that meets so many documents in a row without a single token gives up."""


@dataclass
class Piece:
    """A document, or what is left of it: chunk and position name it, `start` tokens of it have been trained on."""

    ordinal: int
    index: int
    start: int
    tokens: np.ndarray

    @property
    def length(self) -> int:
        """Tokens it takes in a row: its own and a BOS."""
        return len(self.tokens) - self.start + 1


@dataclass
class RowStats:
    """What became of the tokens, added up over rows."""

    tokens: int = 0
    """Tokens placed, BOS included."""
    continued_tokens: int = 0
    """Tokens placed in pieces that are not the beginning of their document: their context begins in its middle."""
    cropped_tokens: int = 0
    """Tokens thrown away (upstream's rule only)."""
    padding_tokens: int = 0
    """Places in rows that hold no token (the end of validation, and fine-tuning, which does not cut conversations)."""
    untrained_tokens: int = 0
    """Tokens placed that nothing is learnt from (what others say in a conversation)."""
    documents: int = 0
    """Documents begun."""

    def shares(self) -> dict[str, float]:
        """What a person wants to know of it: how full rows are, and how much text is lost or begins in mid-document."""
        places, met = self.tokens + self.padding_tokens, self.tokens + self.cropped_tokens
        return {
            "documents": self.documents,
            "utilisation_frac": round(self.tokens / places, 4) if places else 0.0,
            "cropped_frac": round(self.cropped_tokens / met, 4) if met else 0.0,
            "continued_frac": round(self.continued_tokens / self.tokens, 4) if self.tokens else 0.0,
        }

    def add(self, other: "RowStats") -> None:
        """Adds another's counts to these."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Stream:
    """One endless sequence of rows.

    Args:
        index: Which stream of the order it is.
        order: Chunks of all streams.
        read: Gives a document's tokens.
        bos_id: Id of the BOS token.
        buffer_documents: Pieces among which the best fit is sought.
    """

    def __init__(self, index: int, order: ChunkOrder, read: DocumentReader, bos_id: int, buffer_documents: int) -> None:
        self.index, self._order, self._read, self._bos_id, self._buffer_documents = index, order, read, bos_id, buffer_documents
        self._ordinal, self._offset = 0, 0
        self._chunk = order.chunk(index, 0)
        self._pieces: list[Piece] = []
        self._last_epoch: int | None = None
        self.rows = 0

    @property
    def epoch(self) -> int:
        """Epoch of the oldest document that is not trained on yet, 0-based."""
        return self._order.chunk(self.index, self._pieces[0].ordinal).epoch if self._pieces else self._chunk.epoch

    def limit_to_epochs(self, epochs: int) -> None:
        """Lets the stream end after so many epochs; `fill` then pads, see `ended`."""
        self._last_epoch = epochs - 1

    @property
    def ended(self) -> bool:
        """True if a limited stream has no token left."""
        self._refill()
        return not self._pieces

    def fill(self, row: np.ndarray) -> RowStats:
        """Fills a row of capacity T + 1 in place. A limited stream that ends in mid-row pads with -1."""
        stats = RowStats()
        position = 0
        while position < len(row):
            self._refill()
            if not self._pieces:
                stats.padding_tokens += len(row) - position
                row[position:] = -1
                break
            position += self._place(row, position, stats)
        self.rows += 1
        return stats

    def _place(self, row: np.ndarray, position: int, stats: RowStats) -> int:
        room = len(row) - position
        at = self._choose(room, first=position == 0)
        piece = self._pieces[at]
        taken = min(piece.length, room)
        row[position] = self._bos_id
        row[position + 1 : position + taken] = piece.tokens[piece.start : piece.start + taken - 1]
        stats.tokens += taken
        if piece.start:
            stats.continued_tokens += taken
        elif taken > 1:
            stats.documents += 1
        piece.start += taken - 1
        if piece.start == len(piece.tokens):
            del self._pieces[at]
        return taken

    def _choose(self, room: int, *, first: bool) -> int:
        if first:
            return 0
        best, best_length, longest, longest_length = -1, 0, 0, 0
        for at, piece in enumerate(self._pieces):
            length = piece.length
            if best_length < length <= room:
                best, best_length = at, length
            if length > longest_length:
                longest, longest_length = at, length
        return longest if best < 0 else best

    def _refill(self) -> None:
        barren = 0
        while len(self._pieces) < self._buffer_documents:
            if self._last_epoch is not None and self._chunk.epoch > self._last_epoch:
                return
            chunk = self._chunk
            tokens = self._read(chunk.block, chunk.start + self._offset)
            if len(tokens):
                self._pieces.append(Piece(self._ordinal, self._offset, 0, tokens))
            else:
                barren += 1
                if barren > min(MAX_BARREN_DOCUMENTS, 2 * self._order.documents):
                    raise BadData("the documents hold no text", hint="every document is empty")
            self._advance()

    def _advance(self) -> None:
        self._offset += 1
        if self._chunk.start + self._offset >= self._chunk.stop:
            self._ordinal, self._offset = self._ordinal + 1, 0
            self._chunk = self._order.chunk(self.index, self._ordinal)

    # -- exact continuation -------------------------------------------------------------------------------------------

    def state(self) -> tuple[Any, ...]:
        """Where it stands, in numbers: rows, next chunk and document, and (chunk, document, tokens done) of each piece held."""
        return self.rows, self._ordinal, self._offset, tuple((piece.ordinal, piece.index, piece.start) for piece in self._pieces)

    def restore(self, state: Any) -> None:
        """Goes to where `state` was taken; held documents are read and tokenised again.

        Raises:
            BadData: The state does not fit the documents.
        """
        try:
            self.rows, self._ordinal, self._offset, pieces = state
            self._chunk = self._order.chunk(self.index, self._ordinal)
            self._pieces = [self._restored(*piece) for piece in pieces]
        except (ValueError, TypeError, IndexError) as error:
            raise BadData(f"the saved position of stream {self.index} does not fit the data: {error}") from error

    def _restored(self, ordinal: int, index: int, start: int) -> Piece:
        chunk = self._order.chunk(self.index, ordinal)
        tokens = self._read(chunk.block, chunk.start + index)
        if start >= len(tokens):
            raise ValueError(f"document {index} of chunk {ordinal} has {len(tokens)} tokens, {start} of them done")
        return Piece(ordinal, index, start, tokens)
