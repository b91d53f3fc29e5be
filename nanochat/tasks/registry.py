"""Tasks by name, for evaluation, fine-tuning and reinforcement learning alike."""

from collections.abc import Callable

from nanochat.contract import RunConfig
from nanochat.errors import BadConfig
from nanochat.tasks import toy
from nanochat.tasks.common import Task

__all__ = ["TASKS", "open_task"]

Opener = Callable[[RunConfig, str], Task]

TASKS: dict[str, Opener] = {
    "sums": lambda _run, _split: toy.sums(),
    "facts": lambda _run, _split: toy.facts(),
    "held_out_sums": lambda _run, _split: toy.held_out_sums(),
}
"""Opens a task's "train" or "val" split. The tiny world's tasks are the same in both."""


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
