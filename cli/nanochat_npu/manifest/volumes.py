"""Volumes of a worker, each with its mount."""

from nanochat_npu.errors import RenderError
from nanochat_npu.i18n import _
from nanochat_npu.manifest.places import JOB_MOUNT, rank_table_map
from nanochat_npu.manifest.types import Volume, run_map_name
from nanochat_npu.plan import Plan
from nanochat_npu.spec import DriverMount, VolumeConfig
from nanochat_npu.spec.platforms import DRIVER_MOUNTS

__all__ = ["volumes"]


def volumes(plan: Plan) -> tuple[Volume, ...]:
    spec, table = plan.spec, rank_table_map(plan)
    found = [
        Volume("job", "configMap", {"name": run_map_name(plan.name)}, JOB_MOUNT, read_only=True, why="run.json, entrypoint.sh and the trainer's wheel" if spec.image.code == "configmap" else "run.json and entrypoint.sh"),
        Volume(
            "shm", "emptyDir", {"medium": "Memory", "sizeLimit": spec.resources.shm}, "/dev/shm",  # noqa: S108 - a mount path
            why="the default of 64 MiB is too small for ranks that share memory",
        ),
    ]
    if spec.storage.output:
        found.append(_user_volume("output", spec.storage.output, "checkpoints, events and logs: jobs/" + plan.name))
    if spec.storage.data:
        found.append(_user_volume("data", spec.storage.data, "training text"))
    found += [_user_volume(name, volume, "storage.extra") for name, volume in spec.storage.extra.items()]
    if table:
        found.append(Volume(
            "rank-table", "configMap", {"name": table.prefix + plan.name}, table.mount, read_only=True,
            why="the whole folder: a subPath mount would never see the finished table",
        ))
    if spec.cluster.driver_mount is DriverMount.HOSTPATH and plan.wants_npus:
        found += [
            Volume(mount.name, "hostPath", {"path": mount.path, "type": mount.kind}, mount.path, read_only=True, why="the host's NPU driver")
            for mount in DRIVER_MOUNTS
        ]
    _refuse_twice(found)
    return tuple(found)


def _user_volume(name: str, volume: VolumeConfig, why: str) -> Volume:
    if volume.claim:
        kind, source = "persistentVolumeClaim", {"claimName": volume.claim, **({"readOnly": True} if volume.read_only else {})}
    elif volume.host_path:
        kind, source = "hostPath", {"path": volume.host_path, "type": "Directory"}
    else:
        raise RenderError(_("a volume needs a claim or a host_path"), where=f"storage.{name}")
    return Volume(name, kind, source, volume.path, read_only=volume.read_only, sub_path=volume.sub_path or "", why=why)


def _refuse_twice(volumes: list[Volume]) -> None:
    """Kubernetes refuses a second volume of a name and a second mount of a path, once the job has been sent."""
    for what, values in (("name", [v.name for v in volumes]), ("path", [v.path.rstrip("/") for v in volumes])):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise RenderError(_("two volumes have the same {what}: {values}").format(what=what, values=", ".join(twice)), where="storage")
