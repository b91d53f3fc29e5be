"""Stage data: brings the training text into place and opens it once, so that what is missing or damaged is found before a model is built."""

from typing import Any

from nanochat.context import Context
from nanochat.contract import DataSource
from nanochat.data import open_corpus
from nanochat.data.staging import Progress, stage_data
from nanochat.tasks.staging import missing_bundle, needed_splits, stage_tasks

__all__ = ["check", "run"]

DOWNLOADED = (DataSource.CLIMBMIX, DataSource.FINEWEB_EDU, DataSource.MANIFEST)


def check(context: Context) -> None:
    """Nothing is needed before."""


def run(context: Context) -> dict[str, Any]:
    """Download what is missing and open both splits, on rank 0; gives back how many shards and documents there are.

    Raises:
        BadData: Text is missing, damaged or too little.
        DownloadFailed: Shards could not be had; its code says whether another attempt may help.
    """
    return context.peers.first_does(lambda: _prepare(context))


def _prepare(context: Context) -> dict[str, Any]:
    data = context.run.data
    staged: dict[str, Any] = {}
    if data.source in DOWNLOADED:
        def report(progress: Progress) -> None:
            context.events.emit(
                "step", step=progress.done, steps=progress.total, bytes=progress.bytes_done, bytes_per_s=round(progress.bytes_per_s),
                eta_s=None if progress.eta_s is None else round(progress.eta_s, 1),
            )

        with context.stop.deferred():
            staged = stage_data(data, context.job_dir, report=report, check=context.stop.check)
    if needed_splits(context.run) or missing_bundle(context.run):
        staged["task_files_fetched"] = stage_tasks(context.run)
    splits = open_corpus(data, context.run.seed, context.job_dir)
    counts = {"train": sum(splits.train.block_sizes), "val": sum(splits.val.block_sizes)}
    for name, value in counts.items():
        context.events.emit("eval", step=0, name=f"documents_{name}", value=value)
    return {**staged, **counts, "fingerprint": splits.train.fingerprint}
