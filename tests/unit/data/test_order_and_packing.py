"""Order and packing: every document in every epoch, every token once, whatever the sizes."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanochat.data.corpus import BlockCache, MemoryCorpus
from nanochat.data.order import ChunkOrder
from nanochat.data.packing import Stream
from nanochat.errors import BadData

BOS = 0


def lengths_corpus(lengths: list[int], block: int = 4) -> MemoryCorpus:
    """A corpus whose document i has lengths[i] tokens (texts stand for their own number)."""
    return MemoryCorpus("lengths", [f"{i} {n}" for i, n in enumerate(lengths)], block)


def tokens_of(text: str) -> np.ndarray:
    """Tokens that tell which document they are from and where in it: document · 1000 + place + 1."""
    number, length = map(int, text.split())
    return np.arange(1, length + 1, dtype=np.int32) + number * 1000


def make_streams(corpus: MemoryCorpus, count: int, buffer: int = 4, seed: int = 0) -> list[Stream]:
    order, cache = ChunkOrder(corpus, seed, count), BlockCache(corpus)
    return [Stream(i, order, lambda b, i: tokens_of(cache.text(b, i)), BOS, buffer) for i in range(count)]


def rows_of(streams: list[Stream], capacity: int, steps: int) -> np.ndarray:
    rows = np.empty((steps, len(streams), capacity), dtype=np.int64)
    for step in rows:
        for stream, row in zip(streams, step, strict=True):
            stream.fill(row)
    return rows


def drain_epoch(streams: list[Stream], capacity: int) -> np.ndarray:
    rows = []
    for stream in streams:
        stream.limit_to_epochs(1)
        while not stream.ended:
            row = np.empty(capacity, dtype=np.int64)
            stream.fill(row)
            rows.append(row)
    return np.array(rows)


@given(documents=st.integers(1, 60), block=st.integers(1, 20), streams=st.integers(1, 24), seed=st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_each_epoch_gives_each_document_to_exactly_one_stream(documents: int, block: int, streams: int, seed: int) -> None:
    corpus = lengths_corpus([1] * documents, block)
    order = ChunkOrder(corpus, seed, streams)
    seen: Counter[tuple[int, int, int]] = Counter()
    for stream in range(streams):
        ordinal = 0
        while (chunk := order.chunk(stream, ordinal)).epoch < 3:
            seen.update((chunk.epoch, chunk.block, i) for i in range(chunk.start, chunk.stop))
            ordinal += 1
    assert len(seen) == 3 * documents and set(seen.values()) == {1}


def test_order_depends_on_seed_and_epoch() -> None:
    corpus = lengths_corpus([1] * 50, 1)
    def order(seed: int, epoch: int) -> list[int]:
        chunks = ChunkOrder(corpus, seed, 1)
        return [chunks.chunk(0, epoch * 50 + i).block for i in range(50)]
    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_order_is_pinned_so_that_a_resumed_job_finds_it_again() -> None:
    chunks = ChunkOrder(lengths_corpus([1] * 8, 1), 42, 2)
    assert [chunks.chunk(s, n).block for s in (0, 1) for n in range(4)] == [0, 4, 5, 3, 6, 7, 1, 2]


def test_an_empty_corpus_is_an_error_and_not_a_wait() -> None:
    with pytest.raises(BadData, match="no documents"):
        ChunkOrder(MemoryCorpus("nothing", []), 0, 4)


def test_documents_without_any_token_are_an_error_and_not_a_wait() -> None:
    stream = make_streams(lengths_corpus([0] * 9), 2)[0]
    with pytest.raises(BadData, match="no text"):
        stream.fill(np.empty(8, dtype=np.int64))


@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=40).filter(any), streams=st.integers(1, 5), capacity=st.integers(2, 24),
    buffer=st.integers(1, 9),
)
@settings(max_examples=150, deadline=None)
def test_every_token_of_every_document_is_placed_exactly_once_in_an_epoch(lengths: list[int], streams: int, capacity: int, buffer: int) -> None:
    rows = drain_epoch(make_streams(lengths_corpus(lengths), streams, buffer), capacity)
    placed = Counter(rows[rows > 0].tolist())
    expected = [token for i, n in enumerate(lengths) for token in tokens_of(f"{i} {n}").tolist()]
    assert placed == Counter(expected)


@given(lengths=st.lists(st.integers(1, 70), min_size=1, max_size=30), capacity=st.integers(2, 24))
@settings(max_examples=80, deadline=None)
def test_rows_are_full_and_begin_with_bos_and_pieces_run_in_order(lengths: list[int], capacity: int) -> None:
    rows = rows_of(make_streams(lengths_corpus(lengths), 2), capacity, 12)
    assert (rows >= 0).all() and (rows[:, :, 0] == BOS).all()
    for row in rows.reshape(-1, capacity):
        for before, after in pairwise(row):
            assert after == BOS or before == BOS or after == before + 1


def test_a_long_document_continues_at_the_place_where_it_was_cut() -> None:
    [stream] = make_streams(lengths_corpus([25]), 1, buffer=1)
    rows = rows_of([stream], 10, 3)[:, 0]
    assert rows[0].tolist() == [BOS, *range(1, 10)]
    assert rows[1].tolist() == [BOS, *range(10, 19)]
    assert rows[2].tolist() == [BOS, *range(19, 26), BOS, 1]


def in_order(lengths: list[int], buffer: int) -> Stream:
    """One stream that reads documents of these lengths in this order."""
    corpus = MemoryCorpus("in order", [f"{i} {n}" for i, n in enumerate(lengths)], 1000)
    cache = BlockCache(corpus)
    return Stream(0, ChunkOrder(corpus, 0, 1, shuffle=False), lambda b, i: tokens_of(cache.text(b, i)), BOS, buffer)


def test_a_row_takes_the_oldest_then_the_longest_that_fits() -> None:
    row = np.empty(13, dtype=np.int64)
    in_order([4, 9, 3, 30, 2, 40], buffer=5).fill(row)
    assert row.tolist() == [BOS, 1, 2, 3, 4, BOS, 2001, 2002, 2003, BOS, 4001, 4002, BOS]  # BOS of the longest fills the last place


def test_when_nothing_fits_the_longest_fills_the_row_and_keeps_its_tail() -> None:
    stream = in_order([4, 9, 8, 30, 12, 40], buffer=5)
    first, second = np.empty((2, 13), dtype=np.int64)
    stream.fill(first)
    assert first.tolist() == [BOS, 1, 2, 3, 4, BOS, *range(5001, 5008)]  # room 8: 9, 8, 30, 12 and 40 tokens are all too long
    assert [start for _, _, start in stream.state()[3]] == [0, 0, 0, 0, 7]
    stream.fill(second)
    assert second[:10].tolist() == [BOS, *range(1001, 1010)]


def test_no_document_waits_longer_than_the_buffer_is_deep() -> None:
    lengths = [3] * 200 + [50] + [5] * 200
    corpus = MemoryCorpus("queue", [f"{i} {n}" for i, n in enumerate(lengths)], 1000)
    order, cache = ChunkOrder(corpus, 0, 1, shuffle=False), BlockCache(corpus)
    read: list[int] = []
    stream = Stream(0, order, lambda b, i: (read.append(i), tokens_of(cache.text(b, i)))[1], BOS, 6)
    row = np.empty(9, dtype=np.int64)
    arrived: dict[int, int] = {}
    for number in range(60):
        stream.fill(row)
        for document in read:
            arrived.setdefault(document, number)
        read.clear()
        for token in row[row > 0]:
            arrived.pop((int(token) - 1) // 1000, None)
        assert all(number - at <= 12 for at in arrived.values())


def test_nothing_is_cropped_and_utilisation_is_full() -> None:
    streams = make_streams(lengths_corpus(list(range(1, 60))), 3)
    row = np.empty(16, dtype=np.int64)
    stats = [stream.fill(row) for _ in range(20) for stream in streams]
    assert sum(s.tokens for s in stats) == 60 * 16
    assert sum(s.cropped_tokens + s.padding_tokens for s in stats) == 0


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=30), before=st.integers(0, 9), capacity=st.integers(2, 20))
@settings(max_examples=80, deadline=None)
def test_a_restored_stream_continues_bit_for_bit(lengths: list[int], before: int, capacity: int) -> None:
    corpus = lengths_corpus(lengths)
    [stream, _] = make_streams(corpus, 2)
    rows_of([stream], capacity, before)
    state = stream.state()
    [again, _] = make_streams(corpus, 2)
    again.restore(state)
    assert again.rows == before
    assert (rows_of([stream], capacity, 8) == rows_of([again], capacity, 8)).all()
    assert again.state() == stream.state()


@pytest.mark.parametrize("state", [None, [1, 2], [0, 0, 0, [[0, 0, 999]]], [0, 0, 0, [["x", 0, 0]]]])
def test_a_state_that_does_not_fit_is_refused(state) -> None:
    with pytest.raises(BadData, match="does not fit"):
        make_streams(lengths_corpus([5] * 9), 1)[0].restore(state)
