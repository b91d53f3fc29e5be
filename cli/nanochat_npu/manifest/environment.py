"""The environment of a worker: what the launcher needs to know, HCCL's settings, the spec's own variables and secrets.

Sources: hicann/hccl 09300b70 (``hccl_env/<NAME>.md``), Ascend/pytorch 9e73e708 (environment variables), Ascend/mind-cluster
22bb3d98 (ASCEND_VISIBLE_DEVICES by the downward API).
"""

from nanochat.contract import layout
from nanochat_npu.errors import RenderError
from nanochat_npu.i18n import _
from nanochat_npu.image.trainer_wheel import wheel_name
from nanochat_npu.manifest.places import JOB_MOUNT, hccl_port, job_dir, master_port, rank_table_map
from nanochat_npu.manifest.table import table_content
from nanochat_npu.manifest.types import EnvVar
from nanochat_npu.plan import Plan
from nanochat_npu.spec import PLATFORMS, RankTableMode

__all__ = ["environment"]

RETRY_COUNT_ANNOTATION = "volcano.sh/job-retry-count"
"""Written by Volcano 1.10 and later; elsewhere the variable is empty."""


def environment(plan: Plan) -> tuple[EnvVar, ...]:
    ours = {variable.name: variable for variable in (*_contract_environment(plan), *_npu_environment(plan))}
    reserved = sorted({name for name in (*plan.spec.env, *plan.spec.secrets) if name in _RESERVED})
    if reserved:
        raise RenderError(_("set by nanochat-npu itself: {names}").format(names=", ".join(reserved)), where="env", hint=_("remove them from the spec"))
    theirs = {name: EnvVar(name, value=value, why="env of the spec") for name, value in plan.spec.env.items()}
    secrets = {name: EnvVar(name, secret=(ref.secret, ref.key)) for name, ref in plan.spec.secrets.items()}
    return tuple({**ours, **theirs, **secrets}.values())


_RESERVED = frozenset({
    layout.ENV_JOB_DIR, layout.ENV_RUN_FILE, layout.ENV_NODES, layout.ENV_NPROC, layout.ENV_MASTER_PORT, layout.ENV_ATTEMPT, layout.ENV_NODE_RANK,
    layout.ENV_MASTER_ADDR, layout.ENV_RETRY_COUNT, layout.ENV_RANK_TABLE, layout.ENV_RANK_TABLE_MODE, *layout.ENV_OWN_NAMES, "VC_TASK_INDEX", "VK_TASK_INDEX", "VC_WORKER_HOSTS", "VC_WORKER_NUM",
    "PYTHONPATH", "RANK", "LOCAL_RANK", "WORLD_SIZE", "ASCEND_VISIBLE_DEVICES", "HCCL_IF_IP",
})


def _contract_environment(plan: Plan) -> list[EnvVar]:
    spec, table = plan.spec, rank_table_map(plan)
    variables = [
        EnvVar(layout.ENV_JOB_DIR, value=job_dir(plan)),
        EnvVar(layout.ENV_RUN_FILE, value=f"{JOB_MOUNT}/run.json"),
        EnvVar(layout.ENV_NODES, value=str(spec.resources.nodes)),
        EnvVar(layout.ENV_NPROC, value=str(spec.ranks_per_node)),
        EnvVar(layout.ENV_MASTER_PORT, value=str(master_port(plan))),
        EnvVar(layout.ENV_RETRY_COUNT, field=f"metadata.annotations['{RETRY_COUNT_ANNOTATION}']", why="Volcano 1.10 and later; else empty, and the launcher counts"),
        EnvVar("PYTHONUNBUFFERED", value="1"),
    ]
    if plan.wants_npus and spec.rank_table.mode is not RankTableMode.NEGOTIATE:
        variables.append(EnvVar(layout.ENV_RANK_TABLE_MODE, value=str(spec.rank_table.mode)))
        variables += [EnvVar(name, field=field) for name, field in _OWN_NAMES.items()]
    if python_path := _python_path(plan):
        variables.append(EnvVar("PYTHONPATH", value=python_path, why="the trainer's wheel from its ConfigMap, and its packages; CANN puts its own in front"))
    if table:
        file = f"{table.mount}/{table.key}" + (".gz" if table_content(plan, table).field == "binaryData" else "")
        variables.append(EnvVar(layout.ENV_RANK_TABLE, value=file, why="the launcher waits for its status, checks it, copies it to a regular file"))
    if spec.network.interface and not spec.network.host:
        variables.append(EnvVar("GLOO_SOCKET_IFNAME", value=spec.network.interface))
    return variables


_OWN_NAMES = {
    layout.ENV_POD_UID: "metadata.uid", layout.ENV_HOST_IP: "status.hostIP", layout.ENV_POD_IP: "status.podIP", layout.ENV_NODE_NAME: "spec.nodeName",
}
"""What this worker may be called in a rank table, which tells it its ranks."""


def _python_path(plan: Plan) -> str:
    image = plan.spec.image
    wheel = f"{JOB_MOUNT}/{wheel_name()}" if image.code == "configmap" else ""
    return ":".join(part for part in (wheel, image.packages or "") if part)


def _npu_environment(plan: Plan) -> list[EnvVar]:
    spec, profile = plan.spec, PLATFORMS[plan.spec.cluster.platform]
    if not plan.wants_npus:
        return []
    variables = [EnvVar(name, value=value, why=_HCCL_WHY.get(name, "")) for name, value in spec.hccl.env().items()]
    if spec.network.host:
        variables.append(EnvVar("HCCL_IF_IP", field="status.hostIP", why="with host networking, and only then"))
        if spec.hccl.if_base_port is None and spec.hccl.host_socket_port_range is None:
            variables.append(EnvVar("HCCL_IF_BASE_PORT", value=str(hccl_port(plan)), why="of 32 ports; another job on the host has others"))
    elif spec.network.interface:
        variables.append(EnvVar("HCCL_SOCKET_IFNAME", value=f"={spec.network.interface}", why="exactly this one, not a prefix"))
    if profile.writes_device_annotation:
        variables.append(EnvVar("ASCEND_VISIBLE_DEVICES", field=f"metadata.annotations['{profile.resource}']", why="the scheduler's choice, for the Ascend Docker Runtime"))
    variables += [
        EnvVar("PYTORCH_NPU_ALLOC_CONF", value="expandable_segments:True", why="less fragmentation; driver 23.0.0 or later"),
        EnvVar("CPU_AFFINITY_CONF", value="1", why="ranks keep to the cores near their NPU"),
    ]
    return variables


_HCCL_WHY = {"HCCL_CONNECT_TIMEOUT": "HCCL's 120 s is too short for pods that start one after the other"}
