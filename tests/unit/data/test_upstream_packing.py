"""Packing upstream: upstream's order row by row, its hangs as errors, and a position that is exact."""

from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from data_helpers import BYTES, random_texts, run_file, write_shard

from nanochat.contract import DataConfig, RunFile
from nanochat.data import Place, build_loader, merge_states, validation_batches
from nanochat.errors import BadConfig, BadData

LENGTH = 48


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard in range(3):
        write_shard(tmp_path / f"shard_{shard:05d}.parquet", random_texts(700, 40, seed=shard), row_group=150)
    return tmp_path


def upstream(folder: Path) -> RunFile:
    return run_file(DataConfig(source="folder", dir=str(folder), packing="upstream"), rows=4, sequence_len=LENGTH)


def slow_reference(rank: int, world_size: int, rows: int) -> np.ndarray:
    """Rows by the rule as `facts` state it, with a plain list that is scanned."""
    groups = [random_texts(700, 40, seed=shard)[i : i + 150] for shard in range(2) for i in range(0, 700, 150)]
    mine = [g for shard in (groups[:5], groups[5:]) for g in shard[rank::world_size]]
    batches = (mine[i % len(mine)][j : j + 128] for i in count() for j in range(0, len(mine[i % len(mine)]), 128))
    buffer: list[list[int]] = []
    out = []
    for _ in range(rows):
        row: list[int] = []
        while len(row) < LENGTH + 1:
            while len(buffer) < 1000:
                buffer += [[BYTES.bos_id, *BYTES.encode(text)] for text in next(batches)]
            room = LENGTH + 1 - len(row)
            fitting = [i for i, doc in enumerate(buffer) if len(doc) <= room]
            at = max(fitting, key=lambda i: (len(buffer[i]), -i)) if fitting else min(range(len(buffer)), key=lambda i: (len(buffer[i]), i))
            row += buffer.pop(at)[:room]
        out.append(row)
    return np.array(out)


@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (1, 3)])
def test_rows_are_those_of_the_plain_rule(folder: Path, rank: int, world_size: int) -> None:
    loader = build_loader(upstream(folder), BYTES, Place(rank, world_size, 4, LENGTH), folder, prefetch=2)
    expected = torch.from_numpy(slow_reference(rank, world_size, 200)).view(50, 4, LENGTH + 1)
    for rows in expected:
        batch = loader.next_batch()
        assert torch.equal(batch.inputs, rows[:, :-1]) and torch.equal(batch.targets, rows[:, 1:])
    loader.close()


def test_long_documents_starve_and_the_crop_is_counted(folder: Path) -> None:
    loader = build_loader(upstream(folder), BYTES, Place(0, 1, 4, LENGTH), folder, prefetch=0)
    for _ in range(600):
        loader.next_batch()
    assert loader.stats.cropped_tokens > 0.05 * loader.stats.tokens  # bestfit crops nothing at all


@pytest.mark.parametrize("steps", [0, 130])
def test_a_saved_position_continues_bit_for_bit(folder: Path, steps: int) -> None:
    run, places = upstream(folder), [Place(rank, 2, 2, LENGTH) for rank in range(2)]
    old = [build_loader(run, BYTES, place, folder, prefetch=3) for place in places]
    for _ in range(steps):
        for loader in old:
            loader.next_batch()
    state = merge_states([loader.state_dict() for loader in old])
    new = [build_loader(run, BYTES, place, folder, prefetch=3) for place in places]
    for before, after in zip(old, new, strict=True):
        after.load_state_dict(state)
        for _ in range(40):
            a, b = before.next_batch(), after.next_batch()
            assert torch.equal(a.inputs, b.inputs) and a.epoch == b.epoch
        before.close()
        after.close()


def test_another_world_size_is_refused_with_the_way_out(folder: Path) -> None:
    one = build_loader(upstream(folder), BYTES, Place(0, 1, 4, LENGTH), folder, prefetch=0)
    two = build_loader(upstream(folder), BYTES, Place(0, 2, 2, LENGTH), folder, prefetch=0)
    with pytest.raises(BadConfig, match="bestfit's does not"):
        two.load_state_dict(one.state_dict())


def test_a_rank_without_row_group_is_an_error_where_upstream_waits_for_ever(folder: Path) -> None:
    with pytest.raises(BadData, match=r"no row group for rank 5 of 8: files have at most 5.*bestfit"):
        build_loader(upstream(folder), BYTES, Place(5, 8, 4, LENGTH), folder)


def test_a_single_file_is_an_error_where_upstream_waits_for_ever(tmp_path: Path) -> None:
    write_shard(tmp_path / "only.parquet", ["x"] * 10, 5)
    with pytest.raises(BadData, match="at least 2"):
        build_loader(upstream(tmp_path), BYTES, Place(0, 1, 4, LENGTH), tmp_path)


def test_validation_is_the_last_file_from_its_beginning_each_time(folder: Path) -> None:
    place = Place(0, 1, 4, LENGTH)
    first, again = (
        list(validation_batches(upstream(folder), BYTES, place, folder, eval_tokens=10 * 4 * LENGTH)) for _ in range(2)
    )
    assert len(first) == 10 and all(torch.equal(a.inputs, b.inputs) for a, b in zip(first, again, strict=True))
    val = "".join(random_texts(700, 40, seed=2))
    shown = BYTES.decode(t for t in first[0].inputs[0].tolist() if t < 256)
    assert shown[:20] in val


def test_the_toy_source_has_no_files_for_it() -> None:
    run = run_file(DataConfig(source="toy", packing="upstream"), rows=4, sequence_len=LENGTH)
    with pytest.raises(BadConfig, match="parquet"):
        build_loader(run, BYTES, Place(0, 1, 4, LENGTH), Path())
