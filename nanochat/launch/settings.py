"""What a launcher is told by its environment, checked."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from nanochat.contract import RunFile, layout
from nanochat.errors import BadConfig

__all__ = ["LaunchSettings", "read_run_file", "read_settings"]


@dataclass(frozen=True)
class LaunchSettings:
    """Place of this launcher in the job."""

    job_dir: Path
    run_file: Path
    nodes: int
    node_rank: int
    ranks_per_node: int
    master_addr: str
    master_port: int
    attempt: int | None
    table_rank: int | None = None
    """First rank of this node by the rank table, where there is one; it may order nodes otherwise than Volcano's index."""

    @property
    def world_size(self) -> int:
        """Ranks over all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def first_rank(self) -> int:
        """Global number of this node's first rank."""
        return self.node_rank * self.ranks_per_node if self.table_rank is None else self.table_rank


def _integer(env: Mapping[str, str], name: str, default: int, *, low: int = 0) -> int:
    text = env.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise BadConfig(f"{text!r} is not a whole number", where=name) from None
    if value < low:
        raise BadConfig(f"{value} is less than {low}", where=name)
    return value


def read_run_file(path: Path) -> RunFile:
    """The resolved run config.

    Raises:
        BadConfig: The file is missing, or not what the contract says; every finding is in the message.
    """
    try:
        return RunFile.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadConfig(f"cannot be read: {error.strerror}", where=str(path), hint="nanochat-npu render writes it") from error
    except ValidationError as error:
        findings = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise BadConfig(findings, where=str(path)) from error


def read_settings(env: Mapping[str, str] = os.environ) -> tuple[LaunchSettings, RunFile]:
    """Settings and run config; the environment goes before what run.json says about the world.

    Raises:
        BadConfig: Something is missing, is not a number, or does not fit together.
    """
    if not env.get(layout.ENV_JOB_DIR):
        raise BadConfig("not set: it names the job's folder", where=layout.ENV_JOB_DIR)
    job_dir = Path(env[layout.ENV_JOB_DIR]).absolute()
    run_path = Path(env.get(layout.ENV_RUN_FILE) or layout.run_file(job_dir))
    run = read_run_file(run_path)
    nodes = _integer(env, layout.ENV_NODES, run.world.nodes, low=1)
    settings = LaunchSettings(
        job_dir=job_dir, run_file=run_path, nodes=nodes,
        node_rank=_integer(env, layout.ENV_NODE_RANK, 0),
        ranks_per_node=_integer(env, layout.ENV_NPROC, run.world.ranks_per_node, low=1),
        master_addr=env.get(layout.ENV_MASTER_ADDR) or "127.0.0.1",
        master_port=_integer(env, layout.ENV_MASTER_PORT, 0),
        attempt=_integer(env, layout.ENV_ATTEMPT, -1, low=-1) if env.get(layout.ENV_ATTEMPT) else None,
    )
    _check(settings)
    return settings, run


def _check(settings: LaunchSettings) -> None:
    if settings.node_rank >= settings.nodes:
        raise BadConfig(f"node {settings.node_rank} of {settings.nodes}: nodes count from 0", where=layout.ENV_NODE_RANK)
    if settings.nodes > 1 and not settings.master_port:
        raise BadConfig("several nodes need an agreed port", where=layout.ENV_MASTER_PORT)
    if settings.master_port > 65_535:
        raise BadConfig(f"{settings.master_port} is not a port", where=layout.ENV_MASTER_PORT)
