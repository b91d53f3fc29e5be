"""Tasks' examples from files: ``TASKS_DIR/TASK/SPLIT.parquet``, ``.jsonl``, or a folder ``SPLIT/`` of such files.

Nothing is fetched here; stage data does that (`nanochat.tasks.staging`), and on a computer without network the files are put there
by hand.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.contract import RunConfig
from nanochat.errors import BadConfig, BadData

__all__ = ["open_rows", "read_examples", "require_keys", "split_files", "tasks_dir"]

SUFFIXES = (".parquet", ".jsonl")


def tasks_dir(run: RunConfig) -> Path:
    """Folder of the tasks' examples: ``run.data.tasks_dir``, else ``tasks`` in ``run.data.dir``.

    Raises:
        BadConfig: Neither is set.
    """
    if run.data.tasks_dir:
        return Path(run.data.tasks_dir)
    if run.data.dir:
        return Path(run.data.dir) / "tasks"
    raise BadConfig("it is not said where tasks' examples are", where="run.data.tasks_dir", hint="set it to a folder of TASK/SPLIT.parquet or .jsonl")


def split_files(run: RunConfig, task: str, split: str) -> list[Path]:
    """Files of a task's split, in order; [] where there are none."""
    folder = tasks_dir(run) / task
    single = [folder / f"{split}{suffix}" for suffix in SUFFIXES]
    found = [path for path in single if path.is_file()][:1]
    inside = folder / split
    if not found and inside.is_dir():
        found = sorted(path for path in inside.iterdir() if path.suffix in SUFFIXES)
    return found


class _Rows(Sequence[dict[str, Any]]):
    """Rows of a table that stays in Arrow's memory: as Python objects, half a million conversations would take gigabytes."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: Any) -> Any:
        return self._table.slice(index, 1).to_pylist()[0]


def open_rows(run: RunConfig, task: str, split: str) -> Sequence[dict[str, Any]]:
    """As `read_examples`, but rows of parquet files are made into objects only when they are asked for."""
    files = split_files(run, task, split)
    if files and all(path.suffix == ".parquet" for path in files):
        return _Rows(pa.concat_tables(_table(path) for path in files))
    return read_examples(run, task, split)


def read_examples(run: RunConfig, task: str, split: str) -> list[dict[str, Any]]:
    """Records of a task's split.

    Raises:
        BadData: There are none, or a file is damaged; it is named.
    """
    files = split_files(run, task, split)
    if not files:
        raise BadData(
            f"the examples of {task} ({split}) are not here", where=str(tasks_dir(run) / task / f"{split}.parquet"),
            hint="put stage data before the others in run.stages, or copy the files there",
        )
    records = [record for path in files for record in (_parquet(path) if path.suffix == ".parquet" else _json_lines(path))]
    if not records:
        raise BadData(f"{task} ({split}) has no examples", where=str(files[0]))
    return records


def _parquet(path: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = _table(path).to_pylist()
    return records


def _table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise BadData(f"the file is damaged: {error}", where=str(path)) from error


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"the file cannot be read: {error}", where=str(path)) from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadData(f"not JSON: {error}", where=f"{path}:{number}") from error
        if not isinstance(record, dict):
            raise BadData("not an object", where=f"{path}:{number}")
        yield record


def require_keys(
    records: list[dict[str, Any]], keys: tuple[str, ...], task: str, split: str, texts: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """The records, all of which have these keys.

    Args:
        records: Of a task's split.
        keys: That each needs.
        task: For messages.
        split: For messages.
        texts: Those of the keys that hold text.

    Raises:
        BadData: Names the record and the key.
    """
    for number, record in enumerate(records):
        missing = [key for key in keys if record.get(key) is None]
        if missing:
            raise BadData(f"example {number} of {task} ({split}) has no {missing[0]}", where=f"{task}/{split}", hint=f"every example needs {', '.join(keys)}")
        other = [key for key in texts if not isinstance(record[key], str)]
        if other:
            raise BadData(f"example {number} of {task} ({split}): {other[0]} is no text", where=f"{task}/{split}")
    return records
