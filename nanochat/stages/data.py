"""Stage data: opens the training text once, so that missing or damaged text is found before a model is built."""

from typing import Any

from nanochat.context import Context
from nanochat.data import open_corpus

__all__ = ["check", "run"]


def check(context: Context) -> None:
    """Nothing is needed before."""


def run(context: Context) -> dict[str, Any]:
    """Open both splits on rank 0; gives back how many documents they have."""
    return context.peers.first_does(lambda: _count(context))


def _count(context: Context) -> dict[str, Any]:
    splits = open_corpus(context.run.data, context.run.seed, context.job_dir)
    counts = {"train": sum(splits.train.block_sizes), "val": sum(splits.val.block_sizes)}
    for name, value in counts.items():
        context.events.emit("eval", step=0, name=f"documents_{name}", value=value)
    return {**counts, "fingerprint": splits.train.fingerprint}
