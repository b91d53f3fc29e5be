"""CORE and ChatCORE of a model, on all ranks together, and their tables."""

import csv
import io
from dataclasses import asdict, dataclass
from typing import Any

from nanochat.core import GPT2_CORE, CoreTask, open_bundle, score_examples
from nanochat.evaluation import Evaluator
from nanochat.model import GPT
from nanochat.tasks.registry import CHAT_CORE, open_task

__all__ = ["Entry", "as_csv", "chat_core", "core"]


@dataclass(frozen=True)
class Entry:
    """One line of a table of scores."""

    task: str
    correct: int
    total: int
    chance: float

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.total if self.total else 0.0

    @property
    def centred(self) -> float:
        """Accuracy above chance: 0 for guessing, 1 for all right."""
        return (self.accuracy - self.chance) / (1.0 - self.chance)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {**asdict(self), "accuracy": self.accuracy, "centred": self.centred}


def _mean(entries: list[Entry]) -> float:
    return sum(entry.centred for entry in entries) / len(entries)


def core(evaluator: Evaluator, model: GPT, step: int, bundle: str, max_per_task: int | None, rows: int) -> dict[str, Any]:
    """CORE: mean over a bundle's tasks of the accuracy above chance; and each task's.

    Raises:
        BadData: The bundle is not there, or wrong.
        EvaluationFailed: On every rank, if it failed on one.
    """
    entries = []
    for task in open_bundle(bundle, max_per_task).tasks:
        entry = _core_task(evaluator, model, task, rows)
        evaluator.tell(step=step, name=f"core/{task.label}", value=entry.accuracy, correct=entry.correct, total=entry.total)
        entries.append(entry)
    evaluator.tell(step=step, name="core", value=_mean(entries))
    return {"value": _mean(entries), "tasks": [entry.as_json() for entry in entries], "reference": GPT2_CORE, "max_per_task": max_per_task}


def _core_task(evaluator: Evaluator, model: GPT, task: CoreTask, rows: int) -> Entry:
    peers = evaluator.context.peers
    mine = range(peers.rank, len(task.examples), peers.size)
    parts = evaluator.together(
        task.label, lambda: sum(score_examples(model, evaluator.tokenizer, task, mine, rows=rows, check=evaluator.context.tick).values())
    )
    return Entry(task.label, sum(parts), len(task.examples), task.chance)


def chat_core(evaluator: Evaluator, model: GPT, step: int, limit: int | None, max_new_tokens: int) -> dict[str, Any]:
    """ChatCORE: mean over its five tasks of the accuracy above chance; and each task's.

    Raises:
        BadData: A task's examples are not there.
        EvaluationFailed: On every rank, if it failed on one.
    """
    entries = []
    for name, chance in CHAT_CORE.items():
        score = evaluator.answers(model, open_task(name, evaluator.context.run, "val"), step, limit, max_new_tokens)
        entries.append(Entry(name, score.correct, score.total, chance))
    evaluator.tell(step=step, name="chatcore", value=_mean(entries))
    return {"value": _mean(entries), "tasks": [entry.as_json() for entry in entries], "max_per_task": limit}


def as_csv(results: dict[str, Any]) -> str:
    """The results of an evaluation as a table, GPT-2's CORE below ours."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("measure", "task", "correct", "total", "accuracy", "centred"))
    for name, value in results.items():
        if isinstance(value, float):
            writer.writerow((name, "", "", "", f"{value:.6f}", ""))
        elif isinstance(value, dict) and "tasks" in value:
            for entry in value["tasks"]:
                writer.writerow((name, entry["task"], entry["correct"], entry["total"], f"{entry['accuracy']:.6f}", f"{entry['centred']:.6f}"))
            writer.writerow((name, "mean", "", "", "", f"{value['value']:.6f}"))
            for model, reference in value.get("reference", {}).items():
                writer.writerow((name, f"mean of {model}", "", "", "", f"{reference:.6f}"))
        elif isinstance(value, dict) and "correct" in value:
            writer.writerow((name, "", value["correct"], value["total"], f"{value['correct'] / max(1, value['total']):.6f}", ""))
    return out.getvalue()


