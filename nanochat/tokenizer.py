"""Byte-level BPE tokenizer: trained by rustbpe, run by tiktoken, stored as JSON.

The JSON file holds the split pattern, the vocabulary in merge order and the special tokens; nothing in it can execute,
so a tokenizer of unknown origin is safe to open. Special tokens have the ids after the vocabulary, in the order of
`SPECIAL_TOKENS` (karpathy/nanochat 92d63d4).
"""

import base64
import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import rustbpe
import tiktoken

from nanochat.errors import BadConfig, BadData
from nanochat.files import write_atomic

__all__ = ["FILE_NAME", "SPECIAL_TOKENS", "SPLIT_PATTERN", "Tokenizer", "training_texts"]

FILE_NAME = "tokenizer.json"
FORMAT = "nanochat-npu/tokenizer"
VERSION = 1

BOS = "<|bos|>"
SPECIAL_TOKENS = (
    BOS, "<|user_start|>", "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>",
    "<|python_start|>", "<|python_end|>", "<|output_start|>", "<|output_end|>",
)
"""Begin of document, then the brackets of a conversation: user, assistant, a call of the calculator, its result."""

SPLIT_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
"""GPT-4's pattern with at most 2 digits a token, which upstream measured best at 32 k (bpb 0.965; 0.969 with 1, 0.972 with 3)."""

SEGMENT_CHARS = 50_000
"""Texts are encoded in segments of about this length: the regex engine's time and stack grow with runs of one kind of character."""


