"""The evaluation bundle: a folder, or a zip of one, with ``core.yaml``, ``eval_meta_data.csv`` and ``eval_data/``.

``core.yaml`` lists the tasks (label, kind, file, examples to show), the CSV gives what guessing scores. The format is that of
DCLM's bundle as upstream nanochat publishes it; bundles of one's own have it too.
"""

import csv
import io
import json
import random
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from nanochat.errors import BadConfig, BadData

__all__ = ["Bundle", "CoreTask", "Kind", "open_bundle"]

Kind = Literal["multiple_choice", "schema", "language_modeling"]
SHUFFLE_SEED = 1337
"""Upstream's: a task that is cut has the same examples everywhere."""

_NEEDED: dict[str, tuple[str, ...]] = {
    "multiple_choice": ("query", "choices", "gold"), "schema": ("context_options", "continuation", "gold"),
    "language_modeling": ("context", "continuation"),
}


@dataclass(frozen=True)
class CoreTask:
    """One task of a bundle with all its examples, in the order in which they are scored."""

    label: str
    kind: Kind
    shots: int
    """Solved examples that are shown before the question."""
    delimiter: str
    """Between question and answer."""
    chance: float
    """What guessing scores, 0 to 1."""
    examples: list[dict[str, Any]]

    def centred(self, accuracy: float) -> float:
        """Accuracy above chance: 0 for guessing, 1 for all right."""
        return (accuracy - self.chance) / (1.0 - self.chance)


@dataclass(frozen=True)
class Bundle:
    """Tasks of a bundle, in its order."""

    tasks: list[CoreTask]


class _Files:
    """Reads files of a folder or of a zip alike."""

    def __init__(self, place: Path) -> None:
        self.place = place
        if not place.exists():
            raise BadData("there is no evaluation bundle", where=str(place), hint="set run.eval.bundle to a folder or a zip")
        try:
            root: Any = zipfile.Path(place) if place.is_file() else place
        except zipfile.BadZipFile as error:
            raise BadData(f"the bundle is no zip file: {error}", where=str(place)) from error
        inner = [root, *(child for child in root.iterdir() if child.is_dir())]
        found = next((folder for folder in inner if (folder / "core.yaml").is_file()), None)
        if found is None:
            raise BadData("the bundle has no core.yaml", where=str(place))
        self._root: Any = found

    def text(self, name: str) -> str:
        """Text of a file.

        Raises:
            BadData: It is not there, or not UTF-8.
        """
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise BadData(f"{name!r} is outside of the bundle", where=f"{self.place}/core.yaml")
        try:
            with (self._root / name).open("rb") as file:
                content: bytes = file.read()
            return content.decode("utf-8-sig")
        except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile) as error:
            raise BadData(f"{name} cannot be read: {error}", where=str(self.place)) from error


def open_bundle(place: str | Path, max_per_task: int | None = None) -> Bundle:
    """Tasks of a bundle.

    Args:
        place: Folder or zip.
        max_per_task: Examples of each task, at most.

    Raises:
        BadData: It is not there, or a file or line is wrong; the message names it.
    """
    files = _Files(Path(place))
    try:
        entries = yaml.safe_load(files.text("core.yaml"))["icl_tasks"]
        chances = _chances(files.text("eval_meta_data.csv"))
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise BadData(f"the bundle's tables are not understood: {type(error).__name__}: {error}", where=str(place)) from error
    return Bundle([_task(entry, chances, files, max_per_task) for entry in entries])


def _chances(text: str) -> dict[str, float]:
    return {row["Eval Task"]: 0.01 * float(row["Random baseline"]) for row in csv.DictReader(io.StringIO(text))}


def _task(entry: dict[str, Any], chances: dict[str, float], files: _Files, max_per_task: int | None) -> CoreTask:
    where = f"{files.place}/core.yaml"
    try:
        label, kind, file, shots = str(entry["label"]), entry["icl_task_type"], str(entry["dataset_uri"]), int(entry["num_fewshot"][0])
        chance = chances[label]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadData(f"a task is not understood: {type(error).__name__}: {error}", where=where) from error
    if kind not in _NEEDED:
        raise BadConfig(f"task {label} is of kind {kind!r}, which is not known", where=where, hint=f"one of {', '.join(_NEEDED)}")
    name = f"eval_data/{file}"
    examples = [_example(line, kind, f"{files.place}/{name}:{number}") for number, line in enumerate(files.text(name).split("\n"), 1) if line.strip()]
    random.Random(SHUFFLE_SEED).shuffle(examples)
    examples = examples[:max_per_task]
    if len(examples) <= shots:
        raise BadData(f"task {label} has {len(examples)} examples and shows {shots} before each question", where=f"{files.place}/{name}")
    return CoreTask(label, kind, shots, str(entry.get("continuation_delimiter", " ")), chance, examples)


def _example(line: str, kind: str, where: str) -> dict[str, Any]:
    try:
        example = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadData(f"not JSON: {error}", where=where) from error
    missing = [key for key in _NEEDED[kind] if not isinstance(example, dict) or key not in example]
    if missing:
        raise BadData(f"an example of kind {kind} has no {missing[0]}", where=where)
    options: Callable[[], int] = lambda: len(example.get("choices", example.get("context_options", ())))  # noqa: E731
    if kind != "language_modeling" and not (isinstance(example["gold"], int) and 0 <= example["gold"] < options()):
        raise BadData(f"gold {example['gold']!r} names no choice", where=where)
    return example
