"""Plan files: ``plan SPEC --to plan.json``, reviewed by somebody, then ``submit plan.json``.

A plan file holds the resolved spec and everything that was shown. It is refused, naming what, when something moved since:
the spec's file, the prices, or the versions that decide speed and result.
"""

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nanochat_npu import __version__
from nanochat_npu.errors import SpecConflictError, UsageError
from nanochat_npu.i18n import _
from nanochat_npu.jobs import write_json
from nanochat_npu.load import LoadedSpec, load_spec, load_text
from nanochat_npu.plan import Plan, spec_sha256

__all__ = ["KIND", "PlanFile", "is_plan_file", "load", "read", "refuse_changes", "save"]

KIND = "nanochat-npu plan"
FORMAT = 1


@dataclass(frozen=True)
class PlanFile:
    """A plan that was put aside.

    Attributes:
        source: The spec that it was made from; a path is absolute.
        overrides: ``--set`` values that it was made with.
        spec: The resolved spec: what was said, not what was left at its default.
        estimate: What was shown, as ``-o json``.
    """

    source: str
    overrides: list[str]
    spec: dict[str, Any]
    spec_sha256: str
    versions: dict[str, str]
    made: str
    estimate: dict[str, Any] = field(default_factory=dict)


def versions_of(plan: Plan) -> dict[str, str]:
    """Versions that decide what the job does and how fast."""
    image = plan.spec.image
    return {"nanochat_npu": __version__, "cann": image.cann, "torch_npu": image.torch_npu, "python": image.python, "image": image.ref or ""}


def save(path: Path, plan: Plan, loaded: LoadedSpec, overrides: Sequence[str], estimate: dict[str, Any]) -> None:
    """Write a plan file in one step.

    Raises:
        UsageError: It cannot be written.
    """
    source = str(Path(loaded.source).resolve()) if Path(loaded.source).is_file() else loaded.source
    value = {
        "kind": KIND, "format": FORMAT, "made": plan.today.isoformat(), "source": source, "overrides": list(overrides), "spec_sha256": plan.spec_sha256,
        "versions": versions_of(plan), "spec": loaded.spec.model_dump(mode="json", exclude_unset=True), "estimate": estimate,
    }
    try:
        write_json(path, value)
    except OSError as error:
        raise UsageError(_("cannot write {path}: {reason}").format(path=path, reason=error.strerror), where="--to") from error


def is_plan_file(source: str) -> bool:
    """True if a source names a plan file: a .json file of our kind."""
    path = Path(source)
    if path.suffix != ".json" or not path.is_file():
        return False
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(value, dict) and value.get("kind") == KIND


def read(source: str) -> PlanFile:
    """The plan in a file.

    Raises:
        UsageError: It is none, or of a newer format.
    """
    try:
        value = json.loads(Path(source).read_text(encoding="utf-8"))
        if value["format"] != FORMAT:
            raise UsageError(_("format {format} is not {known}").format(format=value["format"], known=FORMAT), where=source)
        return PlanFile(
            str(value["source"]), [str(x) for x in value["overrides"]], dict(value["spec"]), str(value["spec_sha256"]), dict(value["versions"]),
            str(value["made"]), dict(value["estimate"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(_("not a plan file: {reason}").format(reason=error), where=source, hint=_("make one: nanochat-npu plan SPEC --to plan.json")) from error


def load(source: str, overrides: Sequence[str] = ()) -> LoadedSpec:
    """The spec in a plan file, after making sure that nothing moved; any other source as `load_spec` reads it.

    Raises:
        SpecConflictError: Spec, prices or versions are others than when the plan was made; it says which.
        UsageError: Overrides were given beside a plan file.
    """
    if not is_plan_file(source):
        return load_spec(source, overrides)
    if any(not override.startswith("backend=") for override in overrides):
        refuse_changes(source)
    planned = read(source)
    stored = load_text(yaml.safe_dump(planned.spec, allow_unicode=True).encode(), source, overrides=overrides, environ={"NANOCHAT_NPU_SITE": ""})
    moved = _moved(planned, stored)
    if moved:
        again = " ".join(["nanochat-npu plan", planned.source, *(f"--set {override}" for override in planned.overrides), "--to", source])
        raise SpecConflictError(_("since {made} these moved: {what}").format(made=planned.made, what=", ".join(moved)), where=source, hint=_("look again: {command}").format(command=again))
    return stored


def refuse_changes(source: str) -> None:
    """Refuses what would change a plan file; any other source passes.

    Raises:
        UsageError: It is a plan file.
    """
    if is_plan_file(source):
        raise UsageError(_("a plan file is used as it is"), where=source, hint=_("make a new plan with these --set values"))


def _moved(planned: PlanFile, stored: LoadedSpec) -> list[str]:
    """Names of what is not as it was."""
    from nanochat_npu.plan import make_plan

    moved = []
    if spec_sha256(stored.spec) != planned.spec_sha256:
        moved.append(_("the plan file itself (it was edited)"))
    for name, version in versions_of(make_plan(stored.spec, datetime.date.today())).items():
        if planned.versions.get(name) != version:
            moved.append(_("{name} {old} → {new}").format(name=name, old=planned.versions.get(name) or "-", new=version or "-"))
    today = load_spec(planned.source, planned.overrides)
    if spec_sha256(today.spec) != planned.spec_sha256:
        moved.append(_("the spec {source}").format(source=planned.source))
    if today.spec.price != stored.spec.price:
        moved.append(_("the price"))
    if (today.spec.budget, today.spec.lifecycle) != (stored.spec.budget, stored.spec.lifecycle):
        moved.append(_("the budget"))
    if today.spec.estimate != stored.spec.estimate:
        moved.append(_("the assumptions of the estimate"))
    return moved
