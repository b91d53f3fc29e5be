"""``--resume-from JOB[@STEP]``: a new job that begins with another one's checkpoint, its horizon and batch kept as they were."""

import re
from collections.abc import Sequence

from nanochat_npu.errors import ClusterError, UsageError
from nanochat_npu.i18n import _
from nanochat_npu.jobs import JobFolder, Store, read_json
from nanochat_npu.spec import JobSpec

__all__ = ["checkpoint_steps", "resume_overrides"]

_FORM = re.compile(r"(?P<job>[a-z][a-z0-9-]*)(@(?P<step>\d+|latest))?")
FROZEN = ("steps", "tokens_per_step")
"""Fields of run.pretrain that a resumed run takes over: another world size must not derive another horizon from the ratio."""


def checkpoint_steps(folder: JobFolder) -> dict[str, list[int]]:
    """Steps of the complete checkpoints in a job's folder, by stage."""
    found: dict[str, list[int]] = {}
    for manifest in sorted((folder.path / "checkpoints").glob("*/step_*/manifest.json")):
        digits = manifest.parent.name.removeprefix("step_")
        if digits.isdigit():
            found.setdefault(manifest.parent.parent.name, []).append(int(digits))
    return found


def resume_overrides(text: str, spec: JobSpec, overrides: Sequence[str]) -> list[str]:
    """The ``--set`` texts that make a spec begin with another job's checkpoint.

    Args:
        text: ``JOB`` or ``JOB@STEP``.
        spec: The spec of the new job.
        overrides: What the person set; it is not overruled.

    Raises:
        UsageError: The text has another form, or names the job itself.
        JobNotFound: There is no such job on this computer.
        ClusterError: The job has no such checkpoint.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(_("{text!r} is not JOB or JOB@STEP").format(text=text), where="--resume-from")
    name, step = match["job"], match["step"] or "latest"
    if name == spec.name:
        raise UsageError(
            _("a job cannot begin with its own checkpoint"), where="--resume-from",
            hint=_("submit the same spec without --resume-from to go on, or give the new job a name: --set name=NAME"),
        )
    kept = [f"run.resume={name}@{step}"]
    if spec.backend == "volcano":
        # The checkpoint is on the output claim; the trainer finds it there, or says what it found instead.
        return kept
    folder = Store.default().existing(name)
    _require(folder, step)
    pretrain = read_json(folder.run_file).get("run", {}).get("pretrain", {})
    said = {override.partition("=")[0] for override in overrides}
    return kept + [f"run.pretrain.{key}={pretrain[key]}" for key in FROZEN if isinstance(pretrain.get(key), int) and f"run.pretrain.{key}" not in said]


def _require(folder: JobFolder, step: str) -> None:
    steps = checkpoint_steps(folder)
    if not steps:
        raise ClusterError(_("the job has no checkpoint"), where=folder.name, hint=_("nanochat-npu status {job}").format(job=folder.name))
    if step != "latest" and not any(int(step) in of_stage for of_stage in steps.values()):
        have = "; ".join(f"{stage} {', '.join(map(str, of_stage))}" for stage, of_stage in steps.items())
        raise ClusterError(
            _("the job has no checkpoint of step {step}").format(step=step), where=folder.name, hint=_("it has: {steps}").format(steps=have),
        )
