"""Multiple choice, answered with a letter: ARC and MMLU.

Files: ARC as ``allenai/ai2_arc`` has it (question, choices {text, label}, answerKey), MMLU as ``cais/mmlu`` (question, choices,
answer). The answer is the likeliest of the letters, not whatever the model would say, so a model that only just learnt to answer
can be measured (karpathy/nanochat 92d63d4, ``scripts/chat_eval.py``, does so too).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nanochat.contract import RunConfig
from nanochat.errors import BadData
from nanochat.model import GPT
from nanochat.tasks.common import Score
from nanochat.tasks.files import read_examples, require_keys
from nanochat.tokenizer import Tokenizer

__all__ = ["CHANCE", "ChoiceTask", "arc", "mmlu", "score_choices"]

CHANCE = 0.25
"""What guessing is taken to score in ChatCORE, also for the few questions with three or five choices."""
SPLITS = {"train": "train", "val": "test"}


@dataclass(frozen=True)
class Question:
    """A question, its choices by letter, and the letter of the right one."""

    text: str
    choices: tuple[tuple[str, str], ...]
    answer: str


class ChoiceTask:
    """Questions to be answered with a letter.

    Args:
        name: Short name.
        questions: The questions.
    """

    def __init__(self, name: str, questions: Sequence[Question]) -> None:
        self.name, self._questions = name, questions

    def __len__(self) -> int:
        """Number of questions."""
        return len(self._questions)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Question and right letter as a conversation; `letters` are those that can be answered."""
        question = self._questions[index]
        lines = [question.text, "", *(f"{letter}) {choice}" for letter, choice in question.choices), "", "Which one is right? Answer with its letter alone."]
        return {
            "messages": [{"role": "user", "content": "\n".join(lines)}, {"role": "assistant", "content": question.answer}],
            "letters": [letter for letter, _ in question.choices],
        }

    def is_right(self, example: dict[str, Any], answer: str) -> bool:
        """True for the right letter, blanks around it aside."""
        return answer.strip() == str(example["messages"][-1]["content"])


def arc(subset: str, run: RunConfig, split: str) -> ChoiceTask:
    """ARC ``easy`` or ``challenge``."""
    name = f"arc-{subset}"
    records = require_keys(read_examples(run, name, SPLITS[split]), ("question", "choices", "answerKey"), name, split)
    return ChoiceTask(name, _questions(name, records, lambda r: (r["choices"]["label"], r["choices"]["text"], str(r["answerKey"]))))


def mmlu(run: RunConfig, split: str) -> ChoiceTask:
    """MMLU; its training split is the auxiliary one."""
    records = require_keys(read_examples(run, "mmlu", "auxiliary_train" if split == "train" else SPLITS[split]), ("question", "choices", "answer"), "mmlu", split)
    letters = "ABCDEFGHIJ"
    return ChoiceTask("mmlu", _questions("mmlu", records, lambda r: (letters, r["choices"], letters[int(r["answer"])])))


def _questions(
    task: str, records: Sequence[dict[str, Any]], read: Callable[[dict[str, Any]], tuple[Sequence[str], Sequence[str], str]]
) -> list[Question]:
    """The questions of records, of which `read` takes letters, choices and the right letter."""
    questions = []
    for number, record in enumerate(records):
        try:
            labels, choices, answer = read(record)
            pairs = tuple((str(label), str(choice)) for label, choice in zip(labels, choices, strict=False))
        except (LookupError, TypeError, ValueError) as error:
            raise BadData(f"example {number} of {task} is not as it should be: {error}", where=task) from error
        if answer not in [label for label, _ in pairs]:
            raise BadData(f"example {number} of {task}: the answer {answer!r} is none of the choices", where=task)
        questions.append(Question(str(record["question"]), pairs, answer))
    return questions


@torch.inference_mode()
def score_choices(
    model: GPT, tokenizer: Tokenizer, task: ChoiceTask, indices: Sequence[int], *, rows: int = 32, check: Callable[[], None] = lambda: None
) -> Score:
    """Score of these examples: right where the right letter's logit is the highest of the letters' after the prompt.

    Examples whose prompt does not fit the context count as wrong.
    """
    examples = {i: task[i] for i in indices}
    prompts = {i: tokenizer.render_for_completion(example) for i, example in examples.items()}
    fitting = sorted((i for i, prompt in prompts.items() if len(prompt) <= model.shape.sequence_len), key=lambda i: len(prompts[i]))
    answers = dict.fromkeys(examples, "")
    for start in range(0, len(fitting), rows):
        check()
        part = fitting[start : start + rows]
        width = len(prompts[part[-1]])
        tokens = torch.tensor([[*prompts[i], *[0] * (width - len(prompts[i]))] for i in part], device=model.device)
        last = torch.tensor([len(prompts[i]) - 1 for i in part], device=model.device)
        hidden = model.hidden(tokens)
        logits = model.logits(hidden[torch.arange(len(part), device=model.device), last]).tolist()
        for i, row in zip(part, logits, strict=True):
            answers[i] = max(examples[i]["letters"], key=lambda letter: row[tokenizer.encode(letter)[0]])
    right = {i: task.is_right(example, answers[i]) for i, example in examples.items()}
    wrong = [(str(e["messages"][0]["content"]), str(e["messages"][-1]["content"]), answers[i]) for i, e in examples.items() if not right[i]]
    return Score(task.name, sum(right.values()), len(examples), tuple(wrong[:5]))
