"""Names of files and environment variables that the submitter and the trainer share.

A job's folder is the same tree on this computer (``$NANOCHAT_NPU_HOME/jobs/NAME``) and on the output claim of a cluster
(``PATH/jobs/NAME``)::

    NAME/
      spec.yaml  run.json  receipt.json  state.json        written by the submitter (state.json: local backend only)
      ledger.json                                          attempts and their ends, written by the launcher of node 0
      stages.json                                          stages that are finished, written by rank 0
      attempts/N/{run.json, events.jsonl, rankR.log, launcherK.log, verdict.json, plog/rankR/}
      tokenizer/{tokenizer.json, ...}
      data/                                                generated or downloaded text, where the source needs it
      checkpoints/STAGE/step_000123/{manifest.json, ...}
      results/STAGE.json                                   what an evaluation found
"""

from pathlib import PurePath
from typing import TypeVar

__all__ = [
    "ENV_ATTEMPT",
    "ENV_HOST_IP",
    "ENV_JOB_DIR",
    "ENV_MASTER_ADDR",
    "ENV_MASTER_PORT",
    "ENV_NODES",
    "ENV_NODE_NAME",
    "ENV_NODE_RANK",
    "ENV_NPROC",
    "ENV_OWN_NAMES",
    "ENV_POD_IP",
    "ENV_POD_UID",
    "ENV_RANK_TABLE",
    "ENV_RANK_TABLE_MODE",
    "ENV_RETRY_COUNT",
    "ENV_RUN_FILE",
    "attempt_dir",
    "checkpoint_dir",
    "checkpoints_dir",
    "events_file",
    "launcher_log",
    "ledger_file",
    "plog_dir",
    "rank_log",
    "results_file",
    "run_file",
    "stages_file",
    "tokenizer_dir",
    "verdict_file",
]

ENV_JOB_DIR = "NANOCHAT_JOB_DIR"
"""The job's folder."""
ENV_RUN_FILE = "NANOCHAT_RUN_FILE"
"""Path of run.json; default: run.json in the job's folder."""
ENV_ATTEMPT = "NANOCHAT_ATTEMPT"
"""Number of this start, 0-based; overrides the one in run.json."""
ENV_NODES = "NANOCHAT_NODES"
ENV_NODE_RANK = "NANOCHAT_NODE_RANK"
ENV_NPROC = "NANOCHAT_NPROC_PER_NODE"
ENV_MASTER_ADDR = "NANOCHAT_MASTER_ADDR"
ENV_MASTER_PORT = "NANOCHAT_MASTER_PORT"
ENV_RANK_TABLE = "NANOCHAT_RANK_TABLE"
"""File into which the platform's controller writes the HCCL rank table; not set: torch_npu negotiates. It is a symlink that
torch_npu would silently ignore, so the launcher waits for its status, checks it and copies it to a regular file."""
ENV_RANK_TABLE_MODE = "NANOCHAT_RANK_TABLE_MODE"
"""operator, static or discover; not set: torch_npu negotiates without a table."""
ENV_POD_UID = "NANOCHAT_POD_UID"
ENV_HOST_IP = "NANOCHAT_HOST_IP"
ENV_POD_IP = "NANOCHAT_POD_IP"
ENV_NODE_NAME = "NANOCHAT_NODE_NAME"
ENV_OWN_NAMES = (ENV_POD_UID, ENV_HOST_IP, ENV_POD_IP, ENV_NODE_NAME)
"""Names that this worker may have in a rank table: MindCluster wrote the host's address, and writes the pod's UID since 26.x."""
ENV_RETRY_COUNT = "NANOCHAT_RETRY_COUNT"
"""Volcano's own count of restarts (1.10 and later), or empty; entrypoint.sh makes `ENV_ATTEMPT` of it."""

P = TypeVar("P", bound=PurePath)


def run_file(job: P) -> P:
    """``run.json`` as the plan resolved it."""
    return job / "run.json"


def ledger_file(job: P) -> P:
    """Ends of the attempts so far, for counting failures apart from preemptions."""
    return job / "ledger.json"


def stages_file(job: P) -> P:
    """Stages that are finished, so that the next attempt skips them."""
    return job / "stages.json"


def attempt_dir(job: P, attempt: int) -> P:
    """Folder of one start; starts never share one."""
    return job / "attempts" / str(attempt)


def events_file(job: P, attempt: int) -> P:
    """JSON lines of one attempt, written by rank 0."""
    return attempt_dir(job, attempt) / "events.jsonl"


def verdict_file(job: P, attempt: int) -> P:
    """First failure of an attempt: code, rank, step, stage, message."""
    return attempt_dir(job, attempt) / "verdict.json"


def rank_log(job: P, attempt: int, rank: int) -> P:
    """Output of one rank."""
    return attempt_dir(job, attempt) / f"rank{rank}.log"


def plog_dir(job: P, attempt: int, rank: int) -> P:
    """Logs that CANN writes about one rank."""
    return attempt_dir(job, attempt) / "plog" / f"rank{rank}"


def launcher_log(job: P, attempt: int, node: int) -> P:
    """Output of the launcher on one node."""
    return attempt_dir(job, attempt) / f"launcher{node}.log"


def tokenizer_dir(job: P) -> P:
    """Tokenizer that this job trained or was given."""
    return job / "tokenizer"


def checkpoints_dir(job: P, stage: str) -> P:
    """All checkpoints of a stage."""
    return job / "checkpoints" / stage


def checkpoint_dir(job: P, stage: str, step: int) -> P:
    """One checkpoint; complete if and only if its manifest.json says so."""
    return checkpoints_dir(job, stage) / f"step_{step:06d}"


def results_file(job: P, name: str) -> P:
    """Results of an evaluation."""
    return job / "results" / f"{name}.json"
