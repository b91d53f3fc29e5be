"""Where things are for a job on a cluster: its folder, its rank table, its ports."""

import hashlib

from nanochat_npu.errors import RenderError
from nanochat_npu.i18n import _
from nanochat_npu.plan import Plan
from nanochat_npu.spec import PLATFORMS, RankTableMode
from nanochat_npu.spec.platforms import RankTableMap

__all__ = ["JOB_MOUNT", "hccl_port", "job_dir", "master_port", "rank_plugins", "rank_table_map"]

JOB_MOUNT = "/opt/nanochat/job"
"""Where run.json and entrypoint.sh appear in the container; with ``image.code: configmap`` the trainer's wheel, too."""
STATIC_TABLE_PREFIX = "ranktable-"
STATIC_TABLE_MOUNT = "/opt/nanochat/rank-table"
MASTER_PORT = 29_500
HOST_PORTS = (20_000, 9_000)
"""First and number of ports for torch's store under host networking: below NodePorts (30000) and ephemeral ports (32768)."""
HCCL_PORTS = (61_000, 140, 32)
"""First, number of blocks and ports of a block for HCCL under host networking: above ephemeral ports (60999); the last is 65479."""


def job_dir(plan: Plan) -> str:
    output = plan.spec.storage.output
    if output is None:
        raise RenderError(
            _("a job on a cluster needs a volume that outlives its pods: checkpoints would be lost"), where="storage.output",
            hint=_("name a claim: storage: {{output: {{claim: NAME, path: /output}}}}").format(),
        )
    return f"{output.path.rstrip('/')}/jobs/{plan.name}"


def rank_table_map(plan: Plan) -> RankTableMap | None:
    mode = plan.spec.rank_table.mode
    if mode in (RankTableMode.NEGOTIATE, RankTableMode.DISCOVER) or not plan.wants_npus:
        return None
    if mode is RankTableMode.STATIC:
        return RankTableMap(STATIC_TABLE_PREFIX, "ranktable.json", STATIC_TABLE_MOUNT)
    found = PLATFORMS[plan.spec.cluster.platform].rank_table
    if found is None:
        raise RenderError(
            _("nothing on platform {platform} writes rank tables").format(platform=plan.spec.cluster.platform), where="rank_table.mode",
            hint=_("use rank_table.mode: negotiate, or cluster.platform: mindcluster"),
        )
    return found


def rank_plugins(plan: Plan) -> dict[str, list[str]]:
    """Volcano job plugins that are added at submission where the server knows them, with their arguments."""
    if plan.spec.rank_table.mode is not RankTableMode.OPERATOR or not plan.wants_npus:
        return {}
    return {name: list(arguments) for name, arguments in PLATFORMS[plan.spec.cluster.platform].rank_plugins.items()}


def _stable_number(plan: Plan, purpose: str, below: int) -> int:
    """A number below `below` that follows from the job's identity, the same on every machine and for every attempt."""
    digest = hashlib.sha256(f"{purpose}/{plan.spec.cluster.namespace}/{plan.name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % below


def master_port(plan: Plan) -> int:
    network = plan.spec.network
    if network.master_port is not None:
        return network.master_port
    return HOST_PORTS[0] + _stable_number(plan, "store", HOST_PORTS[1]) if network.host else MASTER_PORT


def hccl_port(plan: Plan) -> int:
    first, blocks, size = HCCL_PORTS
    return first + size * _stable_number(plan, "hccl", blocks)
