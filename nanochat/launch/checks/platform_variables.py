"""Variables that platforms set with three different meanings are removed; ours are the only ones that ranks see."""

import os

from nanochat.contract import RunFile
from nanochat.launch.settings import LaunchSettings

__all__ = ["AMBIGUOUS", "check"]

AMBIGUOUS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "RANK_TABLE_FILE")
"""Volcano's pytorch plugin and the Ascend operator set RANK per pod, torchrun per process; a rank table that was not checked here
must not reach HCCL."""


def check(settings: LaunchSettings, run: RunFile) -> None:
    """Forget the platform's ranks."""
    for name in AMBIGUOUS:
        os.environ.pop(name, None)
