"""Sampling from a model: many prompts at once with a KV cache, stop tokens, and the calculator.

All rows of a batch are at the same position. Prompts of different length share a batch nevertheless: the batch begins with as
many tokens as the shortest prompt has, and the rows with longer prompts are led along the rest of theirs. A row's random
numbers come from a generator of its own, so its text does not depend on what else is in the batch, nor on the device.
"""

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from nanochat.calculator import Calculator
from nanochat.decoding import Decoder
from nanochat.errors import BadConfig, BadData
from nanochat.model import GPT, KVCache
from nanochat.tokenizer import Tokenizer

__all__ = ["Completion", "Engine", "PromptTooLong", "Row", "Sampling", "Step", "choose"]

Finish = Literal["stop", "length", "context"]
"""Why a row ended: it said so, it has as many tokens as were asked for, or the model's context is full."""


class PromptTooLong(BadData):
    """The prompt leaves no room for an answer in the model's context."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Args:
        max_new_tokens: Tokens of the answer, at most; fewer where the context ends first.
        temperature: 0 takes the likeliest token always.
        top_k: Only the k likeliest; 0 for all.
        top_p: Only the likeliest that together have this probability.
        seed: Equal seeds give equal texts.
    """

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 42

    def __post_init__(self) -> None:
        """Refuses values that make no sense.

        Raises:
            BadConfig: Names the value.
        """
        allowed = {
            "max_new_tokens": self.max_new_tokens >= 1, "temperature": 0 <= self.temperature < float("inf"),
            "top_k": self.top_k >= 0, "top_p": 0 < self.top_p <= 1,
        }
        for name, good in allowed.items():
            if not good:
                raise BadConfig(f"{getattr(self, name)} is not possible", where=name)


@dataclass
class Completion:
    """An answer: its tokens without the stop token, for each whether the model chose it (1) or the calculator gave it (0)."""

    tokens: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    finish: Finish = "length"
    stop: int | None = None
    """The stop token that the model chose, if that ended it."""


@dataclass(frozen=True)
class Step:
    """One more token of one row. `finish` is set with a row's last step, which has no token if a stop token ended it."""

    row: int
    token: int | None
    sampled: bool
    finish: Finish | None = None
    stop: int | None = None


@torch.inference_mode()
def choose(logits: torch.Tensor, sampling: Sampling, uniforms: Sequence[float]) -> list[int]:
    """The next token of each row.

    Args:
        logits: (B, V).
        sampling: Temperature, top-k and top-p.
        uniforms: One number in [0, 1) for each row; it picks from the cumulative distribution.
    """
    if sampling.temperature == 0:
        return logits.argmax(dim=-1).tolist()
    scaled, order = logits.float() / sampling.temperature, None
    if sampling.top_k or sampling.top_p < 1:
        k = min(sampling.top_k or logits.size(-1), logits.size(-1))
        scaled, order = torch.topk(scaled, k, dim=-1)  # sorted, likeliest first
    probabilities = torch.softmax(scaled, dim=-1)
    cumulative = probabilities.cumsum(dim=-1)
    if sampling.top_p < 1:
        probabilities = probabilities.masked_fill(cumulative - probabilities >= sampling.top_p, 0.0)
        cumulative = probabilities.cumsum(dim=-1)
    picks = torch.tensor(uniforms, dtype=torch.float32).unsqueeze(1).to(logits.device) * cumulative[:, -1:]
    index = (cumulative <= picks).sum(dim=-1, keepdim=True).clamp(max=cumulative.size(-1) - 1)
    return (index if order is None else order.gather(1, index)).squeeze(1).tolist()


class Row:
    """State of one row: what it still has to follow, and what it has said.

    Args:
        number: Which answer it is; comes back in each `Step`.
        prompt: Its token ids.
        random_key: Seeds its random numbers.
    """

    def __init__(self, number: int, prompt: Sequence[int], random_key: str) -> None:
        self.number = number
        self.prompt = prompt
        self.forced: deque[int] = deque()
        self.call: list[int] | None = None
        self.length = 0
        self.done = False
        self._rng = random.Random(random_key)

    def uniform(self) -> float:
        """The row's next random number in [0, 1)."""
        return self._rng.random()


