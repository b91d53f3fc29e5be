"""The job's folder can be written, before an NPU is held for nothing."""

import os

from nanochat.contract import RunFile
from nanochat.errors import BadConfig
from nanochat.launch.settings import LaunchSettings

__all__ = ["check"]


def check(settings: LaunchSettings, run: RunFile) -> None:
    """Write and remove a small file.

    Raises:
        BadConfig: The folder is missing and cannot be made, is read-only, full, or belongs to another user.
    """
    probe = settings.job_dir / f".probe-node{settings.node_rank}-{os.getpid()}"
    try:
        settings.job_dir.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(b"x")
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise BadConfig(
            f"the job's folder cannot be written: {error.strerror}", where=str(settings.job_dir),
            hint="give the output volume space and a mode that this user may write to (security.fs_group)",
        ) from error
