"""Rows of conversations for fine-tuning: whole conversations only, padded, with a target where the assistant speaks.

As in pretraining, row i of every step is stream i of R, so the rows do not depend on the world size. A row starts with the
oldest conversation held, then takes the longest that fits, again and again; what is left is padding. A conversation is cut at
T + 1 tokens when it is rendered, so every one can be placed; one that is cut before the assistant speaks teaches nothing and
is left out. So every row has at least one target, and no batch can give a loss of nothing.

Files of one's own are looked through before training, and what they lose is told then (`nanochat.stages.sft`). Published sets
have half a million records, so what is left out of them is counted as it is met, in the first epoch, in which every record
comes to exactly one stream.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanochat.contract import RunConfig, RunFile
from nanochat.data.batches import Batch, StreamBatches, batch_of, untrained
from nanochat.data.conversations import Conversations, first_look, open_conversations
from nanochat.data.loader import Loader, Place, buffer_documents
from nanochat.data.order import ChunkOrder
from nanochat.data.packing import RowStats
from nanochat.errors import BadConfig, BadData
from nanochat.tokenizer import Tokenizer

__all__ = ["ConversationStream", "build_sft_loader", "epoch_steps", "left_out", "sft_validation_batches"]

SAMPLE = 1000
"""Conversations whose length is looked at to say how many steps an epoch has."""
MAX_BARREN = 100_000
NOTED = 10
"""Records left out whose place and reason are kept."""

Render = Callable[[int], np.ndarray]
"""Row entries of conversation number i, see `nanochat.data.batches.batch_of`; empty where nothing can be learnt from it."""
Counts = Callable[[int], bool]
"""Whether conversation number i counts as left out where it is rendered to nothing: nobody has looked at it before."""


@dataclass(frozen=True)
class _Held:
    ordinal: int
    offset: int
    entries: np.ndarray


class _AsCorpus:
    """Conversations seen as one block of documents, for `ChunkOrder`."""

    def __init__(self, conversations: Conversations) -> None:
        self.name, self.fingerprint = "conversations", conversations.fingerprint
        self.block_sizes = [1] * len(conversations)  # so that each may go to another stream

    def read_block(self, block: int) -> list[str]:
        """Not used: conversations are rendered, not read as text."""
        raise LookupError(block)


class ConversationStream:
    """One endless sequence of rows of conversations; the same face as `nanochat.data.packing.Stream`.

    Args:
        index: Which stream of the order it is.
        order: Order of the conversations.
        render: Gives a conversation's row entries.
        held: Conversations among which the best fit is sought.
        counts: Which conversations count as left out.
    """

    def __init__(self, index: int, order: ChunkOrder, render: Render, held: int, counts: Counts = lambda _: False) -> None:
        self.index, self._order, self._render, self._capacity, self._counts = index, order, render, held, counts
        self._ordinal, self._left_out = 0, 0
        self._held: list[_Held] = []
        self._epochs: int | None = None
        self.rows = 0

    @property
    def epoch(self) -> int:
        """Epoch of the oldest conversation that is not trained on yet, 0-based."""
        return self._order.chunk(self.index, self._held[0].ordinal if self._held else self._ordinal).epoch

    def limit_to_epochs(self, epochs: int) -> None:
        """Lets the stream end after so many epochs, see `ended`."""
        self._epochs = epochs

    @property
    def ended(self) -> bool:
        """True if a limited stream has no conversation left."""
        self._refill()
        return not self._held

    def fill(self, row: np.ndarray) -> RowStats:
        """Fills a row of T + 1 entries in place."""
        stats, position = RowStats(), 0
        while True:
            self._refill()
            at = self._choose(len(row) - position, first=position == 0)
            if at is None:
                break
            entries = self._held.pop(at).entries
            row[position : position + len(entries)] = entries
            position += len(entries)
            stats.documents += 1
        row[position:] = -1
        stats.tokens, stats.padding_tokens = position, len(row) - position
        stats.untrained_tokens = int((row[:position] < 0).sum())
        self.rows += 1
        return stats

    def _choose(self, room: int, *, first: bool) -> int | None:
        if first and self._held:
            return 0
        fitting = [at for at, held in enumerate(self._held) if len(held.entries) <= room]
        return max(fitting, key=lambda at: (len(self._held[at].entries), -at), default=None)

    def _refill(self) -> None:
        barren = 0
        while len(self._held) < self._capacity:
            if self._epochs is not None and self._order.chunk(self.index, self._ordinal).epoch >= self._epochs:
                return
            chunk = self._order.chunk(self.index, self._ordinal)
            entries = self._render(chunk.block)
            if len(entries):
                self._held.append(_Held(self._ordinal, 0, entries))
            else:
                barren += 1
                self._left_out += chunk.epoch == 0 and self._counts(chunk.block)
                if barren > min(MAX_BARREN, 2 * self._order.documents):
                    raise BadData(
                        "no conversation has an answer within the sequence length", where="run.sft.data",
                        hint="raise run.model.sequence_len, or shorten the questions",
                    )
            self._ordinal += 1

    def _entries(self, ordinal: int) -> np.ndarray:
        return self._render(self._order.chunk(self.index, ordinal).block)

    def state(self) -> tuple[Any, ...]:
        """Where it stands: rows, next conversation, conversations left out, and those held."""
        return self.rows, self._ordinal, self._left_out, tuple((held.ordinal, held.offset) for held in self._held)

    def restore(self, state: Any) -> None:
        """Goes to where `state` was taken."""
        self.rows, self._ordinal, self._left_out, held = state
        self._held = [_Held(ordinal, offset, self._entries(ordinal)) for ordinal, offset in held]


def _renderer(
    run: RunConfig, conversations: Conversations, tokenizer: Tokenizer, capacity: int, noted: dict[str, str] | None = None
) -> Render:
    """Renders by number. Files of one's own are checked as they are opened; the half million records of a published set are not, so one that
    is no conversation is met here.

    Args:
        run: Says what to do with such a record.
        conversations: From `open_conversations`.
        tokenizer: Renders.
        capacity: Tokens that a conversation is cut at.
        noted: Gets place and reason of the first few that are left out.
    """
    noted = {} if noted is None else noted

    def left_out(index: int, why: str) -> np.ndarray:
        if len(noted) < NOTED and first_look(conversations, index):
            noted[conversations.place(index)] = why
        return np.empty(0, dtype=np.int64)

    def render(index: int) -> np.ndarray:
        try:
            ids, mask = tokenizer.render_conversation(conversations[index], capacity)
        except BadData as error:
            if run.sft.on_bad_record == "skip":
                return left_out(index, error.message)
            raise BadData(error.message, where=conversations.place(index), hint="set run.sft.on_bad_record: skip, and the same run goes on") from error
        if not any(mask):
            return left_out(index, f"the assistant says nothing within the first {capacity} tokens, where a conversation is cut")
        entries = np.asarray(ids, dtype=np.int64)
        return np.where(np.asarray(mask) > 0, entries, untrained(entries))

    return render


def _rows(run_file: RunFile, place: Place) -> int:
    run = run_file.run
    tokens = run.sft.tokens_per_step or run.pretrain.tokens_per_step or place.device_batch * place.sequence_len * place.world_size
    rows, rest = divmod(tokens, place.sequence_len)
    if rest or rows % (place.device_batch * place.world_size):
        raise BadConfig(
            f"{tokens} tokens per step are not a multiple of {place.device_batch} rows x {place.sequence_len} tokens x "
            f"{place.world_size} ranks", where="run.sft.tokens_per_step",
        )
    return rows


def build_sft_loader(
    run_file: RunFile, tokenizer: Tokenizer, place: Place, *, prefetch: int = 16, noted: dict[str, str] | None = None
) -> Loader:
    """The fine-tuning loader of one rank; endless, as `nanochat.data.build_loader`.

    Args:
        run_file: `run.sft` and `run.seed` decide what comes.
        tokenizer: Renders conversations.
        place: Rank, world size, batch and sequence length.
        prefetch: Batches made ahead.
        noted: Gets place and reason of the first few records that this attempt leaves out of published sets.

    Raises:
        BadData: Conversations are unreadable, wrong, or all too long.
        BadConfig: Batch sizes do not divide, or a source is not known.
    """
    conversations = open_conversations(run_file.run, "train")
    rows = _rows(run_file, place)
    order = ChunkOrder(_AsCorpus(conversations), run_file.run.seed, rows)
    render = _renderer(run_file.run, conversations, tokenizer, place.sequence_len + 1, noted)
    held = buffer_documents(rows, len(conversations))
    streams = [
        ConversationStream(i, order, render, held, lambda at: first_look(conversations, at)) for i in range(place.rank, rows, place.world_size)
    ]
    identity = {
        "version": 1, "packing": "sft", "split": "train", "corpus": conversations.fingerprint, "tokenizer": tokenizer.fingerprint,
        "seed": run_file.run.seed, "rows": rows, "sequence_len": place.sequence_len,
    }
    return Loader(StreamBatches(streams, place.device_batch, place.sequence_len, tokenizer.bos_id, identity=identity), prefetch)


def left_out(loader: Loader) -> int:
    """Records of published sets that a loader left out up to its last batch, in this attempt and those that it goes on from:
    wrong ones, and such that teach nothing once they are cut. The figures of all ranks add up.
    """
    return sum(int(position[2]) for position in loader.state_dict()["streams"].values())


def epoch_steps(run_file: RunFile, tokenizer: Tokenizer, place: Place) -> int:
    """Steps in which each conversation is seen about once, from the packed length of a sample of them; at least 1."""
    conversations = open_conversations(run_file.run, "train")
    count = len(conversations)
    order = ChunkOrder(_AsCorpus(conversations), run_file.run.seed, 1)
    sample = min(SAMPLE, count)
    render = _renderer(run_file.run, conversations, tokenizer, place.sequence_len + 1)
    stream = ConversationStream(0, order, lambda i: render(i), 64)
    row, seen = np.empty(place.sequence_len + 1, dtype=np.int64), 0
    while seen < sample:
        seen += stream.fill(row).documents
    return max(1, round(stream.rows * count / seen / _rows(run_file, place)))


def sft_validation_batches(run_file: RunFile, tokenizer: Tokenizer, place: Place, *, eval_tokens: int) -> Iterator[Batch]:
    """This rank's part of a fixed set of validation rows, each conversation at most once; see `validation_batches`."""
    conversations = open_conversations(run_file.run, "val")
    order = ChunkOrder(_AsCorpus(conversations), 0, 1)
    stream = ConversationStream(0, order, _renderer(run_file.run, conversations, tokenizer, place.sequence_len + 1), 64)
    stream.limit_to_epochs(1)
    rows: list[np.ndarray] = []
    for number in range(max(1, eval_tokens // place.sequence_len)):
        if stream.ended:
            break
        row = np.empty(place.sequence_len + 1, dtype=np.int64)
        stream.fill(row)
        if number % place.world_size == place.rank:
            rows.append(row)
    for start in range(0, len(rows), place.device_batch):
        full = np.full((place.device_batch, place.sequence_len + 1), -1, dtype=np.int64)
        part = rows[start : start + place.device_batch]
        full[: len(part)] = part
        padding = int((full == -1).sum())
        yield batch_of(full, tokenizer.bos_id, 0, None, RowStats(tokens=full.size - padding, padding_tokens=padding, untrained_tokens=1))
