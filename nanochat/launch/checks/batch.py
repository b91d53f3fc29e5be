"""The world that was started is one that the batch was planned for."""

from nanochat.contract import RunFile, Stage, neighbouring_batches
from nanochat.errors import BadConfig
from nanochat.launch.settings import LaunchSettings

__all__ = ["check"]


def check(settings: LaunchSettings, run: RunFile) -> None:
    """Compare tokens per step with what this many ranks do at a time.

    Raises:
        BadConfig: The global batch is not a multiple of device batch x sequence x world size.
    """
    pretrain, batch = run.run.pretrain, run.run.pretrain.tokens_per_step
    if Stage.PRETRAIN not in run.run.stages or batch is None:
        return
    micro = pretrain.device_batch * run.run.model.sequence_len * settings.world_size
    if batch % micro:
        below, above = neighbouring_batches(batch, micro)
        raise BadConfig(
            f"{batch} tokens per step are not a multiple of {micro} = device batch {pretrain.device_batch} x sequence "
            f"{run.run.model.sequence_len} x {settings.world_size} ranks",
            where="run.pretrain.tokens_per_step", hint=f"use {below} or {above}",
        )
