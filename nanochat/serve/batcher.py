"""Continuous batching: one thread runs the model; requests join between two steps and leave as soon as they are done.

A prompt is read in pieces, so that a long one does not stall the conversations that are being answered. A request that is
cancelled (its client went away) loses its slot before the next step.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

from nanochat.engine import Engine, Row, Sampling, Step, choose
from nanochat.errors import NotReady
from nanochat.model import KVCache
from nanochat.serve.slots import SlotCache

__all__ = ["Batcher", "Busy", "Counters", "Request"]

PREFILL_TOKENS = 256
"""Prompt tokens of one piece."""

Deliver = Callable[[Step | BaseException], None]
"""Takes the steps of one answer, from the batcher's thread; an exception ends it."""


class Busy(NotReady):
    """The queue is full, or the server is stopping."""


@dataclass
class Counters:
    """What the server has done since it started; read by ``/metrics``."""

    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    rejected: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    busy_s: float = 0.0
    first_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    """Time from request to first token, of the last thousand."""
    first_tokens: int = 0
    first_token_total_s: float = 0.0
    """Count and sum of these times since the start; they only grow, as a scraper takes their rates."""


class Request:
    """One answer that somebody waits for.

    Args:
        prompt: Token ids.
        sampling: How tokens are chosen.
        number: Makes several answers to one prompt differ.
        deliver: Gets the steps.
    """

    def __init__(self, prompt: list[int], sampling: Sampling, number: int, deliver: Deliver) -> None:
        self.prompt, self.sampling, self.deliver = prompt, sampling, deliver
        self.row = Row(number, prompt, f"{sampling.seed} {number}")
        self.cancelled = False
        self.created_s = time.monotonic()
        self.cache: KVCache | None = None
        self.generated = 0

    def cancel(self) -> None:
        """Stop before the next step; may be called from any thread, and twice."""
        self.cancelled = True


State = Literal["running", "draining", "stopped"]


