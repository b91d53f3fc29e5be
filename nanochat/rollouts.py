"""Answers that a model is rewarded for: sampled, scored, and turned into rows that it learns from.

What an example's samples say depends on (seed, step, example, sample) alone, not on the world size nor on what shares their
batch; so rollouts need no state of their own, and a resumed run or another world size draws the same.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from nanochat.engine import Completion, Engine, Sampling
from nanochat.errors import BadData
from nanochat.tasks.rewards import Rewarded

__all__ = ["Group", "Rollouts", "Row", "advantages", "micro_batches", "pass_at_k"]

SAMPLING_ROWS = 64
"""Rows that are sampled at the same time."""


@dataclass(frozen=True)
class Row:
    """One sampled answer as the model learns from it."""

    tokens: list[int]
    """Prompt, answer, and the stop token if it chose one."""
    chosen: list[int]
    """For each token whether the model chose it; 0 on the prompt and on results of the calculator."""
    advantage: float
    reward: float

    @property
    def trained(self) -> int:
        """Tokens that the model chose."""
        return sum(self.chosen)


@dataclass(frozen=True)
class Group:
    """All samples of one example."""

    example: int
    rows: list[Row]


def advantages(rewards: Sequence[float]) -> list[float]:
    """Reward minus the mean over the samples of one example; not divided by their deviation (arXiv:2503.20783)."""
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def pass_at_k(samples: int, solved: int, k: int) -> float:
    """Chance that at least one of k samples solves it, from `solved` of `samples` that did; unbiased (arXiv:2107.03374, section 2.1)."""
    if samples - solved < k:
        return 1.0
    return 1.0 - math.comb(samples - solved, k) / math.comb(samples, k)


@dataclass(frozen=True)
class Rollouts:
    """Draws answers to a task's examples.

    Args:
        engine: Samples.
        task: Examples and rewards.
        sampling: How; its seed is the run's.
        samples: Answers to each example.
        rank: This rank.
        world_size: Ranks.
    """

    engine: Engine
    task: Rewarded
    sampling: Sampling
    samples: int
    rank: int = 0
    world_size: int = 1

    def examples(self, step: int, count: int) -> list[int]:
        """Numbers of this rank's examples of a step: an epoch goes through all in a seeded order, the next in another."""
        found = []
        for place in range(step * count, (step + 1) * count):
            epoch, at = divmod(place, len(self.task))
            if (place - step * count) % self.world_size == self.rank:
                found.append(_order(len(self.task), self.sampling.seed, epoch)[at])
        return found

    def draw(self, step: int, examples: Sequence[int]) -> list[Group]:
        """Samples of each example with their rewards and advantages.

        Raises:
            BadConfig: The reward function failed.
            PromptTooLong: An example leaves no room for an answer.
        """
        prompts = [self.engine.tokenizer.render_for_completion(self.task[example]) for example in examples]
        seeded = replace(self.sampling, seed=_seed_of(self.sampling.seed, step))
        repeated = [prompt for prompt in prompts for _ in range(self.samples)]
        numbers = [example * self.samples + sample for example in examples for sample in range(self.samples)]
        answers = self.engine.complete(repeated, seeded, SAMPLING_ROWS, numbers)
        groups = []
        for i, (example, prompt) in enumerate(zip(examples, prompts, strict=True)):
            own = answers[i * self.samples : (i + 1) * self.samples]
            rewards = [self.task.reward(example, self.engine.text(answer)) for answer in own]
            rows = [_row(prompt, *entry) for entry in zip(own, rewards, advantages(rewards), strict=True)]
            groups.append(Group(example, rows))
        return groups

    def solved(self, examples: Sequence[int]) -> list[int]:
        """How many of each example's samples earn a reward of 1 or more."""
        return [sum(row.reward >= 1.0 for row in group.rows) for group in self.draw(EVALUATION, examples)]


EVALUATION = -1
"""Step of the random numbers that every evaluation uses, so that two of them differ by the model only."""


def _seed_of(seed: int, step: int) -> int:
    return (seed * 1_000_003 + step + 1) % 2**63


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> list[int]:
    """The numbers below `count` in the order of an epoch; sorted by hash, since generators may change between versions."""
    prefix = f"{seed} {epoch} ".encode()
    return sorted(range(count), key=lambda i: hashlib.blake2b(prefix + str(i).encode(), digest_size=16).digest())


def _row(prompt: list[int], answer: Completion, reward: float, advantage: float) -> Row:
    end = [] if answer.stop is None else [answer.stop]
    tokens = [*prompt, *answer.tokens, *end]
    return Row(tokens, [0] * len(prompt) + answer.sampled + [1] * len(end), advantage, reward)


def micro_batches(rows: Sequence[Row], batch: int, pad: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, targets (-1 where nothing is learnt) and weights (B, T) of `batch` rows at a time, neighbours in length together.

    Raises:
        BadData: There is no row.
    """
    if not rows:
        raise BadData("there is nothing to learn from")
    order = sorted(rows, key=lambda row: len(row.tokens))
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        length = max(len(row.tokens) for row in part)
        tokens = torch.full((len(part), length), pad, dtype=torch.long)
        chosen = torch.zeros((len(part), length), dtype=torch.bool)
        for i, row in enumerate(part):
            tokens[i, : len(row.tokens)] = torch.tensor(row.tokens)
            chosen[i, : len(row.tokens)] = torch.tensor(row.chosen, dtype=torch.bool)
        weights = torch.tensor([row.advantage for row in part], dtype=torch.float32).unsqueeze(1) * chosen[:, 1:]
        targets = tokens[:, 1:].masked_fill(~chosen[:, 1:], -1)
        yield tokens[:, :-1].to(device), targets.to(device), weights.to(device)
