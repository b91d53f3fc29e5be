"""Parquet shards: documents in a column ``text``, read one row group at a time."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.errors import BadData

__all__ = ["TEXT_COLUMN", "ShardCorpus", "row_groups", "shard_files"]

TEXT_COLUMN = "text"


def shard_files(folder: Path) -> list[Path]:
    """The parquet files of a folder in sorted order."""
    return sorted(path for path in folder.glob("*.parquet") if path.is_file())


def row_groups(path: Path) -> list[int]:
    """Documents in each row group of a parquet file.

    Raises:
        BadData: The file cannot be read, or has no text column.
    """
    try:
        metadata = pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        raise BadData(f"not a readable parquet file: {first_line(error)}", where=str(path)) from error
    names = metadata.schema.to_arrow_schema().names
    if TEXT_COLUMN not in names:
        raise BadData(f"no column {TEXT_COLUMN!r}; there are {', '.join(names) or 'none'}", where=str(path))
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def read_texts(path: Path, row_group: int) -> list[str]:
    """Documents of one row group; a null is an empty document.

    Raises:
        BadData: The file is damaged, or its text is no text.
    """
    try:
        with pq.ParquetFile(path) as file:
            column = file.read_row_group(row_group, columns=[TEXT_COLUMN], use_threads=False).column(TEXT_COLUMN)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
            raise BadData(f"column {TEXT_COLUMN!r} holds {column.type}, not text", where=str(path))
        return [text or "" for text in column.to_pylist()]
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise BadData(f"row group {row_group} cannot be read: {first_line(error)}", where=str(path)) from error


def first_line(error: BaseException) -> str:
    """What an exception says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class ShardCorpus:
    """Documents of some parquet files; a block is a row group.

    Args:
        name: For messages.
        files: The shards, in order.
    """

    def __init__(self, name: str, files: Sequence[Path]) -> None:
        self.name = name
        self.files = list(files)
        self.groups_of_file = [row_groups(path) for path in self.files]
        self._blocks = [(i, group) for i, groups in enumerate(self.groups_of_file) for group in range(len(groups))]

    @property
    def block_sizes(self) -> Sequence[int]:
        """Documents in each row group."""
        return [size for groups in self.groups_of_file for size in groups]

    @cached_property
    def fingerprint(self) -> str:
        """Over names, sizes and row groups of the files: their content is verified when they are downloaded, not at each start."""
        facts = [(path.name, path.stat().st_size, groups) for path, groups in zip(self.files, self.groups_of_file, strict=True)]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def read_block(self, block: int) -> Sequence[str]:
        """Texts of one row group."""
        file, group = self._blocks[block]
        return read_texts(self.files[file], group)

    def read_group(self, file: int, group: int) -> Sequence[str]:
        """Texts of one row group of one file."""
        return read_texts(self.files[file], group)
