"""Reading checkpoints: what a manifest says, whether its files are what it says, and pieces of state for any world size."""

import json
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nanochat.contract import layout
from nanochat.errors import BadData
from nanochat.files import sha256_of

__all__ = ["MANIFEST", "MODEL_FILE", "Manifest", "SavedState", "Torn", "load_tensors", "load_weights", "rank_file", "read_manifest", "steps_of"]

MANIFEST = "manifest.json"
MODEL_FILE = "model.pt"
VERSION = 1
_STEP = re.compile(r"step_(\d{6,})$")


def rank_file(rank: int) -> str:
    """Name of a rank's file."""
    return f"rank{rank:05d}.pt"


class Torn(BadData):
    """A checkpoint is incomplete or damaged."""


@dataclass(frozen=True)
class Manifest:
    """What is in a checkpoint. Read leniently: keys that we do not know are ignored."""

    stage: str
    step: int
    world_size: int
    files: dict[str, dict[str, Any]]
    """Name: ``bytes`` and ``sha256``."""
    pieces: dict[str, dict[str, list[int]]]
    """Rank file: key of a state tensor: offset and length of the piece in the flattened whole."""
    updates: int
    loop: dict[str, Any]
    """Counters of the training loop."""
    loader: list[Any]
    """Position in the data, one entry a rank."""
    about: dict[str, Any] = field(default_factory=dict)
    """Job, shape, run config, tokenizer's fingerprint: for chat, export and reports."""
    complete: bool = True
    t: float = 0.0
    v: int = VERSION
    folder: Path = Path()

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(int(entry["bytes"]) for entry in self.files.values())


def steps_of(job: Path, stage: str) -> list[int]:
    """Steps at which a stage has checkpoint folders, newest first; whether they are complete is another question."""
    folder = layout.checkpoints_dir(job, stage)
    names = folder.iterdir() if folder.is_dir() else iter(())
    found = [int(match.group(1)) for path in names if (match := _STEP.match(path.name))]
    return sorted(found, reverse=True)


def read_manifest(folder: Path) -> Manifest:
    """Manifest of a checkpoint whose files are all there in the right size.

    Raises:
        Torn: It is incomplete, by name of what is missing.
    """
    try:
        record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        known = {key: record[key] for key in Manifest.__dataclass_fields__ if key in record and key != "folder"}
        manifest = Manifest(**known, folder=folder)
        if manifest.v > VERSION or not manifest.complete:
            raise Torn(f"manifest is of version {manifest.v}, complete: {manifest.complete}", where=str(folder))
        wanted = {name: int(entry["bytes"]) for name, entry in manifest.files.items()}
    except FileNotFoundError as error:
        raise Torn("has no manifest: it was never finished", where=str(folder)) from error
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise Torn(f"manifest cannot be read: {error}", where=str(folder)) from error
    for name, size in wanted.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            raise Torn(f"{name} has {'no' if found is None else found} bytes, the manifest says {size}", where=str(folder))
    return manifest


def _verify(manifest: Manifest, name: str) -> None:
    if sha256_of(manifest.folder / name) != manifest.files[name]["sha256"]:
        raise Torn(f"{name} is damaged: its checksum does not fit", where=str(manifest.folder))


def load_tensors(path: Path) -> Any:
    """Content of a file, mapped into memory.

    Raises:
        Torn: It holds more than tensors.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise Torn(f"{path.name} holds more than tensors, and is not opened", where=str(path.parent)) from error


def load_weights(manifest: Manifest) -> dict[str, Tensor]:
    """Weights by name, on the CPU, mapped from the file.

    Raises:
        Torn: The file is damaged.
    """
    _verify(manifest, MODEL_FILE)
    weights: dict[str, Tensor] = load_tensors(manifest.folder / MODEL_FILE)
    return weights


class SavedState:
    """Optimizer state of a checkpoint, whatever world size wrote it: any run of elements of any state tensor.

    Args:
        manifest: Of the checkpoint.
        rank: This rank.
        size: Ranks that there are now.
    """

    def __init__(self, manifest: Manifest, rank: int, size: int) -> None:
        self._manifest, self._rank = manifest, rank
        self._same_world = manifest.world_size == size
        self._open: dict[str, Any] = {}
        self._where: dict[str, list[tuple[int, int, str]]] = {}
        for name, pieces in manifest.pieces.items():
            for key, (offset, length) in pieces.items():
                self._where.setdefault(key, []).append((offset, length, name))
        for places in self._where.values():
            places.sort()

    def fetch(self, key: str, offset: int, length: int) -> Tensor:
        """Elements [offset, offset + length) of the flattened whole (`nanochat.optim.Fetch`)."""
        if key not in self._where:
            raise Torn(f"has no state {key}: was it made by another model shape?", where=str(self._manifest.folder))
        parts = list(self._overlaps(key, offset, offset + length))
        found = sum(part.numel() for part in parts)
        if found != length:
            raise Torn(f"{key} lacks {length - found} of {length} elements", where=str(self._manifest.folder))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _overlaps(self, key: str, start: int, end: int) -> Iterator[Tensor]:
        for offset, length, name in self._where[key]:
            low, high = max(start, offset), min(end, offset + length)
            if low < high:
                yield self._file(name)["optimizer"][key].view(-1)[low - offset : high - offset]

    def _file(self, name: str) -> Any:
        if name not in self._open:
            _verify(self._manifest, name)
            self._open[name] = load_tensors(self._manifest.folder / name)
        return self._open[name]

    def restore_rng(self) -> None:
        """Go on drawing where this rank left off; a rank of another world has no such place, and training draws nothing."""
        if self._same_world:
            torch.set_rng_state(self._file(rank_file(self._rank))["rng"])
