"""What every task is: examples, each a conversation that ends with the right answer, and a rule that scores an answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nanochat.engine import Engine, Sampling

__all__ = ["ExactMatchTask", "Score", "Task", "score"]


@dataclass(frozen=True)
class Score:
    """How many examples were answered right. `wrong` shows some that were not: question, right answer, given answer."""

    name: str
    correct: int
    total: int
    wrong: tuple[tuple[str, str, str], ...] = ()

    @property
    def accuracy(self) -> float:
        """Share of right answers; 0 where there was no example."""
        return self.correct / self.total if self.total else 0.0


class Task(Protocol):
    """Examples and how answers to them are scored."""

    @property
    def name(self) -> str:
        """Short name, as in a run config."""
        ...

    def __len__(self) -> int:
        """Number of examples."""
        ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One example: a conversation whose last message is the right answer."""
        ...

    def is_right(self, example: dict[str, Any], answer: str) -> bool:
        """True if the answer counts as right."""
        ...


class ExactMatchTask:
    """Questions with one right answer each; an answer is right if it equals it, blanks around it aside.

    Args:
        name: Short name.
        pairs: Questions and answers.
    """

    def __init__(self, name: str, pairs: Sequence[tuple[str, str]]) -> None:
        self.name = name
        self._pairs = pairs

    def __len__(self) -> int:
        """Number of questions."""
        return len(self._pairs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Question and answer as a conversation."""
        question, answer = self._pairs[index]
        return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}

    def is_right(self, example: dict[str, Any], answer: str) -> bool:
        """True for the same text."""
        return answer.strip() == example["messages"][-1]["content"].strip()


def score(engine: Engine, task: Task, *, rank: int = 0, world_size: int = 1, limit: int | None = None, max_new_tokens: int = 64) -> Score:
    """Score of this rank's share of a task's examples (rank, rank + world size, …), answered greedily.

    Add the counts of all ranks for the score of the task. Examples whose question does not fit the context count as wrong.
    """
    examples = [task[i] for i in range(rank, min(len(task), limit or len(task)), world_size)]
    prompts = [engine.tokenizer.render_for_completion(example) for example in examples]
    fits = [i for i, prompt in enumerate(prompts) if len(prompt) < engine.context]
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=0.0)
    answers = [""] * len(examples)
    for i, completion in zip(fits, engine.complete([prompts[i] for i in fits], sampling), strict=True):
        answers[i] = engine.text(completion)
    right = [task.is_right(example, answer) for example, answer in zip(examples, answers, strict=True)]
    wrong = [
        (example["messages"][-2]["content"], str(example["messages"][-1]["content"]), answer)
        for example, answer, good in zip(examples, answers, right, strict=True) if not good
    ]
    return Score(task.name, sum(right), len(examples), tuple(wrong[:5]))
