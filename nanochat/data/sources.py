"""From the data block of a run config to documents."""

from pathlib import Path

from nanochat.contract import DataConfig, DataSource
from nanochat.data import toy
from nanochat.data.corpus import Corpus, MemoryCorpus, Splits
from nanochat.data.folder import open_folder
from nanochat.data.shards import ShardCorpus, shard_files
from nanochat.data.staging import staged_files
from nanochat.errors import BadConfig, BadData

__all__ = ["open_corpus"]

TOY_VALIDATION = 20
"""One in so many toy documents is for validation."""


def open_corpus(data: DataConfig, seed: int, job_dir: Path) -> Splits:
    """Training and validation documents of a run.

    Args:
        data: The run's data block.
        seed: The run's seed; toy text is made from it.
        job_dir: The job's folder, for what is downloaded or generated.

    Raises:
        BadData: The text is missing, unreadable or too little.
        BadConfig: The source needs something that the block does not say.
    """
    match data.source:
        case DataSource.TOY:
            return _toy(data, seed)
        case DataSource.FOLDER:
            folder = _folder(data)
            return _whole_files(folder) if data.packing == "upstream" else open_folder(folder, job_dir / "data" / "folder_index.json")
        case DataSource.CLIMBMIX | DataSource.FINEWEB_EDU | DataSource.MANIFEST:
            train, val = staged_files(data, job_dir)
            return Splits(ShardCorpus(f"{data.source} (train)", train), ShardCorpus(f"{data.source} (val)", val))


def _folder(data: DataConfig) -> Path:
    if not data.dir:
        raise BadConfig("source folder needs a folder", where="run.data.dir", hint="set run.data.dir=PATH")
    folder = Path(data.dir)
    if not folder.is_dir():
        raise BadData("there is no such folder" if not folder.exists() else "this is not a folder", where=str(folder))
    return folder


def _toy(data: DataConfig, seed: int) -> Splits:
    if data.packing == "upstream":
        raise BadConfig("packing upstream reads parquet files; the toy source has none", where="run.data.packing")
    if data.toy_documents < 2:
        raise BadConfig("the toy source needs at least 2 documents", where="run.data.toy_documents")
    texts = toy.documents(seed, data.toy_documents)
    every = min(TOY_VALIDATION, len(texts))
    train = [text for i, text in enumerate(texts) if i % every]
    return Splits(MemoryCorpus("toy corpus (train)", train), MemoryCorpus("toy corpus (val)", texts[::every]))


def _whole_files(folder: Path) -> Splits:
    """Upstream's split: the last file in sorted order is for validation."""
    files = shard_files(folder)
    if len(files) < 2:
        raise BadData(
            f"{len(files)} parquet files; packing upstream needs at least 2, the last one is for validation", where=str(folder),
            hint="set run.data.packing: bestfit, which splits by document",
        )
    train: Corpus = ShardCorpus(f"{folder} (train)", files[:-1])
    return Splits(train, ShardCorpus(f"{folder} (val)", files[-1:]))
