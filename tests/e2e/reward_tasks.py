"""Reward functions for tests, named in run configs as ``reward_tasks:NAME``."""

import time
from typing import Any


class Digits:
    """Asked for a digit, the model should say an even one."""

    def __init__(self, factor: float = 1.0) -> None:
        self._factor = factor

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": f"Say a digit, {'abcdefgh'[index]}."}]}

    def reward(self, example: dict[str, Any], answer: str) -> float:
        return self._factor * float(answer.strip() in {"0", "2", "4", "6", "8"})


class Zeroed(Digits):
    """Nothing is rewarded in training; the evaluation still counts even digits."""

    def __init__(self, split: str) -> None:
        super().__init__(1.0 if split == "val" else 0.0)


class Raising(Digits):
    def reward(self, example: dict[str, Any], answer: str) -> float:
        raise KeyError("verdict")


class Hanging(Digits):
    def reward(self, example: dict[str, Any], answer: str) -> float:
        while True:
            time.sleep(0.01)


class NotANumber(Digits):
    def reward(self, example: dict[str, Any], answer: str) -> float:
        return float("nan")


def even(_split: str) -> Digits:
    return Digits()


def zeroed(split: str) -> Zeroed:
    return Zeroed(split)


def raising(_split: str) -> Raising:
    return Raising()


def hanging(_split: str) -> Hanging:
    return Hanging()


def no_number(_split: str) -> NotANumber:
    return NotANumber()
