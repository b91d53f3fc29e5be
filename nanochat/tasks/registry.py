"""Tasks by name, for evaluation, fine-tuning and reinforcement learning alike."""

from collections.abc import Callable
from functools import partial

from nanochat.contract import RunConfig
from nanochat.errors import BadConfig
from nanochat.tasks import choices, toy
from nanochat.tasks.common import Task
from nanochat.tasks.gsm8k import Gsm8k
from nanochat.tasks.humaneval import HumanEval
from nanochat.tasks.spelling import Spelling

__all__ = ["CHAT_CORE", "TASKS", "open_task"]

Opener = Callable[[RunConfig, str], Task]

TASKS: dict[str, Opener] = {
    "sums": lambda _run, _split: toy.sums(),
    "facts": lambda _run, _split: toy.facts(),
    "held_out_sums": lambda _run, _split: toy.held_out_sums(),
    "arc-easy": partial(choices.arc, "easy"),
    "arc-challenge": partial(choices.arc, "challenge"),
    "mmlu": choices.mmlu,
    "gsm8k": Gsm8k,
    "humaneval": HumanEval,
    "spelling": lambda run, split: Spelling(split, run.seed),
}
"""Opens a task's "train" or "val" split. The tiny world's tasks are the same in both."""

CHAT_CORE = {"arc-easy": choices.CHANCE, "arc-challenge": choices.CHANCE, "mmlu": choices.CHANCE, "gsm8k": 0.0, "humaneval": 0.0}
"""ChatCORE's tasks, and what guessing scores (karpathy/nanochat 92d63d4, ``scripts/chat_eval.py``)."""


def open_task(name: str, run: RunConfig, split: str) -> Task:
    """A task's examples.

    Args:
        name: As in the run config.
        run: Run config; says where task data lies.
        split: "train" or "val".

    Raises:
        BadConfig: There is no task of this name.
        BadData: Its data is missing or damaged.
    """
    if name not in TASKS:
        raise BadConfig(f"there is no task {name!r}", where="run", hint=f"one of {', '.join(sorted(TASKS))}")
    return TASKS[name](run, split)
