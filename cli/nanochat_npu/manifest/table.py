"""The rank table of a static inventory, as a ConfigMap can hold it."""

import base64
import gzip

from nanochat.contract.ranktable import RankTable, RankTableError
from nanochat_npu.errors import RenderError
from nanochat_npu.i18n import _
from nanochat_npu.manifest.types import RankTableContent
from nanochat_npu.plan import Plan
from nanochat_npu.spec import NpuType, RankTableMode
from nanochat_npu.spec.platforms import RankTableMap

__all__ = ["CONFIGMAP_MAX_BYTES", "INITIAL", "pinned_nodes", "table_content"]

INITIAL = '{"status":"initializing"}'
"""What MindCluster's operator and CCE expect to find, and replace."""
CONFIGMAP_MAX_BYTES = 1_000_000
"""Kubernetes allows 1,048,576 bytes of data; some are left for names. Compact JSON takes about 74 bytes a rank, gzip about 7."""


def pinned_nodes(plan: Plan) -> tuple[str, ...]:
    """Nodes that a static table names; () in every other mode."""
    table = plan.spec.rank_table
    return tuple(server.node for server in table.servers) if table.mode is RankTableMode.STATIC and plan.wants_npus else ()


def table_content(plan: Plan, table: RankTableMap) -> RankTableContent:
    """What the table's ConfigMap holds.

    Raises:
        RenderError: The inventory makes no valid table, or one too large for a ConfigMap even when compressed.
    """
    if plan.spec.rank_table.mode is not RankTableMode.STATIC:
        return RankTableContent("data", INITIAL)
    nodes = [(server.server_id or server.node, list(enumerate(server.device_ips))) for server in plan.spec.rank_table.servers]
    try:
        text = RankTable.build(nodes, version="1.2" if plan.spec.resources.npu is NpuType.A910C else "1.0").to_json()
    except RankTableError as error:
        raise RenderError(str(error), where="rank_table.servers", hint=_("nanochat-npu ranktable generate checks an inventory")) from error
    if len(text) <= CONFIGMAP_MAX_BYTES:
        return RankTableContent("data", text)
    packed = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    if len(packed) > CONFIGMAP_MAX_BYTES:
        raise RenderError(
            _("the rank table of {ranks} ranks takes {plain} bytes, {packed} compressed; a ConfigMap holds {limit}").format(
                ranks=plan.world_size, plain=len(text), packed=len(packed), limit=CONFIGMAP_MAX_BYTES),
            where="rank_table.servers", hint=_("use rank_table.mode: operator or negotiate for so many nodes"),
        )
    return RankTableContent("binaryData", packed)
