"""The loader: the same rows at any world size, exact continuation, batches made ahead, and no silent wait."""

import json
import threading
from pathlib import Path

import pytest
import torch
from data_helpers import BYTES, random_texts, run_file, write_shard

from nanochat.contract import DataConfig, RunFile
from nanochat.data import Place, build_loader, merge_states, validation_batches
from nanochat.data import loader as loader_module
from nanochat.data.batches import Batch
from nanochat.data.loader import Loader
from nanochat.data.packing import RowStats
from nanochat.data.prefetch import Prefetcher
from nanochat.errors import BadConfig, BadData

ROWS, LENGTH = 12, 32
TOY = DataConfig(source="toy", toy_documents=120)


def toy(**data: object) -> RunFile:
    return run_file(TOY.model_copy(update=data), rows=ROWS, sequence_len=LENGTH)


def loaders(run: RunFile, world_size: int, device_batch: int = 1, prefetch: int = 0, job: Path = Path("unused")) -> list[Loader]:
    return [build_loader(run, BYTES, Place(rank, world_size, device_batch, LENGTH), job, prefetch=prefetch) for rank in range(world_size)]


def global_step(ranks: list[Loader], device_batch: int = 1) -> torch.Tensor:
    """Inputs of one step in the order of global rows, (ROWS, LENGTH)."""
    local = [torch.cat([rank.next_batch().inputs for _ in range(ROWS // len(ranks) // device_batch)]) for rank in ranks]
    return torch.stack(local, dim=1).flatten(0, 1)


def close(ranks: list[Loader]) -> None:
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize(("world_size", "device_batch"), [(2, 3), (3, 4), (4, 1), (6, 2), (12, 1)])
def test_rows_of_a_step_are_the_same_at_any_world_size_and_batch(world_size: int, device_batch: int) -> None:
    alone, many = loaders(toy(), 1, 12), loaders(toy(), world_size, device_batch)
    for _ in range(4):
        assert torch.equal(global_step(alone, 12), global_step(many, device_batch))
    close(alone + many)


def test_targets_are_the_inputs_one_place_on() -> None:
    [one] = loaders(toy(), 1, 4)
    batch = one.next_batch()
    assert batch.inputs.shape == batch.targets.shape == (4, LENGTH)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert (batch.inputs[:, 0] == BYTES.bos_id).all() and batch.inputs.dtype == torch.int64


def test_made_ahead_or_not_the_batches_are_the_same() -> None:
    [ahead], [plain] = loaders(toy(), 1, 4, prefetch=5), loaders(toy(), 1, 4)
    for _ in range(30):
        a, b = ahead.next_batch(), plain.next_batch()
        assert torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets) and a.epoch == b.epoch
    assert ahead.state_dict() == plain.state_dict()
    ahead.close()


def test_a_batch_is_the_callers_to_keep() -> None:
    [one] = loaders(toy(), 1, 4, prefetch=2)
    first = one.next_batch()
    copy = first.inputs.clone()
    for _ in range(10):
        one.next_batch()
    assert torch.equal(first.inputs, copy)
    one.close()


@pytest.mark.parametrize("steps", [0, 1, 17])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (4, 1), (3, 12)])
def test_a_saved_position_continues_bit_for_bit_at_another_world_size(steps: int, before: int, after: int) -> None:
    run = toy()
    old = loaders(run, before, prefetch=3)
    for _ in range(steps):
        global_step(old)
    state = json.loads(json.dumps(merge_states([rank.state_dict() for rank in old]), allow_nan=False))
    new = loaders(run, after, prefetch=3)
    for rank in new:
        rank.load_state_dict(state)
        assert rank.state_dict()["streams"].items() <= state["streams"].items()
    for _ in range(5):
        assert torch.equal(global_step(old), global_step(new))
    close(old + new)


def test_a_loader_can_go_back_to_an_earlier_position() -> None:
    [one] = loaders(toy(), 1, 12, prefetch=4)
    state = one.state_dict()
    first = [one.next_batch().inputs for _ in range(3)]
    one.load_state_dict(state)
    assert all(torch.equal(one.next_batch().inputs, batch) for batch in first)
    one.close()


@pytest.mark.parametrize(("change", "told"), [
    ({"seed": 8}, "seed"), ({"corpus": "x"}, "corpus"), ({"tokenizer": "x"}, "tokenizer"), ({"rows": 24}, "rows"),
    ({"sequence_len": 64}, "sequence_len"), ({"packing": "upstream"}, "packing"),
])
def test_a_position_of_other_data_tokenizer_seed_or_batch_is_refused(change: dict, told: str) -> None:
    [one] = loaders(toy(), 1, 12)
    with pytest.raises(BadConfig, match=f"is for {told} "):
        one.load_state_dict({**one.state_dict(), **change})


def test_a_position_without_some_rank_is_refused() -> None:
    states = [rank.state_dict() for rank in loaders(toy(), 3)]
    [one] = loaders(toy(), 1, 12)
    with pytest.raises(BadData, match=r"no stream 2 \(4 are missing\)"):
        one.load_state_dict(merge_states(states[:2]))


def test_a_position_within_a_step_is_refused() -> None:
    [one] = loaders(toy(), 1, 3)
    one.next_batch()
    with pytest.raises(BadData, match="middle of a step"):
        one.load_state_dict(one.state_dict())


def test_a_rank_tokenises_only_the_documents_of_its_own_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[int, list[tuple[int, int]]] = {}
    original = loader_module.document_reader

    def spying(corpus, tokenizer):
        reader, mine = original(corpus, tokenizer), read.setdefault(len(read), [])
        return lambda block, index: (mine.append((block, index)), reader(block, index))[1]

    monkeypatch.setattr(loader_module, "document_reader", spying)
    texts = random_texts(4000, 30)
    monkeypatch.setattr("nanochat.data.toy.documents", lambda seed, count: texts)
    for _ in range(6):
        global_step(ranks := loaders(toy(toy_documents=4000), 3)) if not read else global_step(ranks)
    taken = [set(documents) for documents in read.values()]
    assert len(taken) == 3 and all(taken)
    assert not (taken[0] & taken[1] | taken[0] & taken[2] | taken[1] & taken[2])


def test_epochs_are_counted_and_go_on_for_ever() -> None:
    [one] = loaders(toy(toy_documents=10), 1, 12)
    epochs = [one.next_batch().epoch for _ in range(40)]
    assert epochs[0] == 0 and epochs[-1] > 1 and epochs == sorted(epochs)


def test_more_ranks_than_documents_files_or_row_groups_still_train(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_shard(tmp_path / f"{name}.parquet", random_texts(3, 40, seed=ord(name)), row_group=3)
    run = run_file(DataConfig(source="folder", dir=str(tmp_path)), rows=ROWS, sequence_len=LENGTH)
    for rank in loaders(run, 12, job=tmp_path / "job"):
        assert rank.next_batch().inputs.shape == (1, LENGTH)


@pytest.mark.parametrize(("rows", "device_batch", "world_size"), [(12, 5, 1), (12, 1, 5), (12, 4, 2)])
def test_a_batch_that_does_not_divide_is_refused(rows: int, device_batch: int, world_size: int) -> None:
    with pytest.raises(BadConfig, match="not a multiple of"):
        build_loader(run_file(TOY, rows=rows, sequence_len=LENGTH), BYTES, Place(0, world_size, device_batch, LENGTH), Path())


def test_what_goes_wrong_while_making_ahead_reaches_the_caller_again_and_again() -> None:
    def broken() -> Batch:
        raise BadData("the disk is gone")

    ahead = Prefetcher(broken)
    for _ in range(2):
        with pytest.raises(BadData, match="the disk is gone"):
            ahead.next()
    ahead.close()


def test_batches_that_do_not_come_are_an_error_and_not_a_wait() -> None:
    release = threading.Event()
    ahead = Prefetcher(lambda: release.wait() and None, patience_s=0.05)  # type: ignore[arg-type,return-value]
    with pytest.raises(BadData, match="no batch came"):
        ahead.next()
    release.set()
    ahead.close()


def test_closing_ends_the_thread_even_when_nobody_takes_its_batches() -> None:
    empty = torch.zeros(1, 1, dtype=torch.int64)
    ahead = Prefetcher(lambda: Batch(empty, empty, 0), depth=1)
    ahead.next()
    ahead.close()
    assert not ahead._thread.is_alive()


def test_stats_tell_utilisation_and_cropping() -> None:
    [one] = loaders(toy(), 1, 12)
    for _ in range(5):
        one.next_batch()
    stats: RowStats = one.stats
    assert stats.tokens == 5 * 12 * (LENGTH + 1) and stats.padding_tokens == stats.cropped_tokens == 0
    assert 0 < stats.continued_tokens < stats.tokens and stats.documents > 10
    shares = stats.shares()
    assert (shares["utilisation_frac"], shares["cropped_frac"]) == (1.0, 0.0) and 0 < shares["continued_frac"] < 1
    assert RowStats(tokens=60, padding_tokens=40, cropped_tokens=20).shares() == {
        "documents": 0, "utilisation_frac": 0.6, "cropped_frac": 0.25, "continued_frac": 0.0,
    }
    assert RowStats().shares()["utilisation_frac"] == 0.0


@pytest.fixture(autouse=True)
def _fresh_corpora() -> None:
    loader_module._opened.cache_clear()


def validation_rows(world_size: int, device_batch: int, eval_tokens: int, run: RunFile | None = None) -> set[tuple[int, ...]]:
    rows = set()
    for rank in range(world_size):
        for batch in validation_batches(run or toy(), BYTES, Place(rank, world_size, device_batch, LENGTH), Path(), eval_tokens=eval_tokens):
            assert batch.inputs.shape == (device_batch, LENGTH) and batch.inputs.min() >= 0
            rows |= {tuple(row.tolist()) for row in batch.targets if (row >= 0).any()}
    return rows


@pytest.mark.parametrize("eval_tokens", [1, 40 * LENGTH, 10**9])
def test_validation_rows_depend_neither_on_world_size_nor_batch(eval_tokens: int) -> None:
    expected = validation_rows(1, 1, eval_tokens)
    assert len(expected) <= max(1, eval_tokens // LENGTH)
    for world_size, device_batch in [(1, 7), (2, 4), (5, 3), (70, 2)]:
        assert validation_rows(world_size, device_batch, eval_tokens) == expected


def test_validation_sees_each_document_once_and_no_training_document(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"<{i}>" for i in range(200)]
    monkeypatch.setattr("nanochat.data.toy.documents", lambda seed, count: texts)
    seen = "".join(
        BYTES.decode(t for t in row if 0 <= t < 256)
        for row in validation_rows(1, 1, 10**9, toy(toy_documents=200))
    )
    assert sorted(seen.replace("<", "").split(">")[:-1]) == sorted(str(i) for i in range(0, 200, 20))
