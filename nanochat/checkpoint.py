"""Checkpoints: written so that one is either complete or not there, read by any world size.

A checkpoint is a folder ``checkpoints/STAGE/step_000100/``:

    model.pt         weights by name (rank 0)
    rank00003.pt     rank 3's pieces of optimizer state and its random generator
    manifest.json    written last: step, world size, size and SHA-256 of every file, which pieces are where

Everything is written under a temporary name, synced, and renamed once the manifest is there. Reading them is
`nanochat.checkpoint_files`; tensors load with ``weights_only=True``: a checkpoint of unknown origin cannot execute anything.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from nanochat.checkpoint_files import (
    MANIFEST,
    MODEL_FILE,
    Manifest,
    SavedState,
    Torn,
    load_tensors,
    load_weights,
    rank_file,
    read_manifest,
    steps_of,
)
from nanochat.contract import CheckpointConfig, layout
from nanochat.errors import BadConfig, Diverged, TrainerError
from nanochat.eventlog import EventLog
from nanochat.files import fsync_dir, write_atomic
from nanochat.optim import MuonAdamW
from nanochat.peers import Peers

__all__ = ["CheckpointFailed", "Checkpoints", "Snapshot"]

BEST_FILE = "best.json"
VISIBLE_WITHIN_S = 10.0
"""How long files of other nodes may take to show on rank 0's side of a network file system."""


class CheckpointFailed(TrainerError):
    """A checkpoint could not be written; those that were complete before still are."""

    exit_code = BadConfig.exit_code


@dataclass(frozen=True)
class Snapshot:
    """What one rank puts into a checkpoint."""

    step: int
    weights: dict[str, Tensor]
    optimizer: MuonAdamW
    loop: dict[str, Any]
    """Equal on all ranks."""
    loader: Any
    """This rank's position in the data (JSON)."""