class Batcher:
    """Owns the model.

    Args:
        engine: Model, tokenizer and calculator.
        slots: Answers that are written at the same time.
        queue: Requests that may wait; more are refused.
    """

    def __init__(self, engine: Engine, *, slots: int = 16, queue: int = 64) -> None:
        self.engine, self.counters = engine, Counters()
        self._cache = SlotCache(engine.model, slots, engine.context)
        self._running: list[Request] = []
        self._logits: list[torch.Tensor] = []
        self._waiting: deque[Request] = deque()
        self._limit = queue
        self._changed = threading.Condition()
        self._state: State = "running"
        self._thread = threading.Thread(target=self._loop, name="batcher", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Take no new requests, finish those that run, and end; after the time limit whatever still runs is dropped."""
        with self._changed:
            self._state = "draining"
            self._changed.notify()
        self._thread.join(timeout_s)
        with self._changed:
            self._state = "stopped"
            self._changed.notify()
        self._thread.join(timeout_s)

    @property
    def active(self) -> int:
        """Answers that are being written."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    def submit(self, requests: list[Request]) -> None:
        """Queue requests, all or none.

        Raises:
            Busy: The queue is full, or the server is stopping.
            PromptTooLong: A prompt leaves no room for an answer.
        """
        for request in requests:
            self.engine.check(request.prompt)
        with self._changed:
            free = self._cache.batch - len(self._running)
            if self._state != "running" or len(self._waiting) + len(requests) > self._limit + free:
                self.counters.rejected += len(requests)
                raise Busy("the server is stopping" if self._state != "running" else f"{len(self._waiting)} requests are waiting already")
            self._waiting.extend(requests)
            self.counters.requests += len(requests)
            self._changed.notify()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._running and self._state == "running":
                    self._changed.wait()
                if self._state == "stopped" or (self._state == "draining" and not self._waiting and not self._running):
                    break
            began = time.monotonic()
            try:
                self._work()
            except Exception as error:  # whatever the model does wrong ends the answers at hand, not the server
                self._fail(error)
            self.counters.busy_s += time.monotonic() - began
        self._fail(ConnectionAbortedError("the server has stopped"))

    @torch.inference_mode()
    def _work(self) -> None:
        self._drop_cancelled()
        self._read_prompt()
        if self._running:
            self._step()

    def _drop_cancelled(self) -> None:
        for slot in reversed(range(len(self._running))):
            if self._running[slot].cancelled:
                self.counters.cancelled += 1
                self._leave(slot)
        with self._changed:
            gone = [request for request in self._waiting if request.cancelled]
            self.counters.cancelled += len(gone)
            for request in gone:
                self._waiting.remove(request)

    def _read_prompt(self) -> None:
        """One piece of the first waiting prompt, if a slot is free for it."""
        with self._changed:
            request = self._waiting[0] if self._waiting and self._cache.active < self._cache.batch else None
        if request is None:
            return
        model = self.engine.model
        if request.cache is None:
            request.cache = model.new_cache(1, len(request.prompt))
        piece = request.prompt[request.cache.length : request.cache.length + PREFILL_TOKENS]
        hidden = model.hidden(torch.tensor([piece], dtype=torch.long, device=model.device), request.cache)
        self.counters.prompt_tokens += len(piece)
        if request.cache.length < len(request.prompt):
            return
        logits = model.logits(hidden[:, -1])
        with self._changed:
            self._waiting.remove(request)
        self._cache.join(request.cache)
        request.cache = None
        self._running.append(request)
        self._logits.append(logits[0])

    def _step(self) -> None:
        """Choose every row's next token, tell who waits for it, and compute the logits after it."""
        tokens = self._choose()
        lengths = self._cache.lengths[: self._cache.active].tolist()
        done = []
        for slot, (request, token) in enumerate(zip(self._running, tokens, strict=True)):
            step = self.engine.advance(request.row, token, request.sampling, lengths[slot])
            if step is not None:
                self._deliver(request, step)
            if request.row.done:
                done.append(slot)
        for slot in reversed(done):
            self.counters.finished += 1
            tokens[slot] = tokens[-1]
            tokens.pop()
            self._leave(slot)
        if not self._running:
            return
        model = self.engine.model
        self._cache.begin()
        hidden = model.hidden(torch.tensor(tokens, dtype=torch.long, device=model.device).unsqueeze(1), self._cache)
        self._logits = list(model.logits(hidden[:, -1]))
        self.counters.steps += 1

    def _choose(self) -> list[int]:
        """The next token of each row; rows with equal settings are chosen together."""
        tokens = [0] * len(self._running)
        groups: dict[tuple[float, int, float], list[int]] = {}
        for slot, request in enumerate(self._running):
            if request.row.forced:
                tokens[slot] = request.row.forced[0]
            else:
                s = request.sampling
                groups.setdefault((s.temperature, s.top_k, s.top_p), []).append(slot)
        for slots in groups.values():
            logits = torch.stack([self._logits[slot] for slot in slots])
            uniforms = [self._running[slot].row.uniform() for slot in slots]
            for slot, token in zip(slots, choose(logits, self._running[slots[0]].sampling, uniforms), strict=True):
                tokens[slot] = token
        return tokens

    def _deliver(self, request: Request, step: Step) -> None:
        if request.generated == 0:
            waited = time.monotonic() - request.created_s
            self.counters.first_token_s.append(waited)
            self.counters.first_tokens += 1
            self.counters.first_token_total_s += waited
        if step.token is not None:
            request.generated += 1
            self.counters.generated_tokens += 1
        request.deliver(step)

    def _leave(self, slot: int) -> None:
        last = self._cache.leave(slot)
        self._running[slot], self._logits[slot] = self._running[last], self._logits[last]
        self._running.pop()
        self._logits.pop()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            broken = [*self._running, *(self._waiting if isinstance(error, ConnectionAbortedError) else ())]
            if isinstance(error, ConnectionAbortedError):
                self._waiting.clear()
            elif not self._running and self._waiting:
                broken.append(self._waiting.popleft())  # its prompt was being read
            self._running, self._logits = [], []
        self._cache.active = 0
        self.counters.failed += len(broken)
        for request in broken:
            request.deliver(error)
