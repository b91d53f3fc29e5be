"""Spelling: how many times is a letter in a word? Made from a seed, so it needs no files.

Models read tokens and not letters, so they have to learn to take words apart. The answer spells the word, counts with the
calculator, and ends with ``#### number`` as in GSM8K. Words are made of syllables; validation has other words than training.
"""

import random
from typing import Any

from nanochat.tasks.gsm8k import final_number

__all__ = ["Spelling"]

SIZES = {"train": 10_000, "val": 256}
_ONSETS = [
    "b", "br", "c", "cl", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "pl", "pr", "qu", "r", "s", "sh", "sl", "st", "str", "t",
    "th", "tr", "v", "w", "z",
]
_VOWELS = ["a", "ai", "e", "ea", "ee", "i", "o", "oa", "oo", "ou", "u"]
_CODAS = ["", "", "l", "m", "n", "nd", "ng", "p", "r", "rr", "s", "ss", "t", "tt", "x"]
_QUESTIONS = (
    "How many times does the letter {letter} occur in {word}?", "Count the letter {letter} in the word {word}.",
    "In {word}, how often is there a {letter}?",
)


class Spelling:
    """Questions about letters of made-up words.

    Args:
        split: "train" or "val".
        seed: Of the words.
    """

    name = "spelling"

    def __init__(self, split: str, seed: int = 42) -> None:
        self._split, self._seed = split, seed

    def __len__(self) -> int:
        """Number of questions."""
        return SIZES[self._split]

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One question with its worked answer."""
        rng = random.Random(f"{self.name} {self._split} {self._seed} {index}")
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.randint(2, 4)))
        letter = rng.choice(word) if rng.random() < 0.9 else rng.choice("abcdefghijklmnopqrstuvwxyz")
        count = str(word.count(letter))
        parts = [
            {"type": "text", "text": f"{word}: {', '.join(word)}. "}, {"type": "python", "text": f'"{word}".count("{letter}")'},
            {"type": "python_output", "text": count}, {"type": "text", "text": f"\n\n#### {count}"},
        ]
        question = rng.choice(_QUESTIONS).format(letter=letter, word=word)
        return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": parts}]}

    def is_right(self, example: dict[str, Any], answer: str) -> bool:
        """True for the right number after ``####``."""
        return final_number(answer) == final_number(example["messages"][-1]["content"][-1]["text"])
