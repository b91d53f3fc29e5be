"""Rules about Ascend. Sources: HCCL guide, torch_npu (``HCCLUtils.cpp``), mind-cluster 22bb3d98 and its FAQ, the threads named."""

import re
from typing import Any

from nanochat_npu import partial
from nanochat_npu.i18n import _
from nanochat_npu.lint.context import Container, JobContext, Task
from nanochat_npu.lint.findings import Fix, Path
from nanochat_npu.spec import NODE_TYPES

__all__ = ["CHECKS"]

RING = "ring-controller.atlas"
SCHEDULE_POLICY = "huawei.com/schedule_policy"
MIND_RESOURCE = "huawei.com/Ascend910"
"""MindCluster's name for all 910 chips; HAMi and CCE have their own, and other rules."""
RECOMMENDED_TIMEOUT_S = 300
"""torch_npu warns below this with a rank table; Huawei recommends 1200 for training."""
RANGES: dict[str, tuple[int, int]] = {
    "HCCL_CONNECT_TIMEOUT": (120, 7200), "HCCL_EXEC_TIMEOUT": (0, 2_147_483_647), "HCCL_IF_BASE_PORT": (1024, 65520), "HCCL_BUFFSIZE": (1, 2**31),
    "HCCL_RDMA_TC": (0, 255), "HCCL_RDMA_SL": (0, 7), "HCCL_RDMA_TIMEOUT": (5, 20), "HCCL_RDMA_RETRY_CNT": (1, 7),
    "HCCL_RDMA_QPS_PER_CONNECTION": (1, 32), "HCCL_WHITELIST_DISABLE": (0, 1), "HCCL_INTRA_ROCE_ENABLE": (0, 1), "HCCL_INTRA_PCIE_ENABLE": (0, 1),
}
"""HCCL guide, ``hccl_env/<NAME>.md``, Atlas A2."""


def npu_resources(c: JobContext) -> None:
    """NA001, NA002, NA018: how many NPUs a pod asks for."""
    for task, container in c.containers():
        limits, requests = (partial.mapping(container.data, "resources", kind) for kind in ("limits", "requests"))
        for name, count in container.npus().items():
            if name in requests and name in limits and str(requests[name]) != str(limits[name]):
                c.add("NA001", _("{name}: requests {a}, limits {b}").format(name=name, a=requests[name], b=limits[name]), (*container.path, "resources", "requests", name), fix=Fix((*container.path, "resources", "requests", name), limits[name]))
            if name in requests and name not in limits:
                c.add("NA001", _("{name} has no limit").format(name=name), (*container.path, "resources", "requests", name), hint=_("write the same under limits"))
            _count(c, task, container, name, count)


def _count(c: JobContext, task: Task, container: Container, name: str, count: Any) -> None:
    if name != MIND_RESOURCE:
        return
    kind = NODE_TYPES.get(partial.text(task.pod, "nodeSelector", "accelerator-type")) or NODE_TYPES["module-910b-8"]
    number = int(count) if str(count).isdigit() else 0
    path = (*container.path, "resources", "limits", name)
    if number not in kind.counts:
        allowed = ", ".join(str(n) for n in sorted(kind.counts))
        c.add("NA002", _("{n} NPUs in one pod; {label} allows {allowed}").format(n=count, label=kind.label, allowed=allowed), path)
    elif c.pods > 1 and number < kind.ranks:
        c.add("NA018", _("{pods} pods of {n} NPUs; a {label} has {all}").format(pods=c.pods, n=number, label=kind.label, all=kind.ranks), path)


