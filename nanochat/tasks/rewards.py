"""What reinforcement learning is told: examples, and for each answer a number that says how good it is.

A task is one of ours by name, or a function of one's own: ``module:function`` or ``path/to/file.py:function``. The function is
called with "train" or "val" and gives back an object with ``len()``, ``[i]`` (a conversation that ends with a user turn, or with
an answer that is not shown to the model) and ``reward(example, answer) -> float``.

A reward function is somebody's experiment, so it is watched: one that raises, takes too long or gives no number ends the job with
an error that names it and the example, instead of training on nonsense.
"""

import importlib
import importlib.util
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Protocol

from nanochat.contract import DataSource, RunConfig
from nanochat.errors import BadConfig
from nanochat.tasks.common import Task
from nanochat.tasks.registry import open_task

__all__ = ["RewardTask", "Rewarded", "open_reward_task"]


class RewardTask(Protocol):
    """Examples, and how good an answer is."""

    def __len__(self) -> int:
        """Number of examples."""
        ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One example: a conversation; a last assistant message is left out of the prompt."""
        ...

    def reward(self, example: dict[str, Any], answer: str) -> float:
        """How good the answer is; 1 counts as solved, usually 0 is the other end."""
        ...


class _OfTask:
    """One of our tasks: 1 for a right answer, 0 for any other."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __len__(self) -> int:
        return len(self._task)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._task[index]

    def reward(self, example: dict[str, Any], answer: str) -> float:
        return float(self._task.is_right(example, answer))


class Rewarded:
    """A reward task whose rewards can be relied upon: finite numbers, in time, or a named error.

    Args:
        name: As in the run config, for messages.
        task: The task.
        timeout_s: Seconds that one reward may take.
    """

    def __init__(self, name: str, task: RewardTask, timeout_s: float) -> None:
        self.name, self._task, self._timeout_s = name, task, timeout_s

    def __len__(self) -> int:
        """Number of examples."""
        return len(self._task)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One example.

        Raises:
            BadConfig: The task cannot give it.
        """
        try:
            return self._task[index]
        except Exception as error:
            raise self._failed(f"example {index} cannot be had: {type(error).__name__}: {error}") from error

    def reward(self, index: int, answer: str) -> float:
        """How good an answer to example number `index` is.

        Raises:
            BadConfig: The reward function raised, took too long, or gave no finite number.
        """
        example = self[index]
        try:
            with _time_limit(self._timeout_s):
                value = self._task.reward(example, answer)
        except _TooSlow:
            raise self._failed(
                f"the reward of example {index} took more than {self._timeout_s:g} s", hint="raise run.rl.reward_timeout_s, or correct the function"
            ) from None
        except Exception as error:
            raise self._failed(f"the reward function raised {type(error).__name__}: {error} (example {index})") from error
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise self._failed(f"the reward of example {index} is {value!r}, not a number") from error
        if not math.isfinite(number):
            raise self._failed(f"the reward of example {index} is {number}")
        return number

    def _failed(self, message: str, hint: str | None = None) -> BadConfig:
        return BadConfig(message, where=f"run.rl.task {self.name}", hint=hint or "correct the function; the last checkpoint is kept")


class _TooSlow(BaseException):
    """Not an Exception, so that a reward function's own ``except Exception`` does not swallow it."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises `_TooSlow` inside after so long. Only Python code of the main thread can be interrupted so; anything else is caught
    by the launcher, which takes a silent rank for lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise _TooSlow

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def open_reward_task(run: RunConfig, split: str) -> Rewarded:
    """The task that ``run.rl.task`` names.

    Args:
        run: Run config.
        split: "train" or "val".

    Raises:
        BadConfig: There is no such task or function, or it does not give examples and rewards.
        BadData: The task's data is missing.
    """
    name = run.rl.task
    if ":" in name:
        task = _call(name, _function(name), split)
    else:
        task = _OfTask(open_task("sums" if name == "auto" and run.data.source is DataSource.TOY else name, run, split))
    if not len(task):
        raise BadConfig(f"the task has no examples for {split}", where=f"run.rl.task {name}")
    return Rewarded(name, task, run.rl.reward_timeout_s)


def _function(name: str) -> Callable[[str], RewardTask]:
    place, _, attribute = name.rpartition(":")
    try:
        module = _file(place) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:
        raise BadConfig(
            f"{place} cannot be imported: {type(error).__name__}: {error}", where="run.rl.task",
            hint="the module has to be in the image or on PYTHONPATH; a path to a .py file works as well",
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise BadConfig(f"{place} has no function {attribute!r}", where="run.rl.task")
    function: Callable[[str], RewardTask] = found
    return function


def _file(place: str) -> ModuleType:
    path = Path(place)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"nanochat_reward_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up there
    spec.loader.exec_module(module)
    return module


def _call(name: str, function: Callable[[str], RewardTask], split: str) -> RewardTask:
    try:
        task = function(split)
    except Exception as error:
        raise BadConfig(f"{name}({split!r}) raised {type(error).__name__}: {error}", where="run.rl.task") from error
    missing = [part for part in ("__len__", "__getitem__", "reward") if not hasattr(task, part)]
    if missing:
        raise BadConfig(f"what {name}({split!r}) gives has no {missing[0]}", where="run.rl.task", hint="see nanochat.tasks.rewards.RewardTask")
    return task
