"""Shared memory and the output volume are large enough, and ranks may open enough files."""

import os
import resource
from pathlib import Path

from nanochat.contract import ModelShape, RunFile, Stage
from nanochat.errors import BadConfig
from nanochat.launch.settings import LaunchSettings

__all__ = ["check_disk", "check_files", "check_shm"]

SHM_MIN_BYTES = 256 << 20
"""Kubernetes gives 64 MiB where nobody asks for more; ranks of one node share more than that."""
FILES_MIN = 1024
BYTES_PER_PARAMETER = 12
"""A checkpoint: weights and two moments in float32, at most."""


def check_shm(settings: LaunchSettings, run: RunFile, shm: Path = Path("/dev/shm")) -> None:  # noqa: S108 - the mount itself
    """Compare /dev/shm with what several ranks share.

    Raises:
        BadConfig: It is the container runtime's small default.
    """
    if run.world.device != "npu" or settings.ranks_per_node == 1 or not shm.is_dir():
        return
    found = os.statvfs(shm)
    size = found.f_blocks * found.f_frsize
    if size < SHM_MIN_BYTES:
        raise BadConfig(f"{size >> 20} MiB for {settings.ranks_per_node} ranks", where=str(shm), hint="set resources.shm: 16Gi or more")


def check_disk(settings: LaunchSettings, run: RunFile) -> None:
    """Compare the free space of the job's folder with one checkpoint.

    Raises:
        BadConfig: Not even one would fit.
    """
    if not {Stage.PRETRAIN, Stage.SFT, Stage.RL} & set(run.run.stages):
        return
    model = run.run.model
    needed = ModelShape.of(model, run.run.tokenizer.vocab_size).parameters.total * BYTES_PER_PARAMETER
    found = os.statvfs(settings.job_dir)
    free = found.f_bavail * found.f_frsize
    if free < needed:
        raise BadConfig(
            f"{_size(free)} free, one checkpoint takes up to {_size(needed)}", where=str(settings.job_dir),
            hint="free space on the output volume; nanochat-npu files lists what old jobs keep",
        )


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.2f} MB"


def check_files(settings: LaunchSettings, run: RunFile) -> None:
    """Raise the soft limit of open files as far as it goes; ranks inherit it.

    Raises:
        BadConfig: Even the hard limit is too low for sockets between all ranks.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(FILES_MIN, 4 * settings.world_size)
    if hard not in (resource.RLIM_INFINITY, -1) and hard < needed:
        raise BadConfig(f"{hard} open files are allowed, {settings.world_size} ranks need {needed}", where="ulimit -n", hint="raise the container runtime's limit")
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