class Tokenizer:
    """Text to token ids and back.

    Args:
        vocabulary: Bytes of every ordinary token; the index is its id and its merge rank.
        pattern: Regular expression that cuts text into pieces before merging.
        special_tokens: Names of the special tokens; their ids follow the vocabulary.
    """

    def __init__(
        self, vocabulary: Sequence[bytes], *, pattern: str = SPLIT_PATTERN, special_tokens: Sequence[str] = SPECIAL_TOKENS
    ) -> None:
        self.vocabulary = tuple(vocabulary)
        self.pattern = pattern
        self.special_tokens = {name: len(self.vocabulary) + i for i, name in enumerate(special_tokens)}
        self._encoding = tiktoken.Encoding(
            name="nanochat", pat_str=pattern, special_tokens=self.special_tokens,
            mergeable_ranks={token: rank for rank, token in enumerate(self.vocabulary)},
        )
        self.bos_id = self.special_tokens[BOS]

    # -- making and keeping -------------------------------------------------------------------------------------------

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "Tokenizer":
        """A tokenizer whose merges were learnt from texts.

        Args:
            texts: Training text, read once.
            vocab_size: Tokens in all, the 9 special ones included.

        Raises:
            BadConfig: vocab_size leaves no room for the 256 bytes.
            BadData: The text is too little or too uniform for so many merges.
        """
        ordinary = vocab_size - len(SPECIAL_TOKENS)
        if ordinary < 256:
            raise BadConfig(f"vocab_size {vocab_size} is less than 256 bytes + {len(SPECIAL_TOKENS)} special tokens")
        trainer = rustbpe.Tokenizer()
        trainer.train_from_iterator(iter(texts), ordinary, pattern=SPLIT_PATTERN)
        ranked = sorted((rank, bytes(token)) for token, rank in trainer.get_mergeable_ranks())
        if len(ranked) < ordinary:
            reachable = len(ranked) + len(SPECIAL_TOKENS)
            raise BadData(
                f"the text gives only {reachable} tokens, {vocab_size} were asked for", where="tokenizer.vocab_size",
                hint=f"set run.tokenizer.vocab_size to {reachable} or less, or give more text",
            )
        return cls([token for _, token in ranked])

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """The tokenizer that `save` wrote into a folder.

        Raises:
            BadData: There is none, or the file is damaged.
        """
        path = Path(folder) / FILE_NAME
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["format"] != FORMAT or stored["version"] != VERSION:
                raise BadData(f"format {stored['format']} {stored['version']} is not {FORMAT} {VERSION}", where=str(path))
            vocabulary = [base64.b64decode(token, validate=True) for token in stored["vocabulary"]]
            tokenizer = cls(vocabulary, pattern=stored["pattern"], special_tokens=stored["special_tokens"])
        except FileNotFoundError as error:
            raise BadData("there is no tokenizer here", where=str(path), hint="add stage tokenizer before the others") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadData(f"the tokenizer file is damaged: {error}", where=str(path)) from error
        if stored.get("sha256") != tokenizer.fingerprint:
            raise BadData("the tokenizer file is damaged: its checksum does not fit", where=str(path))
        return tokenizer

    def save(self, folder: Path) -> Path:
        """Path of the file written into folder; the write is atomic."""
        folder = Path(folder)
        record = {
            "format": FORMAT, "version": VERSION, "sha256": self.fingerprint, "vocab_size": self.vocab_size, "pattern": self.pattern,
            "special_tokens": list(self.special_tokens),
            "vocabulary": [base64.b64encode(token).decode("ascii") for token in self.vocabulary],
        }
        path = folder / FILE_NAME
        write_atomic(path, json.dumps(record, indent=0) + "\n")
        return path

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over pattern, special tokens and vocabulary: equal if and only if two tokenizers encode alike."""
        digest = hashlib.sha256(json.dumps([self.pattern, list(self.special_tokens)]).encode())
        for token in self.vocabulary:
            digest.update(len(token).to_bytes(4, "big") + token)
        return digest.hexdigest()

    # -- sizes --------------------------------------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        """Ordinary and special tokens together."""
        return len(self.vocabulary) + len(self.special_tokens)

    def token_bytes(self) -> list[int]:
        """Raw bytes that each token id stands for, `vocab_size` entries; 0 for special tokens, so that bpb leaves them out."""
        return [len(token) for token in self.vocabulary] + [0] * len(self.special_tokens)

    # -- text to ids --------------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Names of special tokens inside it are plain text: data cannot smuggle them in."""
        return list(itertools.chain.from_iterable(self._encoding.encode_ordinary(part) for part in _segments(text)))

    def encode_array(self, text: str) -> np.ndarray:
        """As `encode`, as an int32 array that was never a Python list (a third of the time for long texts)."""
        parts = [self._encode_segment(part) for part in _segments(text)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _encode_segment(self, text: str) -> np.ndarray:
        try:
            return self._encoding.encode_to_numpy(text, disallowed_special=()).astype(np.int32)
        except UnicodeEncodeError:  # lone surrogates, which a JSON file can contain
            return np.asarray(self._encoding.encode_ordinary(text), dtype=np.int32)

    def encode_special(self, name: str) -> int:
        """Id of a special token.

        Raises:
            KeyError: There is no special token of this name.
        """
        return self.special_tokens[name]

    # -- ids to text --------------------------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""
        return self._encoding.decode(list(ids))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Raw bytes of token ids, for streaming: a character may span several tokens."""
        return self._encoding.decode_bytes(list(ids))

    # -- conversations ------------------------------------------------------------------------------------------------

    def render_conversation(self, conversation: dict[str, Any], max_tokens: int | None = None) -> tuple[list[int], list[int]]:
        """Token ids and loss mask of a conversation, see `nanochat.conversation.render`."""
        from nanochat.conversation import render

        return render(self, conversation, max_tokens)

    def render_for_completion(self, conversation: dict[str, Any]) -> list[int]:
        """Token ids up to where the assistant begins to answer, see `nanochat.conversation.render_prompt`."""
        from nanochat.conversation import render_prompt

        return render_prompt(self, conversation)


def _segments(text: str) -> list[str]:
    """Text cut where the pattern would cut anyway (before a blank that follows a non-blank), so that ids do not change.

    Only runs of more than `SEGMENT_CHARS` without such a place are cut elsewhere.
    """
    if len(text) <= SEGMENT_CHARS:
        return [text]
    parts, start = [], 0
    while len(text) - start > SEGMENT_CHARS:
        end = start + SEGMENT_CHARS
        cut = end
        while cut > start + 1 and not (text[cut] == " " and text[cut - 1].isalnum()):
            cut -= 1
        end = cut if cut > start + 1 else end
        parts.append(text[start:end])
        start = end
    parts.append(text[start:])
    return parts


def training_texts(texts: Iterable[str], *, max_chars: int, doc_cap: int) -> Iterable[str]:
    """The texts that tokenizer training reads: each cut to doc_cap characters, until max_chars are exceeded."""
    seen = 0
    for text in texts:
        capped = text[:doc_cap]
        seen += len(capped)
        yield capped
        if seen > max_chars:
            return
