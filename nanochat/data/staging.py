"""Bringing the shards of a data set into a folder: in parallel, verified, resumable, and telling the truth about what is missing.

The folder holds the shards and ``verified.json``: size, time of change and SHA-256 of each file that was verified, so that a
restart does not read 170 files of 100 MB again. What the first download found is pinned there: a shard that a server changed
later is noticed.
"""

import fcntl
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from nanochat.contract import DataConfig, ExitCode
from nanochat.data.manifest import Manifest, Shard, manifest_of
from nanochat.data.shards import row_groups
from nanochat.data.transfer import DownloadFailed, Patience, Stopped, fetch
from nanochat.errors import BadData, TrainerError
from nanochat.files import sha256_of, write_atomic

__all__ = ["Progress", "data_dir", "missing_shards", "stage_data", "staged_files"]

VERIFIED = "verified.json"
LOCK = ".lock"
WORKERS = 4
"""Files at the same time; more makes public servers refuse."""
TYPICAL_SHARD_BYTES = 100_000_000
"""A shard of 250 M characters at zstd level 3 (karpathy/nanochat 92d63d4, dev/repackage_data_reference.py)."""
NAMES_SHOWN = 12


@dataclass(frozen=True)
class Progress:
    """How far the download is."""

    done: int
    total: int
    bytes_done: int
    bytes_per_s: float
    eta_s: float | None


@dataclass
class _State:
    """What the worker threads share."""

    manifest: Manifest
    folder: Path
    verified: dict[str, list[object]]
    patience: Patience
    report: Callable[[Progress], None]
    done: int = 0
    bytes_new: int = 0
    started: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)


def data_dir(data: DataConfig, job_dir: Path) -> Path:
    """Folder of the shards: the one that the config names, else one in the job's folder."""
    return Path(data.dir) if data.dir else job_dir / "data" / str(data.source)


def staged_files(data: DataConfig, job_dir: Path) -> tuple[list[Path], list[Path]]:
    """Training and validation shards that are in place, in order.

    Raises:
        BadData: Some are missing; they are listed.
    """
    manifest, folder = manifest_of(data), data_dir(data, job_dir)
    missing = [shard for shard in manifest.shards if not (folder / shard.name).is_file()]
    if missing:
        raise BadData(
            f"{len(missing)} of {len(manifest.shards)} shards are missing: {_names(missing)}", where=str(folder),
            hint="put stage data before the others in run.stages; with several nodes the folder has to be shared",
        )
    train, val = ([folder / shard.name for shard in manifest.of(split)] for split in ("train", "val"))
    return train, val


def missing_shards(data: DataConfig, job_dir: Path) -> list[Shard]:
    """Shards that are not in place, or are not what they have to be."""
    manifest, folder = manifest_of(data), data_dir(data, job_dir)
    verified = _read_verified(folder)
    return [shard for shard in manifest.shards if not _in_place(_pinned(shard, verified), folder, verified)]


def stage_data(
    data: DataConfig, job_dir: Path, *, patience: Patience = Patience(), workers: int = WORKERS, report: Callable[[Progress], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, object]:
    """Brings all shards into place; gives back how many there are and how many bytes came.

    Args:
        data: The run's data block.
        job_dir: The job's folder.
        patience: How long is tried for one file.
        workers: Files at the same time.
        report: Called about once a second.
        check: Called about once a second; raises where a stop was asked for. Partial files stay and are gone on from.

    Raises:
        BadData: Offline and shards are missing, the disk is too small, or no source has the right file.
        DownloadFailed: As above; its code says whether another attempt may help.
    """
    manifest, folder = manifest_of(data), data_dir(data, job_dir)
    if data.offline or os.environ.get("HF_HUB_OFFLINE") in ("1", "true", "TRUE", "True"):
        _require_all(manifest, folder)
    with _locked(folder):
        verified = _read_verified(folder)
        wanted = [shard for shard in (_pinned(shard, verified) for shard in manifest.shards) if not _in_place(shard, folder, verified)]
        state = _State(manifest, folder, verified, patience, report, done=len(manifest.shards) - len(wanted))
        if wanted:
            _require_space(wanted, folder)
            _fetch_all(state, wanted, workers, check)
        _write_verified(folder, verified)
    return {
        "shards": len(manifest.shards), "fetched": len(wanted), "bytes_fetched": state.bytes_new, "validation": manifest.of("val")[0].name,
        "folder": str(folder),
    }


def _fetch_all(state: _State, wanted: Sequence[Shard], workers: int, check: Callable[[], None]) -> None:
    """Fetches all, the validation shard first: without it nothing else is worth anything."""
    order = sorted(wanted, key=lambda shard: shard.split != "val")
    with ThreadPoolExecutor(workers, thread_name_prefix="fetch") as pool:
        futures = [pool.submit(_fetch_one, state, shard) for shard in order]
        try:
            pending = True
            while pending:
                check()
                _tell(state)
                done, waiting = wait(futures, timeout=1.0)
                pending = bool(waiting) and not any(_permanent(future.exception()) for future in done)
        finally:
            state.stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
    _tell(state)
    _write_verified(state.folder, state.verified)
    failures = [error for future in futures if not future.cancelled() and (error := future.exception()) and not isinstance(error, Stopped)]
    unexpected = next((error for error in failures if not isinstance(error, TrainerError)), None)
    if unexpected is not None:
        raise unexpected
    if failures:
        _raise_failures(state, [error for error in failures if isinstance(error, TrainerError)])


def _permanent(error: BaseException | None) -> bool:
    """True if going on with the other shards is in vain: the run cannot start without this one."""
    return isinstance(error, TrainerError) and error.code is ExitCode.BAD_DATA


def _raise_failures(state: _State, failures: Sequence[TrainerError]) -> None:
    first = failures[0]
    missing = [shard for shard in state.manifest.shards if not (state.folder / shard.name).is_file()]
    code = ExitCode.BAD_DATA if any(error.code is ExitCode.BAD_DATA for error in failures) else ExitCode.NOT_READY
    raise DownloadFailed(
        f"{len(missing)} of {len(state.manifest.shards)} shards are missing ({_names(missing)}). {first.message}", where=str(state.folder),
        hint=first.hint, code=code,
    ) from first


def _fetch_one(state: _State, shard: Shard) -> None:
    def came(count: int) -> None:
        with state.lock:
            state.bytes_new += count

    target = state.folder / shard.name
    found = fetch(shard, target, state.patience, came, state.stop)
    row_groups(target)  # raises where the file is no parquet file with a text column
    with state.lock:
        state.verified[shard.name] = _record(target, found.sha256)
        state.done += 1


def _tell(state: _State) -> None:
    with state.lock:
        done, total, came = state.done, len(state.manifest.shards), state.bytes_new
    took = time.monotonic() - state.started
    speed = came / took if took > 0 else 0.0
    sizes = [int(str(entry[0])) for entry in list(state.verified.values())]
    typical = sum(sizes) / len(sizes) if sizes else TYPICAL_SHARD_BYTES
    left = (total - done) * typical
    state.report(Progress(done, total, came, speed, left / speed if speed > 0 else None))


# -- what is there ----------------------------------------------------------------------------------------------------


def _pinned(shard: Shard, verified: dict[str, list[object]]) -> Shard:
    """The shard with the checksum that the first download found, where the manifest gives none."""
    known = verified.get(shard.name)
    if shard.sha256 is None and known is not None:
        return replace(shard, size_bytes=int(str(known[0])), sha256=str(known[2]))
    return shard


def _record(path: Path, sha256: str) -> list[object]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, sha256]