def labels(c: JobContext) -> None:
    """NA003, NA004, NA005: what MindCluster's scheduler and operator go by (volcano #4446)."""
    if not any(MIND_RESOURCE in container.npus() for _task, container in c.containers()):
        return
    rings: dict[str, Path] = {}
    on_job = partial.text(c.job, "metadata", "labels", RING)
    if on_job:
        rings[on_job] = ("metadata", "labels", RING)
    wants = bool(on_job) or _wants_table(c)
    for task in c.tasks():
        on_pod = partial.text(task.data, "template", "metadata", "labels", RING)
        path = (*task.path, "template", "metadata", "labels", RING)
        if on_pod:
            rings.setdefault(on_pod, path)
        elif wants:
            c.add("NA004", _("the pods of task {name} have no label {label}").format(name=partial.text(task.data, "name"), label=RING), (*task.path, "template", "metadata"))
        _scheduling(c, task)
    for document in c.config_maps:
        value = partial.text(document.data, "metadata", "labels", RING)
        if partial.text(document.data, "metadata", "name").startswith("rings-config-") and value not in rings:
            c.add("NA004", _("ConfigMap {name} has {label}: {value}").format(name=partial.text(document.data, "metadata", "name"), label=RING, value=value or _("nothing")), ("metadata", "labels"))
    if len(rings) > 1:
        c.add("NA004", _("{label} is {values}").format(label=RING, values=" / ".join(sorted(rings))), next(iter(rings.values())))
    for value, path in rings.items():
        if value == "ascend-910":
            c.add("NA003", _("ascend-910 is the 910A"), path, fix=Fix(path, "ascend-910b"))
    if rings and not on_job:
        c.add("NA004", _("the job itself has no label {label}").format(label=RING), ("metadata",), hint=f"{RING}: {next(iter(rings))}")
    if wants and not rings:
        c.add("NA003", _("label {label} is missing").format(label=RING), ("metadata",), hint=f"{RING}: ascend-910b")


def _wants_table(c: JobContext) -> bool:
    return any(partial.text(d.data, "metadata", "name").startswith("rings-config-") for d in c.config_maps)


def _scheduling(c: JobContext, task: Task) -> None:
    policy = partial.text(task.data, "template", "metadata", "annotations", SCHEDULE_POLICY) or partial.text(c.job, "metadata", "annotations", SCHEDULE_POLICY)
    mindcluster = bool(partial.text(c.job, "metadata", "labels", RING) or partial.text(task.data, "template", "metadata", "labels", RING))
    if mindcluster and not policy and not partial.text(task.pod, "nodeSelector", "accelerator-type"):
        c.add("NA005", _("nothing says which server the NPUs belong to"), (*task.pod_path, "nodeSelector"), hint="nodeSelector: {accelerator-type: module-910b-8}")


def host_network(c: JobContext) -> None:
    """NA006, NA007, NA016 (mind-cluster FAQ 366, pytorch #91940)."""
    for task, container in c.containers():
        if not container.npus():
            continue
        host = partial.dig(task.pod, "hostNetwork") is True
        env = container.env()
        if host and "HCCL_IF_IP" not in env and c.pods > 1:
            c.add("NA006", _("hostNetwork is on, HCCL_IF_IP is not set"), (*task.pod_path, "hostNetwork"), hint=_("take it from status.hostIP by fieldRef"))
        if not host and "HCCL_IF_IP" in env:
            c.add("NA007", _("HCCL_IF_IP is set, hostNetwork is off"), container.env_path("HCCL_IF_IP"), hint=_("take it out"))
        if host and env.get("MASTER_PORT") in ("23456", "29500"):
            c.add("NA016", _("MASTER_PORT {port} is everybody's default").format(port=env["MASTER_PORT"]), container.env_path("MASTER_PORT"), hint=_("choose one per job"))


def variables(c: JobContext) -> None:
    """NA008, NA011, NA012: environment of HCCL and CANN (vllm-ascend #449, #486)."""
    for _task, container in c.containers():
        if not container.npus():
            continue
        env = container.env()
        if "ASCEND_RT_VISIBLE_DEVICES" in env:
            c.add("NA008", _("ASCEND_RT_VISIBLE_DEVICES is set"), container.env_path("ASCEND_RT_VISIBLE_DEVICES"), hint=_("take it out: the device plugin decides"))
        for name, (low, high) in RANGES.items():
            value = env.get(name)
            if value is None:
                continue
            text = str(value)
            if not re.fullmatch(r"-?\d+", text) or not low <= int(text) <= high:
                c.add("NA011", _("{name} is {value}, allowed are {low} to {high}").format(name=name, value=text, low=low, high=high), container.env_path(name))
        timeout = str(env.get("HCCL_CONNECT_TIMEOUT") or "120")
        if c.pods > 1 and "HCCL_CONNECT_TIMEOUT" not in env:
            c.add("NA012", _("HCCL_CONNECT_TIMEOUT is not set"), (*container.path, "env"), hint=_("set it to 1200"))
        elif c.pods > 1 and timeout.isdigit() and 120 <= int(timeout) < RECOMMENDED_TIMEOUT_S:
            c.add("NA012", _("HCCL_CONNECT_TIMEOUT is {value} s").format(value=timeout), container.env_path("HCCL_CONNECT_TIMEOUT"), hint=_("set it to 1200"))


