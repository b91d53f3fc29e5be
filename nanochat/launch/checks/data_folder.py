"""The folder of training text is there and readable, where the job does not fill it itself."""

import os
from pathlib import Path

from nanochat.contract import DataSource, RunFile, Stage
from nanochat.errors import BadData
from nanochat.launch.settings import LaunchSettings

__all__ = ["check"]


def check(settings: LaunchSettings, run: RunFile) -> None:
    """Look into run.data.dir, and read from a file there, before NPUs are held.

    Raises:
        BadData: It is missing or may not be read.
    """
    data = run.run.data
    if data.source != DataSource.FOLDER or data.dir is None or not {Stage.TOKENIZER, Stage.PRETRAIN} & set(run.run.stages):
        return
    folder = Path(data.dir)
    try:
        if not folder.is_dir():
            raise BadData("there is no such folder", where=str(folder), hint="correct run.data.dir; on a cluster it lies under storage.data.path")
        # Not os.access: for root it says yes to what a file server then refuses. Hidden files are not ours: training passes over them.
        with os.scandir(folder) as entries:
            first = next((entry.path for entry in entries if entry.is_file() and not entry.name.startswith(".")), None)
        if first is not None:
            with Path(first).open("rb") as file:
                file.read(1)
    except OSError as error:
        raise BadData(
            f"user {os.getuid()} cannot read it: {error.strerror}", where=str(error.filename or folder), hint="security.fs_group, or the modes on the volume",
        ) from error
