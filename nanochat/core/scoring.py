"""Which examples of a CORE task a model gets right.

Choices are compared by the mean loss of their scored tokens; a continuation is right if each of its tokens is the likeliest.
Two ways give the same answers: `PREFIX` computes what the choices of a question have in common once and goes on from its KV cache,
`PACKED` puts whole sequences of many questions into one padded batch. Upstream does one question a forward pass and computes
the common part for every choice. Logits are made for scored positions only.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from nanochat.core.bundle import CoreTask
from nanochat.core.prompts import Question, question
from nanochat.model import GPT, ROTARY_SPAN
from nanochat.tokenizer import Tokenizer

__all__ = ["Reuse", "score_examples"]

LONG_PREFIX = 32
"""Common tokens from which on going on from a cache is cheaper than computing them in a larger batch."""


class Reuse(StrEnum):
    """How sequences are put before the model; AUTO takes for each question what is cheaper."""

    AUTO = "auto"
    PREFIX = "prefix"
    PACKED = "packed"


@dataclass(frozen=True)
class _Scored:
    """Loss of each scored token of a sequence, and whether it was the likeliest."""

    losses: list[float]
    likeliest: bool

    @property
    def mean(self) -> float:
        return sum(self.losses) / len(self.losses) if self.losses else math.nan


@torch.inference_mode()
def score_examples(
    model: GPT, tokenizer: Tokenizer, task: CoreTask, indices: Iterable[int], *, rows: int = 32, reuse: Reuse = Reuse.AUTO,
    check: Callable[[], None] = lambda: None,
) -> dict[int, bool]:
    """Whether each of these examples is answered right, by its number.

    Args:
        model: In evaluation mode.
        tokenizer: The model's.
        task: The task.
        indices: Numbers of the examples.
        rows: Sequences in a batch.
        reuse: How common beginnings are treated.
        check: Called between batches.
    """
    longest = ROTARY_SPAN * model.shape.sequence_len
    right: dict[int, bool] = {}
    waiting: list[tuple[int, Question]] = []
    for index in indices:
        asked = question(task, index, tokenizer, longest)
        if _goes_on_from_prefix(asked, reuse):
            check()
            right[index] = _verdict(asked, _with_prefix(model, asked))
        else:
            waiting.append((index, asked))
    right |= _packed(model, waiting, rows, tokenizer.bos_id, check)
    return right


def _goes_on_from_prefix(asked: Question, reuse: Reuse) -> bool:
    if reuse is not Reuse.AUTO:
        return reuse is Reuse.PREFIX
    return len(asked.sequences) > 1 and asked.shared >= LONG_PREFIX


def _verdict(asked: Question, scored: Sequence[_Scored]) -> bool:
    if asked.gold is None:
        return scored[0].likeliest
    means = [each.mean for each in scored]
    return means.index(min(means)) == asked.gold


def _with_prefix(model: GPT, asked: Question) -> list[_Scored]:
    shared, sequences = asked.shared, asked.sequences
    tails = [sequence[shared:] for sequence in sequences]
    width = max(map(len, tails))
    single = model.new_cache(1, shared)
    head = model.hidden(_tensor([sequences[0][:shared]], model), single)[:, -1:].expand(len(tails), -1, -1)
    if width > 1:
        cache = model.new_cache(len(tails), shared + width - 1)
        cache.copy_from(single)
        inputs = [[*tail[:-1], *[0] * (width - max(1, len(tail)))] for tail in tails]
        head = torch.cat((head, model.hidden(_tensor(inputs, model), cache)), dim=1)
    # head[i, j] foretells tails[i][j]
    spans = [(start - shared, len(tail)) for start, tail in zip(asked.starts, tails, strict=True)]
    return _score(model, [head[i, first:last] for i, (first, last) in enumerate(spans)], [t[a:b] for t, (a, b) in zip(tails, spans, strict=True)])


def _packed(model: GPT, waiting: Sequence[tuple[int, Question]], rows: int, pad: int, check: Callable[[], None]) -> dict[int, bool]:
    flat = [(index, i) for index, asked in waiting for i in range(len(asked.sequences))]
    questions = dict(waiting)
    flat.sort(key=lambda entry: len(questions[entry[0]].sequences[entry[1]]))
    found: dict[tuple[int, int], _Scored] = {}
    for begin in range(0, len(flat), rows):
        check()
        part = flat[begin : begin + rows]
        sequences = [questions[index].sequences[i] for index, i in part]
        starts = [questions[index].starts[i] for index, i in part]
        width = max(len(sequence) for sequence in sequences)
        hidden = model.hidden(_tensor([[*sequence, *[pad] * (width - len(sequence))] for sequence in sequences], model))
        states = [hidden[r, start - 1 : len(sequence) - 1] for r, (start, sequence) in enumerate(zip(starts, sequences, strict=True))]
        scored = _score(model, states, [sequence[start:] for start, sequence in zip(starts, sequences, strict=True)])
        found |= dict(zip(part, scored, strict=True))
    return {index: _verdict(asked, [found[index, i] for i in range(len(asked.sequences))]) for index, asked in waiting}


def _tensor(rows: list[list[int]], model: GPT) -> Tensor:
    return torch.tensor(rows, dtype=torch.long, device=model.device)


def _score(model: GPT, states: Sequence[Tensor], targets: Sequence[Sequence[int]]) -> list[_Scored]:
    """Scores from states (n, C) of each sequence and the tokens that they should foretell."""
    flat = torch.tensor([token for tokens in targets for token in tokens], dtype=torch.long, device=model.device)
    logits = model.logits(torch.cat(list(states)))
    losses = F.cross_entropy(logits, flat, reduction="none").tolist()
    hits = (logits.argmax(dim=-1) == flat).tolist()
    scored, at = [], 0
    for tokens in targets:
        end = at + len(tokens)
        scored.append(_Scored(losses[at:end], all(hits[at:end])))
        at = end
    return scored
