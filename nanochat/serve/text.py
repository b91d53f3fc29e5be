"""From tokens to the text that a client sees, piece by piece: whole characters only, stop strings cut off, calls hidden."""

import codecs
from collections.abc import Sequence

from nanochat.tokenizer import Tokenizer

__all__ = ["TextStream"]


class TextStream:
    """Text of one answer.

    Args:
        tokenizer: The model's.
        stop: Strings at which the answer ends; they are not shown.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        special = tokenizer.encode_special
        self._vocabulary = tokenizer.vocabulary
        self._opens = special("<|python_start|>"), special("<|output_start|>")
        self._closes = special("<|python_end|>"), special("<|output_end|>")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = [text for text in stop if text]
        self._held = ""
        self._hidden = False
        self.stopped = False
        """True once a stop string was met; nothing more comes."""

    def push(self, token: int) -> str:
        """New text after a token; "" while a character or a possible stop string is incomplete."""
        if self.stopped:
            return ""
        if token in self._opens:
            self._hidden = True
        elif token in self._closes:
            self._hidden = False
        elif not self._hidden and token < len(self._vocabulary):
            return self._release(self._decoder.decode(self._vocabulary[token]))
        return ""

    def end(self) -> str:
        """What was held back, at the end of the answer."""
        if self.stopped:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        return text + rest

    def _release(self, new: str) -> str:
        text = self._held + new
        found = min((at for at in (text.find(stop) for stop in self._stop) if at >= 0), default=-1)
        if found >= 0:
            self.stopped, self._held = True, ""
            return text[:found]
        keep = max((n for stop in self._stop for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        self._held = text[len(text) - keep :] if keep else ""
        return text[: len(text) - keep] if keep else text
