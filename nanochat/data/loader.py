"""The data loader of pretraining and of its validation.

`build_loader` gives the endless batches of one rank; `validation_batches` gives a fixed set of rows, the same for every world
size and batch. With packing ``bestfit`` global row i of every step is stream i of R = tokens_per_step / T streams, and rank r
of W reads the streams with i % W == r and no others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from nanochat.contract import DataConfig, RunFile
from nanochat.data.batches import Batch, BatchMaker, StreamBatches, batch_of
from nanochat.data.corpus import BlockCache, Corpus, Splits
from nanochat.data.order import ChunkOrder
from nanochat.data.packing import DocumentReader, RowStats, Stream
from nanochat.data.prefetch import Prefetcher
from nanochat.data.sources import open_corpus
from nanochat.data.upstream import UpstreamBatches
from nanochat.errors import BadConfig
from nanochat.tokenizer import Tokenizer

__all__ = ["Loader", "Place", "build_loader", "merge_states", "validation_batches"]

STATE_VERSION = 1
VALIDATION_STREAMS = 64
"""Streams of validation; fixed, so that the rows do not depend on batch or world size and bpb can be compared between runs."""


@dataclass(frozen=True)
class Place:
    """Where in the job a loader works."""

    rank: int
    world_size: int
    device_batch: int
    sequence_len: int


class Loader:
    """Endless batches, made ahead by a thread, with an exact position.

    Args:
        maker: Makes the batches.
        prefetch: Batches made ahead; 0 makes each when it is asked for.
    """

    def __init__(self, maker: BatchMaker, prefetch: int = 16) -> None:
        self._maker, self._prefetch = maker, prefetch
        self._ahead: Prefetcher | None = None
        self._state: dict[str, Any] | Any = None
        self._consumed = False
        self.stats = RowStats()
        self.batches = 0

    def next_batch(self) -> Batch:
        """The next batch; tensors are the caller's to keep.

        Raises:
            BadData: A file cannot be read, or nothing came for minutes.
        """
        if self._prefetch and self._ahead is None:
            self._ahead = Prefetcher(self._maker.make, self._prefetch)
        batch = self._ahead.next() if self._ahead else self._maker.make()
        self._state, self._consumed = batch.state, True
        self.stats.add(batch.stats)
        self.batches += 1
        return batch

    def __iter__(self) -> Iterator[Batch]:
        """Endless batches."""
        while True:
            yield self.next_batch()

    @property
    def wait_s(self) -> float:
        """Seconds spent waiting for batches so far."""
        return self._ahead.wait_s if self._ahead else 0.0

    def state_dict(self) -> dict[str, Any]:
        """Position after the last batch handed out, as JSON; batches made ahead do not count.

        The streams of all ranks together (`merge_states`) are what another world size continues from.
        """
        return self._maker.jsonable(self._state) if self._consumed else self._maker.snapshot()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues exactly where state was taken: the following batches are bit-identical.

        Raises:
            BadConfig: The state belongs to other data, another tokenizer, seed or batch.
            BadData: The state does not fit.
        """
        self._drop_ahead()
        self._maker.restore(state)
        self._consumed = False

    def close(self) -> None:
        """Ends all threads; no batch comes after that."""
        self._drop_ahead()
        self._maker.close()

    def _drop_ahead(self) -> None:
        if self._ahead:
            self._ahead.close()
            self._ahead = None


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One state from those of all ranks, for any number of ranks to continue from."""
    merged = dict(states[0])
    if "streams" in merged:
        merged["streams"] = {key: value for state in states for key, value in state["streams"].items()}
    else:
        merged["ranks"] = {key: value for state in states for key, value in state["ranks"].items()}
    return merged


def build_loader(
    run_file: RunFile, tokenizer: Tokenizer, place: Place, job_dir: Path, *, split: str = "train", prefetch: int = 16
) -> Loader:
    """The loader of one rank.

    Args:
        run_file: `run.data`, `run.seed` and `run.pretrain.tokens_per_step` decide what comes.
        tokenizer: Encodes the documents.
        place: Rank, world size, batch and sequence length.
        job_dir: The job's folder.
        split: "train" or "val"; validation is meant to be read by `validation_batches`.
        prefetch: Batches made ahead.

    Raises:
        BadData: There is no text, or it cannot be read.
        BadConfig: Batch sizes do not divide, or the source cannot be used.
    """
    run = run_file.run
    corpus = open_corpus(run.data, run.seed, job_dir).of(split)
    if run.data.packing == "upstream":
        return Loader(UpstreamBatches(corpus, tokenizer, place.rank, place.world_size, (place.device_batch, place.sequence_len)), prefetch)
    tokens_per_step = run.pretrain.tokens_per_step or place.device_batch * place.sequence_len * place.world_size
    rows, rest = divmod(tokens_per_step, place.sequence_len)
    if rest or rows % (place.world_size * place.device_batch):
        raise BadConfig(
            f"{tokens_per_step} tokens per step are not a multiple of {place.device_batch} rows x {place.sequence_len} tokens "
            f"x {place.world_size} ranks", where="run.pretrain.tokens_per_step",
        )
    order = ChunkOrder(corpus, run.seed, rows)
    read = document_reader(corpus, tokenizer)
    streams = [
        Stream(i, order, read, tokenizer.bos_id, buffer_documents(rows, order.documents)) for i in range(place.rank, rows, place.world_size)
    ]
    identity = {
        "version": STATE_VERSION, "packing": "bestfit", "split": split, "corpus": corpus.fingerprint, "tokenizer": tokenizer.fingerprint,
        "seed": run.seed, "rows": rows, "sequence_len": place.sequence_len,
    }
    maker = StreamBatches(streams, place.device_batch, place.sequence_len, tokenizer.bos_id, identity=identity)
    return Loader(maker, prefetch)


def buffer_documents(streams: int, documents: int) -> int:
    """Documents among which one stream seeks the best fit: about 4,096 over all streams, so that the first batch comes soon.

    Not more than a stream has in an epoch: a buffer that spans epochs would only be tokenised again and again.
    """
    return max(4, min(64, 4096 // streams, documents // streams))


def document_reader(corpus: Corpus, tokenizer: Tokenizer) -> DocumentReader:
    """Function that reads and tokenises one document; usable from several threads."""
    cache = BlockCache(corpus)
    return lambda block, index: tokenizer.encode_array(cache.text(block, index))


def validation_batches(
    run_file: RunFile, tokenizer: Tokenizer, place: Place, job_dir: Path, *, eval_tokens: int, split: str = "val"
) -> Iterator[Batch]:
    """This rank's part of a fixed set of rows: at most eval_tokens tokens of the split, each document at most once.

    The rows depend on the corpus, T and eval_tokens only. Ranks may get different numbers of batches, even none: sum first,
    then reduce over the ranks. Missing rows of a last batch have targets -1 throughout.
    """
    corpus = _opened(run_file.run.data.model_dump_json(), run_file.run.seed, job_dir).of(split)
    if run_file.run.data.packing == "upstream":
        shape = (place.device_batch, place.sequence_len)
        steps = max(1, eval_tokens // (place.device_batch * place.sequence_len * place.world_size))
        maker = UpstreamBatches(corpus, tokenizer, place.rank, place.world_size, shape)
        try:
            yield from (maker.make() for _ in range(steps))
        finally:
            maker.close()
        return
    total = max(1, eval_tokens // place.sequence_len)
    count = min(VALIDATION_STREAMS, total)
    order = ChunkOrder(corpus, 0, count)
    read = document_reader(corpus, tokenizer)
    pending: list[np.ndarray] = []
    for index in range(place.rank, count, place.world_size):
        stream = Stream(index, order, read, tokenizer.bos_id, buffer_documents(count, order.documents))
        stream.limit_to_epochs(1)
        for _ in range(total // count + (index < total % count)):
            if stream.ended:
                break
            row = np.empty(place.sequence_len + 1, dtype=np.int64)
            stream.fill(row)
            pending.append(row)
            if len(pending) == place.device_batch:
                yield _validation_batch(pending, place, tokenizer.bos_id)
                pending = []
    if pending:
        yield _validation_batch(pending, place, tokenizer.bos_id)


@lru_cache(maxsize=2)
def _opened(data: str, seed: int, job_dir: Path) -> Splits:
    """The corpus, opened once for all evaluations of a run: with many shards that alone takes seconds."""
    return open_corpus(DataConfig.model_validate_json(data), seed, job_dir)


def _validation_batch(rows: list[np.ndarray], place: Place, bos_id: int) -> Batch:
    full = np.full((place.device_batch, place.sequence_len + 1), -1, dtype=np.int64)
    for i, row in enumerate(rows):
        full[i] = row
    padding = int((full < 0).sum())
    return batch_of(full, bos_id, 0, None, RowStats(tokens=full.size - padding, padding_tokens=padding))