def _in_place(shard: Shard, folder: Path, verified: dict[str, list[object]]) -> bool:
    """True if the file is there and is what it has to be; a file that changed since it was verified is verified again."""
    path = folder / shard.name
    if not path.is_file() or shard.size_bytes not in (None, path.stat().st_size):
        return False
    known = verified.get(shard.name)
    if known is not None and list(known[:2]) == _record(path, "")[:2] and shard.sha256 in (None, known[2]):
        return True
    try:
        row_groups(path)
    except BadData:
        return False  # for example a copy that broke off
    found = sha256_of(path)
    if shard.sha256 not in (None, found):
        return False
    verified[shard.name] = _record(path, found)
    return True


def _read_verified(folder: Path) -> dict[str, list[object]]:
    try:
        record = json.loads((folder / VERIFIED).read_text(encoding="utf-8"))
        return {str(name): list(entry) for name, entry in record.items() if len(entry) == 3}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write_verified(folder: Path, verified: dict[str, list[object]]) -> None:
    if verified == _read_verified(folder):
        return
    try:
        write_atomic(folder / VERIFIED, json.dumps(dict(sorted(verified.items())), indent=0) + "\n")
    except OSError:
        return  # a read-only volume; the files are verified again next time


def _require_all(manifest: Manifest, folder: Path) -> None:
    verified = _read_verified(folder)
    missing = [shard for shard in manifest.shards if not _in_place(_pinned(shard, verified), folder, verified)]
    if missing:
        raise BadData(
            f"offline, and {len(missing)} of {len(manifest.shards)} shards are missing or damaged: {_names(missing)}", where=str(folder),
            hint=f"copy them there, for example from {missing[0].urls[-1]}, or set run.data.offline: false",
        )


def _require_space(wanted: Sequence[Shard], folder: Path) -> None:
    """Refuses at once what could only fail after hours; sizes that nobody knows are taken as typical only where they are many."""
    known = sum(shard.size_bytes or 0 for shard in wanted)
    unknown = [shard for shard in wanted if shard.size_bytes is None]
    partial = sum(path.stat().st_size for path in folder.glob("*.partial"))
    needed = known + (len(unknown) * TYPICAL_SHARD_BYTES if len(unknown) > WORKERS else 0) - partial
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise BadData(
            f"{len(wanted)} shards need about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free", where=str(folder),
            hint="make room, lower run.data.shards, or set run.data.dir to a larger volume",
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One downloader at a time in a folder; the second one waits and then finds everything there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / LOCK).open("a")
    except OSError as error:
        if not folder.is_dir():
            raise BadData(f"the folder cannot be made: {error.strerror}", where=str(folder), hint="set run.data.dir") from error
        yield  # a read-only volume, filled by somebody else
        return
    with handle:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _names(shards: Sequence[Shard]) -> str:
    """Names as a person reads them: runs of numbers in one piece, cut after a few."""
    runs: list[list[Shard]] = []
    for shard in shards:
        if runs and _number(shard) is not None and _number(shard) == (_number(runs[-1][-1]) or 0) + 1:
            runs[-1].append(shard)
        else:
            runs.append([shard])
    shown = [run[0].name if len(run) == 1 else f"{run[0].name} … {run[-1].name}" for run in runs]
    return ", ".join(shown[:NAMES_SHOWN]) + (f" and {len(shown) - NAMES_SHOWN} more" if len(shown) > NAMES_SHOWN else "")


def _number(shard: Shard) -> int | None:
    match = re.search(r"(\d+)\.parquet$", shard.name)
    return int(match[1]) if match else None
