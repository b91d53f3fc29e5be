"""Stage tokenizer: learns a byte-pair vocabulary from the training text. Rank 0 works, the others wait."""

from typing import Any

from nanochat.compression import by_kind, bytes_per_token
from nanochat.context import Context
from nanochat.contract import layout
from nanochat.data import iter_texts, open_corpus
from nanochat.tokenizer import Tokenizer, training_texts

__all__ = ["check", "run"]

VALIDATION_CHARS = 200_000


def check(context: Context) -> None:
    """The text is opened by `run`, on rank 0, which reports what is wrong with it."""


def run(context: Context) -> dict[str, Any]:
    """Train and store the tokenizer; gives back its size and how well it compresses validation text and kinds of text."""
    return context.peers.first_does(lambda: _train(context))


def _train(context: Context) -> dict[str, Any]:
    settings = context.run.tokenizer
    splits = open_corpus(context.run.data, context.run.seed, context.job_dir)
    texts = training_texts(iter_texts(splits.train), max_chars=settings.max_chars, doc_cap=settings.doc_cap)
    tokenizer = Tokenizer.train(texts, settings.vocab_size)
    tokenizer.save(layout.tokenizer_dir(context.job_dir))
    validation = training_texts(iter_texts(splits.val), max_chars=VALIDATION_CHARS, doc_cap=settings.doc_cap)
    compression = round(bytes_per_token(tokenizer, validation), 4)
    context.events.emit("eval", step=0, name="bytes_per_token", value=compression)
    kinds = {kind: round(value, 4) for kind, value in by_kind(tokenizer).items()}
    return {"vocab_size": tokenizer.vocab_size, "bytes_per_token": compression, "by_kind": kinds, "fingerprint": tokenizer.fingerprint}
