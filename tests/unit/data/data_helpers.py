"""Small corpora and loaders for the tests of this folder."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.contract import DataConfig, ModelConfig, PretrainConfig, RunConfig, RunFile
from nanochat.tokenizer import Tokenizer

BYTES = Tokenizer.train(["x"], 265)
"""A token a byte: tokens can be read."""


def run_file(data: DataConfig, *, rows: int, sequence_len: int, seed: int = 7) -> RunFile:
    """A run whose steps have so many rows."""
    pretrain = PretrainConfig(tokens_per_step=rows * sequence_len, device_batch=1)
    return RunFile(job="t", run=RunConfig(data=data, seed=seed, pretrain=pretrain, model=ModelConfig(sequence_len=sequence_len)))


def write_shard(path: Path, texts: list[str | None], row_group: int) -> Path:
    """A parquet file with a column text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path, row_group_size=row_group)
    return path


def random_texts(count: int, mean: int, seed: int = 0) -> list[str]:
    """Texts of very different length, each of a letter and a number of its own, so that a token tells its document."""
    rng = np.random.default_rng(seed)
    return [f"{i:05d}" + chr(97 + i % 26) * int(rng.exponential(mean)) for i in range(count)]
