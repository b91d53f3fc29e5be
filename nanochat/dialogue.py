"""A dialogue with a model: turns are remembered, the oldest are forgotten when the context is full, text comes as it is made."""

import codecs
from collections.abc import Iterator
from typing import Any

from nanochat.engine import Engine, PromptTooLong, Sampling
from nanochat.trained import TrainedModel

__all__ = ["Dialogue"]

ANSWER_ROOM = 4
"""An answer has at least 1/4 of the context; older turns make room for it."""


class Dialogue:
    """Turns of a user and a model. A model that was only pretrained continues each text on its own.

    Args:
        trained: The model.
        sampling: How tokens are chosen.
    """

    def __init__(self, trained: TrainedModel, sampling: Sampling) -> None:
        self.trained, self.sampling = trained, sampling
        self.engine = Engine(trained.model, trained.tokenizer, fixed=True)
        self.messages: list[dict[str, Any]] = []
        self.system = ""
        """Instruction before the first turn; "" for none. It is kept by `clear`."""
        self.forgotten = 0
        """Turns that were dropped to make room."""
        self._turn = 0

    def clear(self) -> None:
        """Forgets all turns."""
        self.messages, self.forgotten = [], 0

    def conversation(self) -> list[dict[str, Any]]:
        """The turns that are remembered, after the instruction if there is one."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.messages]

    def answer(self, text: str) -> Iterator[str]:
        """The answer, piece by piece; it is remembered as far as it was taken.

        Raises:
            PromptTooLong: The text alone does not fit.
        """
        prompt = self._prompt(text)
        said: list[str] = []
        try:
            for piece in self._pieces(prompt):
                said.append(piece)
                yield piece
        finally:
            if self.trained.chats:
                self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "".join(said) or " "}]
            self._turn += 1

    def _prompt(self, text: str) -> list[int]:
        tokenizer = self.trained.tokenizer
        if not self.trained.chats:
            prompt = [tokenizer.bos_id, *tokenizer.encode(text)]
            self.engine.check(prompt)
            return prompt
        while True:
            prompt = tokenizer.render_for_completion({"messages": [*self.conversation(), {"role": "user", "content": text}]})
            room = self.engine.context - len(prompt)
            if not self.messages and room < 1:
                raise PromptTooLong(f"the message has {len(prompt)} tokens, the model's context {self.engine.context}", hint="shorten it")
            if not self.messages or room >= min(self.sampling.max_new_tokens, self.engine.context // ANSWER_ROOM):
                return prompt
            self.messages = self.messages[2:]
            self.forgotten += 1

    def _pieces(self, prompt: list[int]) -> Iterator[str]:
        tokenizer = self.trained.tokenizer
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        shown = {
            tokenizer.encode_special("<|python_start|>"): "[", tokenizer.encode_special("<|python_end|>"): "",
            tokenizer.encode_special("<|output_start|>"): " = ", tokenizer.encode_special("<|output_end|>"): "]",
        }
        ordinary = len(tokenizer.vocabulary)
        for step in self.engine.stream([prompt], self.sampling, [self._turn]):
            if step.token is None:
                continue
            piece = decoder.decode(tokenizer.vocabulary[step.token]) if step.token < ordinary else shown.get(step.token, "")
            if piece:
                yield piece
        rest = decoder.decode(b"", final=True)
        if rest:
            yield rest
