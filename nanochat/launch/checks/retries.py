"""Failures that the spec allows are not spent yet."""

from nanochat import ledger
from nanochat.contract import RunFile
from nanochat.errors import RetriesSpent
from nanochat.launch.settings import LaunchSettings

__all__ = ["check"]


def check(settings: LaunchSettings, run: RunFile) -> None:
    """Refuse another start after too many failures.

    Raises:
        RetriesSpent: Earlier attempts failed more often than retries.failures allows.
    """
    failed = [entry for entry in ledger.read(settings.job_dir) if entry.failed]
    if len(failed) > run.retries_failures:
        raise RetriesSpent(
            f"{len(failed)} attempts failed, {run.retries_failures} are allowed; the last one: {failed[-1].message}",
            where="retries.failures", hint=f"nanochat-npu explain {run.job}",
        )
