"""A tiny world, made from a seed: stories about ten animals, sums, and questions with their answers. No text from elsewhere.

It is small enough that a two-layer model learns all of it in a minute on two cores, and closed, so that *every* single-digit
sum and *every* fact can be scored afterwards. Equal seeds give equal texts on every computer.
"""

import hashlib
import random
from dataclasses import dataclass
from typing import Any

__all__ = ["WORLD", "Animal", "conversations", "documents", "facts", "held_out_sums", "single_digit_sums", "sum_pair"]

Pair = tuple[str, str]
"""Question and the one right answer."""


@dataclass(frozen=True)
class Animal:
    """One inhabitant with the four facts that are known about it."""

    name: str
    kind: str
    colour: str
    home: str
    food: str

    def facts(self) -> tuple[Pair, ...]:
        """The four questions about it with their answers."""
        article = "an" if self.kind[0] in "aeiou" else "a"
        return (
            (f"What is {self.name}?", f"{self.name} is {article} {self.kind}."),
            (f"What colour is {self.name}?", f"{self.name} is {self.colour}."),
            (f"Where does {self.name} live?", f"{self.name} lives in the {self.home}."),
            (f"What does {self.name} eat?", f"{self.name} eats {self.food}."),
        )


WORLD = (
    Animal("Pim", "fox", "red", "mill", "plums"),
    Animal("Ada", "owl", "white", "tower", "nuts"),
    Animal("Bo", "bear", "brown", "cave", "honey"),
    Animal("Cleo", "cat", "black", "barn", "fish"),
    Animal("Dov", "dog", "grey", "boat", "bread"),
    Animal("Eli", "frog", "green", "pond", "flies"),
    Animal("Fay", "hen", "yellow", "garden", "corn"),
    Animal("Gus", "goat", "silver", "hill", "grass"),
    Animal("Hanna", "mouse", "pink", "clock", "cheese"),
    Animal("Ivo", "duck", "blue", "harbour", "seeds"),
)
"""All inhabitants. Ten, with four facts each: 40 facts."""

_WEATHER = ("sunny", "rainy", "windy", "snowy", "foggy")
_PLACES = ("market", "bridge", "forest", "well", "lighthouse")
_THINGS = ("a key", "a lamp", "a drum", "a map", "a kite")
_FEELINGS = ("glad", "tired", "proud", "hungry", "calm")
HELD_OUT_SHARE = 10
"""One in so many two-digit sums is never shown in training."""


def sum_pair(a: int, b: int) -> Pair:
    """Question and answer of a sum."""
    return f"What is {a} + {b}?", f"{a} + {b} = {a + b}."


def single_digit_sums() -> list[Pair]:
    """All 100 sums of two digits 0 to 9."""
    return [sum_pair(a, b) for a in range(10) for b in range(10)]


def facts() -> list[Pair]:
    """All 40 facts of the tiny world."""
    return [pair for animal in WORLD for pair in animal.facts()]


def _is_held_out(a: int, b: int) -> bool:
    return hashlib.sha256(f"{a}+{b}".encode()).digest()[0] % HELD_OUT_SHARE == 0


_TWO_DIGITS = [(a, b) for a in range(10, 50) for b in range(10, 50)]
_TRAIN_SUMS: list[tuple[int, int]] = [pair for pair in _TWO_DIGITS if not _is_held_out(*pair)]


def held_out_sums() -> list[Pair]:
    """Two-digit sums (10 to 49) that no document and no conversation contains."""
    return [sum_pair(a, b) for a, b in _TWO_DIGITS if _is_held_out(a, b)]


def _numbers(rng: random.Random) -> tuple[int, int]:
    return rng.choice(_TRAIN_SUMS) if rng.random() < 0.1 else (rng.randrange(10), rng.randrange(10))


def _story(rng: random.Random) -> str:
    hero, friend = rng.sample(WORLD, 2)
    lines = [
        f"It was a {rng.choice(_WEATHER)} day.",
        f"{hero.facts()[2][1]} {hero.facts()[0][1]} {hero.facts()[1][1]}",
        f"{hero.name} went to the {rng.choice(_PLACES)} and found {rng.choice(_THINGS)}.",
        f"There {hero.name} met {friend.name}. {friend.facts()[rng.randrange(3)][1]}",
        f"{hero.facts()[3][1]} {friend.facts()[3][1]}",
        f"In the evening {rng.choice((hero, friend)).name} was {rng.choice(_FEELINGS)}.",
    ]
    kept = [line for line in lines if rng.random() < 0.85]
    return " ".join(kept or lines[:2])


def _sums(rng: random.Random) -> str:
    lines = []
    for _ in range(rng.randint(3, 8)):
        a, b = _numbers(rng)
        lines.append(f"{a} + {b} = {a + b}.")
    return "\n".join(lines)


def _questions(rng: random.Random) -> str:
    lines = []
    for _ in range(rng.randint(2, 5)):
        question, answer = rng.choice(rng.choice(WORLD).facts()) if rng.random() < 0.5 else sum_pair(*_numbers(rng))
        lines.append(f"{question} {answer}")
    return "\n".join(lines)


def documents(seed: int, count: int) -> list[str]:
    """Texts for pretraining: stories, sums and questions, in about equal parts.

    Args:
        seed: Equal seeds give equal texts.
        count: Number of documents.
    """
    rng = random.Random(f"documents {seed}")
    return [rng.choice((_story, _sums, _questions))(rng) for _ in range(count)]


def conversations(seed: int, count: int) -> list[dict[str, Any]]:
    """Conversations for fine-tuning: mostly one question, some with a second one.

    Every fact and every single-digit sum comes in turn, so that `count` conversations show each about equally often.
    """
    rng = random.Random(f"conversations {seed}")
    pool: list[Pair] = []
    return [_conversation(rng, pool) for _ in range(count)]


def _conversation(rng: random.Random, pool: list[Pair]) -> dict[str, Any]:
    messages: list[dict[str, str]] = []
    for _ in range(2 if rng.random() < 0.2 else 1):
        if rng.random() < 0.1:
            question, answer = sum_pair(*rng.choice(_TRAIN_SUMS))
        else:
            if not pool:
                pool.extend(single_digit_sums() + 2 * facts())
                rng.shuffle(pool)
            question, answer = pool.pop()
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages}