class Engine:
    """Generates with a model. Not for two threads at once.

    Args:
        model: In evaluation or training mode; it is only read.
        tokenizer: The model's.
        calculator: Works out calls; default: our own. One that always says None lets the model call in vain.
        fixed: The model's weights will not change, so what is prepared for decoding is kept from answer to answer.
    """

    def __init__(
        self, model: GPT, tokenizer: Tokenizer, calculator: Callable[[str], str | None] | None = None, *, fixed: bool = False
    ) -> None:
        self.model, self.tokenizer, self._fixed = model, tokenizer, fixed
        self._decoder: Decoder | None = None
        self._calculator = Calculator() if calculator is None else calculator
        special = tokenizer.encode_special
        self._stops = frozenset((special("<|assistant_end|>"), tokenizer.bos_id))
        self._python = special("<|python_start|>"), special("<|python_end|>")
        self._output = special("<|output_start|>"), special("<|output_end|>")

    @property
    def context(self) -> int:
        """Tokens of prompt and answer together, at most: the length that the model was trained with."""
        return self.model.shape.sequence_len

    def check(self, prompt: Sequence[int]) -> None:
        """Refuses a prompt that is empty or too long.

        Raises:
            PromptTooLong: There is no room for a single token after it.
            BadData: It is empty.
        """
        if not prompt:
            raise BadData("the prompt is empty")
        if len(prompt) >= self.context:
            raise PromptTooLong(f"the prompt has {len(prompt)} tokens, the model's context {self.context}", hint="shorten the prompt")

    @torch.inference_mode()
    def stream(self, prompts: Sequence[Sequence[int]], sampling: Sampling, numbers: Sequence[int] | None = None) -> Iterator[Step]:
        """Tokens as they come, step by step, row by row.

        Args:
            prompts: Token ids; one answer for each. Equal prompts get different answers, as rows have random numbers of their own.
            sampling: How tokens are chosen.
            numbers: Seeds a row's random numbers together with `sampling.seed`; default: its place in prompts.

        Raises:
            PromptTooLong: A prompt leaves no room.
        """
        with self._prepared():
            yield from self._stream(prompts, sampling, numbers)

    @contextlib.contextmanager
    def _prepared(self) -> Iterator[None]:
        """Begins and ends without what was prepared from weights that may change: it would be of old ones, and its memory is for learning."""
        self._renew()
        try:
            yield
        finally:
            self._renew()

    def _renew(self) -> None:
        if not self._fixed:
            self._decoder = None

    def _stream(self, prompts: Sequence[Sequence[int]], sampling: Sampling, numbers: Sequence[int] | None) -> Iterator[Step]:
        for prompt in prompts:
            self.check(prompt)
        keys = range(len(prompts)) if numbers is None else numbers
        rows = [Row(i, prompt, f"{sampling.seed} {key}") for i, (prompt, key) in enumerate(zip(prompts, keys, strict=True))]
        if not rows:
            return
        longest = max(map(len, prompts))
        cache, logits = self._prefill(rows, min(self.context, longest + sampling.max_new_tokens))
        step_on: Callable[[list[int], KVCache], torch.Tensor] | None = None
        while rows:
            tokens = self._next_tokens(rows, logits, sampling)
            for row, token in zip(rows, tokens, strict=True):
                step = self.advance(row, token, sampling, cache.length)
                if step is not None:
                    yield step
            keep = [at for at, row in enumerate(rows) if not row.done]
            if not keep:
                return
            if 2 * len(keep) <= len(rows):  # finished rows ride along until they are half of the batch
                cache = _select(self.model, cache, keep)
                rows, tokens = [rows[i] for i in keep], [tokens[i] for i in keep]
            step_on = step_on or self._stepper(len(rows))
            logits = step_on(tokens, cache)

    @torch.inference_mode()
    def complete(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, batch: int = 64, numbers: Sequence[int] | None = None
    ) -> list[Completion]:
        """An answer to each prompt, in order; at most `batch` rows are worked on at the same time.

        Args:
            prompts: Token ids.
            sampling: How tokens are chosen.
            batch: Rows.
            numbers: As for `stream`: what a row says depends on its number, and not on what else is asked for.

        Raises:
            PromptTooLong: A prompt leaves no room.
        """
        results = [Completion() for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # neighbours in length share a batch
        with self._prepared():
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                for step in self._stream([prompts[i] for i in chosen], sampling, chosen if numbers is None else [numbers[i] for i in chosen]):
                    result = results[chosen[step.row]]
                    if step.token is not None:
                        result.tokens.append(step.token)
                        result.sampled.append(int(step.sampled))
                    if step.finish is not None:
                        result.finish, result.stop = step.finish, step.stop
        return results

    def text(self, completion: Completion) -> str:
        """What the assistant says in an answer: text only, without calls of the calculator and their results."""
        spoken, inside = [], False
        for token in completion.tokens:
            if token in (self._python[0], self._output[0]):
                inside = True
            elif token in (self._python[1], self._output[1]):
                inside = False
            elif not inside and token < len(self.tokenizer.vocabulary):
                spoken.append(token)
        return self.tokenizer.decode(spoken)

    # -- one step -----------------------------------------------------------------------------------------------------

    def _prefill(self, rows: list[Row], max_len: int) -> tuple[KVCache, torch.Tensor]:
        """Cache and last logits (B, V) after the tokens that all rows begin with; equal rows are computed once."""
        shared = min(len(row.prompt) for row in rows)
        cache = self.model.new_cache(len(rows), max_len)
        heads = [list(row.prompt[:shared]) for row in rows]
        if all(head == heads[0] for head in heads):
            single = self.model.new_cache(1, shared)
            logits = self._forward(heads[:1], single).expand(len(rows), -1)
            cache.copy_from(single)
        else:
            logits = self._forward(heads, cache)
        for row in rows:
            row.forced.extend(row.prompt[shared:])
        return cache, logits

    def _stepper(self, rows: int) -> Callable[[list[int], KVCache], torch.Tensor]:
        """What takes one more token of each row; rows as they mostly are."""
        if self._decoder is None or (rows > 1 and self._decoder.rows == 1):
            self._decoder = Decoder(self.model, rows)
        return self._decoder.step

    def _forward(self, tokens: list[list[int]], cache: KVCache) -> torch.Tensor:
        hidden = self.model.hidden(torch.tensor(tokens, dtype=torch.long, device=self.model.device), cache)
        return self.model.logits(hidden[:, -1])  # of the last position only: a prompt's other logits are not needed

    def _next_tokens(self, rows: list[Row], logits: torch.Tensor, sampling: Sampling) -> list[int]:
        led = [bool(row.forced) or row.done for row in rows]
        if all(led):
            chosen = [0] * len(rows)
        else:
            chosen = choose(logits, sampling, [0.0 if skip else row.uniform() for row, skip in zip(rows, led, strict=True)])
        return [row.forced[0] if row.forced else token for row, token in zip(rows, chosen, strict=True)]

    def advance(self, row: Row, token: int, sampling: Sampling, position: int) -> Step | None:
        """What the token at a position (0-based, so many tokens come before it) means for a row; None where the row is finished already, or still within its prompt."""
        if row.done:
            return None
        forced = bool(row.forced)
        if forced:
            row.forced.popleft()
        if position < len(row.prompt):
            return None
        row.length += 1
        if token in self._stops and not forced:
            row.done = True
            return Step(row.number, None, True, "stop", token)
        self._follow_call(row, token)
        finish: Finish | None = None
        if position + 1 >= self.context:
            finish = "context"
        if row.length >= sampling.max_new_tokens:
            finish = "length"
        row.done = finish is not None
        return Step(row.number, token, not forced, finish)

    def _follow_call(self, row: Row, token: int) -> None:
        """Notes a call of the calculator; at its end the result is what the row has to say next."""
        if token == self._python[0]:
            row.call = []
        elif token == self._python[1] and row.call is not None:
            result = self._calculator(self.tokenizer.decode(row.call)) if row.call else None
            if result is not None:
                row.forced.extend((self._output[0], *self.tokenizer.encode(result), self._output[1]))
            row.call = None
        elif row.call is not None:
            row.call.append(token)


def _select(model: GPT, cache: KVCache, rows: list[int]) -> KVCache:
    """A cache with some of the rows of another."""
    smaller = model.new_cache(len(rows), cache.max_len)
    index = torch.tensor(rows, device=cache.data.device)
    smaller.data[:, :, :, : cache.length] = cache.data[:, :, :, : cache.length].index_select(2, index)
    smaller.length = cache.length
    smaller.previous = None if cache.previous is None else cache.previous.index_select(0, index)
    return smaller