def rank_table(c: JobContext) -> None:
    """NA009, NA010: the rank table's way into the pod."""
    for task, container in c.containers():
        volumes = {partial.text(v, "name"): v for v in partial.items(task.pod, "volumes")}
        from_maps: list[str] = []
        for i, mount in enumerate(partial.items(container.data, "volumeMounts")):
            volume = volumes.get(partial.text(mount, "name"), {})
            name = partial.text(volume, "configMap", "name")
            if not name:
                continue
            from_maps.append(partial.text(mount, "mountPath"))
            if mount.get("subPath") and name.startswith(("rings-config-", "configmap1980-")):
                c.add("NA009", _("{name} is mounted by subPath").format(name=name), (*container.path, "volumeMounts", i, "subPath"), hint=_("mount the whole folder"))
        table = container.env().get("RANK_TABLE_FILE")
        inside = next((path for path in from_maps if isinstance(table, str) and path and table.startswith(path.rstrip("/") + "/")), None)
        if inside is not None and "..data" not in str(table):
            c.add("NA010", _("{file} is a symlink").format(file=table), container.env_path("RANK_TABLE_FILE"), hint=_("copy it to a regular .json file when its status is completed"))


def pod_habits(c: JobContext) -> None:
    """NA013, NA014, NA015, NA017: shared memory, environment, selectors, user (pytorch #16979, vllm-ascend #9490, mind-cluster FAQ 385)."""
    selectors = []
    for task in c.tasks():
        containers = [container for container in task.containers() if container.npus()]
        if not containers:
            continue
        selectors.append((task, partial.mapping(task.pod, "nodeSelector")))
        _shared_memory(c, task, containers[0])
        user = partial.dig(task.pod, "securityContext", "runAsUser")
        if isinstance(user, int) and user not in (0, 1000):
            c.add("NA017", _("user {user}").format(user=user), (*task.pod_path, "securityContext", "runAsUser"), hint=_("0, or 1000 with an entry in /etc/passwd"))
        for container in containers:
            script = " ".join(str(p) for key in ("command", "args") for p in container.data.get(key) or [])
            direct = re.search(r"\b(?:python3?|torchrun|torch_npu_run)\b", script)
            if container.data.get("command") and direct and "set_env.sh" not in script and not re.search(r"\.sh\b", script):
                c.add("NA014", _("command starts {what} directly").format(what=direct[0]), (*container.path, "command"), hint=_("use args, or source /usr/local/Ascend/ascend-toolkit/set_env.sh first"))
    if len({str(sorted(selector.items())) for _task, selector in selectors}) > 1:
        c.add("NA015", _("tasks have different node selectors"), (*selectors[-1][0].pod_path, "nodeSelector"))


def _shared_memory(c: JobContext, task: Task, container: Container) -> None:
    mounts = {partial.text(m, "name") for m in partial.items(container.data, "volumeMounts") if partial.text(m, "mountPath") == "/dev/shm"}  # noqa: S108
    volume = next(((i, v) for i, v in enumerate(partial.items(task.pod, "volumes")) if partial.text(v, "name") in mounts), None)
    if volume is None:
        c.add("NA013", _("/dev/shm is left at 64 MiB"), container.path, hint=_("mount an emptyDir of medium Memory with a sizeLimit"))  # noqa: S108
    elif partial.text(volume[1], "emptyDir", "medium") == "Memory" and not partial.text(volume[1], "emptyDir", "sizeLimit"):
        path = (*task.pod_path, "volumes", volume[0], "emptyDir")
        c.add("NA013", _("/dev/shm has no sizeLimit"), path, fix=Fix((*path, "sizeLimit"), "16Gi", insert=True))  # noqa: S108


CHECKS = (npu_resources, labels, host_network, variables, rank_table, pod_habits)
