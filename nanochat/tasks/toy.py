"""The tiny world's tasks: every single-digit sum, every fact, and sums that training never shows."""

from nanochat.data import toy
from nanochat.tasks.common import ExactMatchTask

__all__ = ["facts", "held_out_sums", "sums", "toy_tasks"]


def sums() -> ExactMatchTask:
    """All 100 single-digit sums."""
    return ExactMatchTask("sums", toy.single_digit_sums())


def facts() -> ExactMatchTask:
    """All 40 facts of the tiny world."""
    return ExactMatchTask("facts", toy.facts())


def held_out_sums() -> ExactMatchTask:
    """Two-digit sums that no training text contains: what is left here is arithmetic, not memory."""
    return ExactMatchTask("held_out_sums", toy.held_out_sums())


def toy_tasks() -> tuple[ExactMatchTask, ...]:
    """All three, in the order in which they are shown."""
    return sums(), facts(), held_out_sums()
