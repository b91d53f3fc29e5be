"""Examples of CORE tasks as token sequences, and which part of each is scored.

The text is upstream nanochat's to the character (karpathy/nanochat 92d63d4, ``nanochat/core_eval.py``), since scores of different
prompts cannot be compared: solved examples, a blank line after each, then the question. Which examples are shown is upstream's
draw as well.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nanochat.core.bundle import CoreTask
from nanochat.tokenizer import Tokenizer

__all__ = ["Question", "question"]

SHOTS_SEED = 1234


@dataclass(frozen=True)
class Question:
    """Token sequences of one example: one for each choice, or a single one that is to be continued.

    Sequence i is scored from token ``starts[i]`` to its end. All begin with the same `shared` tokens.
    """

    sequences: list[list[int]]
    starts: list[int]
    shared: int
    gold: int | None
    """Number of the right choice; None where the scored tokens have to be the likeliest."""


def question(task: CoreTask, index: int, tokenizer: Tokenizer, max_tokens: int) -> Question:
    """The sequences of an example; those longer than max_tokens lose their beginning."""
    item = task.examples[index]
    shown = _shown(task, index)
    if task.kind == "language_modeling":
        return _continuation(task, item, shown, tokenizer, max_tokens)
    if task.kind == "multiple_choice":
        head = _join(shown, lambda each: f"{each['query']}{task.delimiter}{each['choices'][each['gold']]}")
        texts = [f"{head}{item['query']}{task.delimiter}{choice}" for choice in item["choices"]]
    else:
        head = _join(shown, lambda each: f"{each['context_options'][each['gold']]}{task.delimiter}{each['continuation']}")
        texts = [f"{head}{context}{task.delimiter}{item['continuation']}" for context in item["context_options"]]
    sequences = [_encode(tokenizer, text) for text in texts]
    shared = _common_prefix(sequences)
    if task.kind == "multiple_choice":
        starts = [shared] * len(sequences)
    else:
        common = _common_prefix([sequence[::-1] for sequence in sequences])
        starts = [len(sequence) - common for sequence in sequences]
    return _cut(sequences, starts, item["gold"], max_tokens)


def _shown(task: CoreTask, index: int) -> list[dict[str, Any]]:
    if not task.shots:
        return []
    others = [i for i in range(len(task.examples)) if i != index]
    return [task.examples[i] for i in random.Random(SHOTS_SEED + index).sample(others, task.shots)]


def _join(shown: Sequence[dict[str, Any]], text: Any) -> str:
    return "".join(f"{text(each)}\n\n" for each in shown)


def _continuation(task: CoreTask, item: dict[str, Any], shown: Sequence[dict[str, Any]], tokenizer: Tokenizer, max_tokens: int) -> Question:
    head = _join(shown, lambda each: f"{str(each['context']).strip()}{task.delimiter}{each['continuation']}")
    before = f"{head}{str(item['context']).strip()}{task.delimiter}"
    whole = _encode(tokenizer, f"{before}{item['continuation']}")
    # Blanks at the end go into the continuation's first token. Where a merge spans the seam all the same, upstream stops with
    # an assertion; here the score begins at the first token that differs.
    start = _common_prefix([_encode(tokenizer, before.strip()), whole])
    return _cut([whole], [min(start, len(whole) - 1)], None, max_tokens)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return [tokenizer.bos_id, *tokenizer.encode(text)]


def _common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    shortest = min(map(len, sequences))
    first = sequences[0]
    return next((i for i in range(shortest) if any(sequence[i] != first[i] for sequence in sequences)), shortest)


def _cut(sequences: list[list[int]], starts: list[int], gold: int | None, max_tokens: int) -> Question:
    excess = [max(0, len(sequence) - max_tokens) for sequence in sequences]
    cut = [sequence[over:] for sequence, over in zip(sequences, excess, strict=True)]
    begin = [max(1, start - over) for start, over in zip(starts, excess, strict=True)]
    return Question(cut, begin, min(_common_prefix(cut), *begin), gold)
