"""What submitter and trainer agree on: run config, arithmetic, events, exit codes, file names. No torch, no numpy, no I/O.

Import from here; the modules inside may move.
"""

from nanochat.contract import events, layout
from nanochat.contract.arithmetic import (
    REFERENCE_DEPTH,
    Horizon,
    ModelShape,
    ParameterCounts,
    horizon,
    neighbouring_batches,
    windows,
)
from nanochat.contract.exit_codes import FINAL, RESTART, ExitCode, describe, from_returncode, is_failure, may_restart
from nanochat.contract.run import (
    BudgetState,
    CheckpointConfig,
    DataConfig,
    DataSource,
    EvalConfig,
    ModelConfig,
    PretrainConfig,
    RlConfig,
    RunConfig,
    RunFile,
    SftConfig,
    Stage,
    TokenizerConfig,
    TrackingConfig,
    World,
)

__all__ = [
    "FINAL", "REFERENCE_DEPTH", "RESTART", "BudgetState", "CheckpointConfig", "DataConfig", "DataSource", "EvalConfig", "ExitCode",
    "Horizon", "ModelConfig", "ModelShape", "ParameterCounts", "PretrainConfig", "RlConfig", "RunConfig", "RunFile", "SftConfig",
    "Stage", "TokenizerConfig", "TrackingConfig", "World", "describe", "events", "from_returncode", "horizon", "is_failure", "layout",
    "may_restart", "neighbouring_batches", "windows",
]