class _Hashing:
    """A file that hashes what is written to it, so that a checksum does not cost a second reading."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self.size = file, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        self._hash.update(data)
        written = self._file.write(data)
        self.size += written
        return written

    def flush(self) -> None:
        self._file.flush()

    def entry(self) -> dict[str, Any]:
        return {"bytes": self.size, "sha256": self._hash.hexdigest()}


def _on_host(content: Any) -> Any:
    """The same with every tensor on the CPU: a file with NPU tensors opens only where torch_npu is installed."""
    if isinstance(content, dict):
        return {key: _on_host(value) for key, value in content.items()}
    return content.cpu() if isinstance(content, Tensor) else content


def _write_tensors(path: Path, content: Any) -> dict[str, Any]:
    """Size and checksum of a file with tensors, written and synced."""
    with path.open("wb") as file:
        hashing = _Hashing(file)
        torch.save(_on_host(content), hashing)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    return hashing.entry()


class Checkpoints:
    """The checkpoints of one stage of a job. Methods are called by all ranks together unless they say otherwise.

    Args:
        job_dir: The job's folder.
        stage: Stage.
        peers: The ranks.
        events: Where to tell.
        config: What to keep.
        about: For `Manifest.about`.
    """

    def __init__(
        self, job_dir: Path, stage: str, peers: Peers, events: EventLog, config: CheckpointConfig, about: dict[str, Any] | None = None
    ) -> None:
        self.job_dir, self.stage, self.peers, self.events, self.config = job_dir, stage, peers, events, config
        self.about = about or {}
        self.folder = layout.checkpoints_dir(job_dir, stage)
        self.last_save_s = 0.0
        self._refused: set[int] = set()
        """Steps whose checkpoint could not be loaded; only a reading of all its bytes tells."""

    # -- writing ------------------------------------------------------------------------------------------------------

    def save(self, snapshot: Snapshot) -> Path:
        """Folder of the checkpoint, complete when this returns.

        Raises:
            CheckpointFailed: On all ranks, if any could not write.
            Diverged: Weights are not finite: nothing is written, and what was written before stays.
        """
        started = time.monotonic()
        _require_finite(snapshot)
        final = layout.checkpoint_dir(self.job_dir, self.stage, snapshot.step)
        partial = final.with_name(f"{final.name}.partial")
        problem = self.peers.share(self._make_room(partial) if self.peers.is_first else None)
        report: dict[str, Any] = self._write_own(partial, snapshot) if not problem else {"error": problem}
        reports = self.peers.collect(report)
        problem = self.peers.share(self._finish(partial, final, snapshot, reports) if reports is not None else None)
        if problem:
            raise CheckpointFailed(
                f"checkpoint at step {snapshot.step} not written: {problem}", where=str(final),
                hint="free space on the output volume, or lower checkpoint.keep_last",
            )
        self.last_save_s = time.monotonic() - started
        if reports is not None:
            self._refused.discard(snapshot.step)
            self._announce(final, snapshot.step, sum(entry["bytes"] for r in reports for entry in r["files"].values()))
            self._prune(snapshot.step)
        return final

    def _make_room(self, partial: Path) -> str:
        """Rank 0: an empty folder to write into; gives back what went wrong, or "".

        What killed attempts have left goes, of whatever step: saving by the clock hardly ever meets the same one again.
        """
        try:
            for left in (*self.folder.glob("step_*.partial"), *self.folder.glob("step_*.stale")):
                shutil.rmtree(left, ignore_errors=True)
            partial.mkdir(parents=True)
        except OSError as error:
            return str(error)
        return ""

    def _write_own(self, partial: Path, snapshot: Snapshot) -> dict[str, Any]:
        """This rank's report: files and pieces, or what went wrong."""
        name = rank_file(self.peers.rank)
        shards = snapshot.optimizer.shard_state()
        content = {
            "optimizer": {key: _own_storage(shard.tensor) for key, shard in shards.items()},
            "rng": torch.get_rng_state(),
        }
        try:
            files = {name: _write_tensors(partial / name, content)}
            if self.peers.is_first:
                files[MODEL_FILE] = _write_tensors(partial / MODEL_FILE, snapshot.weights)
        except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into a RuntimeError
            return {"error": f"rank {self.peers.rank}: {_reason(error)}"}
        pieces = {key: [shard.offset, shard.tensor.numel()] for key, shard in shards.items()}
        return {"files": files, "pieces": {name: pieces}, "loader": snapshot.loader}

    def _finish(self, partial: Path, final: Path, snapshot: Snapshot, reports: list[dict[str, Any]]) -> str:
        """Rank 0: manifest and rename; gives back what went wrong, or ""."""
        problem = next((report["error"] for report in reports if "error" in report), "")
        try:
            if not problem:
                files = {name: entry for report in reports for name, entry in report["files"].items()}
                self._await_files(partial, files)
                manifest = Manifest(
                    stage=self.stage, step=snapshot.step, world_size=self.peers.size, files=files,
                    pieces={name: pieces for report in reports for name, pieces in report["pieces"].items()},
                    updates=snapshot.optimizer.updates, loop=snapshot.loop, loader=[report["loader"] for report in reports],
                    about=self.about, t=time.time(),
                )
                record = {key: value for key, value in asdict(manifest).items() if key != "folder"}
                write_atomic(partial / MANIFEST, json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
                self._rename(partial, final)
        except OSError as error:
            problem = str(error)
        if problem:
            shutil.rmtree(partial, ignore_errors=True)
        return problem

    def _await_files(self, partial: Path, files: dict[str, dict[str, Any]]) -> None:
        """Files of other nodes have to be visible here, or no attempt could ever load them."""
        deadline = time.monotonic() + VISIBLE_WITHIN_S
        for name, entry in files.items():
            path = partial / name
            while not (path.is_file() and path.stat().st_size == entry["bytes"]):
                if time.monotonic() > deadline:
                    raise OSError(f"{name} was written on its node and is not visible on rank 0's: is the output volume shared?")
                time.sleep(0.1)

    def _rename(self, partial: Path, final: Path) -> None:
        """A folder of the same step is in the way only if it was torn, or written before a resume from an older step."""
        if final.exists():
            stale = final.with_name(f"{final.name}.stale")
            shutil.rmtree(stale, ignore_errors=True)
            final.rename(stale)
            partial.rename(final)
            shutil.rmtree(stale, ignore_errors=True)
        else:
            partial.rename(final)
        fsync_dir(final.parent)

    def _announce(self, final: Path, step: int, size_bytes: int) -> None:
        path = final.relative_to(self.job_dir).as_posix()
        self.events.emit("checkpoint", step=step, path=path, size_bytes=size_bytes, save_s=round(self.last_save_s, 3))

    def mark_best(self, step: int, value: float) -> None:
        """Remember a checkpoint as the best so far, to be kept. Rank 0 only; lower is better, and lower only replaces.

        Where that cannot be written down it is a warning: the checkpoint itself stands.
        """
        best = self.best()
        if best is None or value < best[1] or not layout.checkpoint_dir(self.job_dir, self.stage, best[0]).is_dir():
            try:
                write_atomic(self.folder / BEST_FILE, json.dumps({"step": step, "value": value}) + "\n")
            except OSError as error:
                self.events.warn("best_not_marked", f"step {step} is the best so far, and {BEST_FILE} cannot be written: {error}")
                return
            self._prune(step)

    def best(self) -> tuple[int, float] | None:
        """Step and value of the best checkpoint, if one was marked."""
        try:
            record = json.loads((self.folder / BEST_FILE).read_text(encoding="utf-8"))
            return int(record["step"]), float(record["value"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _prune(self, newest: int) -> None:
        """Rank 0: remove what is neither among the last few, counted back from the step just written, nor the best.

        Later steps are of a course that was left (the checkpoint is torn, or the run began anew): their numbers are higher,
        but they must not crowd out what is being written now. They stay until training has come past them.
        """
        behind = [step for step in steps_of(self.job_dir, self.stage) if step <= newest]
        keep = set([step for step in behind if step == newest or self._is_whole(step)][: self.config.keep_last])
        best = self.best()
        if self.config.keep_best and best is not None:
            keep.add(best[0])
        for step in behind:
            if step not in keep:
                shutil.rmtree(layout.checkpoint_dir(self.job_dir, self.stage, step), ignore_errors=True)

    def _is_whole(self, step: int) -> bool:
        try:
            read_manifest(layout.checkpoint_dir(self.job_dir, self.stage, step))
        except Torn:
            return False
        return step not in self._refused

    # -- reading ------------------------------------------------------------------------------------------------------

    def restore(
        self, optimizer: MuonAdamW, load_model: Any, job: Path | None = None, step: int | None = None,
        require: Callable[[Manifest], None] = lambda _: None,
    ) -> Manifest | None:
        """Manifest of the newest complete checkpoint, loaded into model and optimizer; None if there is none at all.

        One that is torn is named in a warning, and the one before it is taken. All ranks take the same one.

        Args:
            optimizer: Gets its state.
            load_model: Called with the weights by name.
            job: Another job's folder to read from.
            step: This step and no other.
            require: Called with the manifest before anything is loaded; raises if it is of another model, and so does this then.

        Raises:
            Torn: There are some, and none of them can be used: whether to begin anew is for a person to say.
        """
        source = job or self.job_dir
        steps = self.peers.share(steps_of(source, self.stage) if self.peers.is_first else None)
        refused: list[str] = []
        for candidate in steps if step is None else [found for found in steps if found == step]:
            folder = layout.checkpoint_dir(source, self.stage, candidate)
            problem = self.peers.any_problem(self._try(folder, optimizer, load_model, require))
            if not problem:
                return read_manifest(folder)
            refused.append(f"{folder.name}: {problem}")
            if job is None:
                self._refused.add(candidate)
            if self.peers.is_first:
                self.events.warn("torn_checkpoint", f"{folder.name} is not used: {problem}")
        if refused:
            raise Torn(
                f"none of the {len(refused)} checkpoints of {self.stage} can be used: {'; '.join(refused)}",
                where=str(layout.checkpoints_dir(source, self.stage)),
                hint="bring the files back, or begin anew with run.resume: never",
            )
        return None

    def _try(self, folder: Path, optimizer: MuonAdamW, load_model: Any, require: Callable[[Manifest], None]) -> str:
        """Load, and give back what is wrong with the checkpoint, or ""."""
        try:
            manifest = read_manifest(folder)
            require(manifest)
            state = SavedState(manifest, self.peers.rank, self.peers.size)
            load_model(load_tensors(folder / MODEL_FILE) if not self.peers.is_first else load_weights(manifest))
            optimizer.load_state(state.fetch, manifest.updates)
            state.restore_rng()
        except Torn as error:
            return error.message
        except (OSError, EOFError, RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:  # what a damaged file can make of our reading
            return f"{type(error).__name__}: {_reason(error)}"
        return ""


def _require_finite(snapshot: Snapshot) -> None:
    """Refuse weights that a later step could only spread: the loss may still be a number when they no longer are."""
    for name, tensor in snapshot.weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise Diverged(
                f"{name} is not finite after step {snapshot.step}; the checkpoint before stands", where=f"step {snapshot.step}",
                hint="lower the learning rates, or resume from an earlier checkpoint with another seed",
            )


def _own_storage(tensor: Tensor) -> Tensor:
    """torch.save writes the whole storage of a view: a piece of a stack has to be cut out first."""
    return tensor.clone() if tensor.untyped_storage().nbytes() != tensor.nbytes else tensor


def _reason(error: BaseException) -> str:
    cause = error.__cause__ or error.__context__ or error
    text = str(cause if isinstance(cause, OSError) else error)
    return (text.splitlines() or [type(error).__name__])[0]
