"""What differs between the spec of a job that exists and another one, and what applying it would mean. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nanochat_npu.backends import ACTIVE, JobState
from nanochat_npu.i18n import _
from nanochat_npu.spec import JobSpec

__all__ = ["Change", "Effect", "Verdict", "compare", "drift", "judge", "spec_values"]


class Effect(StrEnum):
    """What applying a change takes."""

    NOTHING = "nothing"
    IN_PLACE = "in place"
    """Volcano lets a running job be changed in these fields only: minAvailable, replicas, priorityClassName."""
    RESTART = "restart"
    """The job is stopped with a checkpoint and goes on from it under the new spec."""
    REFUSED = "refused"
    """The job's checkpoints cannot be used with the new spec; another name trains anew."""


@dataclass(frozen=True)
class Change:
    """One field: its path, what it was, what it shall be; `missing` stands for a field that is not there."""

    path: str
    old: Any
    new: Any
    effect: Effect

    def as_json(self) -> dict[str, Any]:
        """The change as an object."""
        return {"path": self.path, "old": self.old, "new": self.new, "effect": self.effect.value}


@dataclass(frozen=True)
class Verdict:
    """What applying all changes together means, in a sentence, and the command for it."""

    effect: Effect
    sentence: str
    command: str


MISSING = "(not set)"
_IN_PLACE = ("cluster.priority_class",)
_HARMLESS = ("owner", "price.", "budget.", "estimate.", "run.tracking.")
"""Fields that the submitter reads, or that a running trainer takes at its next start."""
_SHAPE = ("run.model.", "run.tokenizer.", "run.data.source", "run.data.packing", "run.seed", "run.pretrain.steps", "run.pretrain.tokens_per_step",
          "run.pretrain.target_", "run.pretrain.warmup", "run.pretrain.warmdown", "run.pretrain.final_lr_frac")
"""Fields that a checkpoint holds fixed: shape, vocabulary, order of data, horizon and schedule."""


def spec_values(spec: JobSpec) -> dict[str, Any]:
    """Every resolved value by its dotted path."""
    return dict(_flatten(spec.model_dump(mode="json"), ""))


def _flatten(value: Any, path: str) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _effect(path: str) -> Effect:
    if path in _IN_PLACE:
        return Effect.IN_PLACE
    if path.startswith(_SHAPE):
        return Effect.REFUSED
    return Effect.NOTHING if path.startswith(_HARMLESS) else Effect.RESTART


def compare(old: JobSpec, new: JobSpec) -> list[Change]:
    """Fields whose resolved values differ, in the order of the spec; defaults that are written out are no difference."""
    before, after = spec_values(old), spec_values(new)
    paths = list(dict.fromkeys([*before, *after]))
    return [
        Change(path, before.get(path, MISSING), after.get(path, MISSING), _effect(path))
        for path in paths if before.get(path, MISSING) != after.get(path, MISSING) and not _inside_empty(path, before, after)
    ]


def _inside_empty(path: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """True for the empty map that stands for a block whose fields are listed on the other side."""
    mine = before.get(path, after.get(path))
    others = after if path in before else before
    return mine in ({}, None) and any(other.startswith(f"{path}.") for other in others)


def judge(changes: list[Change], state: JobState, name: str, spec: str, step: int | None) -> Verdict:
    """What applying the changes means for a job in this state.

    Args:
        changes: From `compare`.
        state: State of the job that exists.
        name: Its name.
        spec: The spec as the person named it, for the command.
        step: Its newest checkpoint, if one is known.
    """
    effects = {change.effect for change in changes}
    again = f"nanochat-npu submit {spec}"
    if not effects - {Effect.NOTHING}:
        return Verdict(Effect.NOTHING, _("nothing that a running job would notice"), again)
    if Effect.REFUSED in effects:
        fixed = ", ".join(change.path for change in changes if change.effect is Effect.REFUSED)
        return Verdict(Effect.REFUSED, _("its checkpoints cannot be used with {fields}").format(fields=fixed), f"{again} --set name={name}-2")
    if effects <= {Effect.NOTHING, Effect.IN_PLACE} and state in ACTIVE:
        return Verdict(Effect.IN_PLACE, _("the priority of the running job can be changed"), f"kubectl patch vcjob {name}")
    where = _("checkpoint {step}").format(step=step) if step is not None else _("its newest checkpoint")
    if state in ACTIVE:
        return Verdict(Effect.RESTART, _("the job has to be stopped, and goes on from {where}").format(where=where), f"nanochat-npu cancel {name} && {again}")
    return Verdict(Effect.RESTART, _("the next start goes on from {where}").format(where=where), again)


def drift(rendered: Any, live: Any, path: str = "") -> list[Change]:
    """What somebody changed on the live object: fields that we rendered and that are different there.

    Defaults that the server added are not ours and are no difference; quantities are compared as they are written.
    """
    if isinstance(rendered, dict):
        found = live if isinstance(live, dict) else {}
        return [change for key, value in rendered.items() for change in drift(value, found.get(key), f"{path}.{key}" if path else str(key))]
    if isinstance(rendered, list):
        found_list = live if isinstance(live, list) else []
        changes = [change for i, value in enumerate(rendered) for change in drift(value, found_list[i] if i < len(found_list) else None, f"{path}[{i}]")]
        extra = [Change(f"{path}[{i}]", MISSING, found_list[i], Effect.RESTART) for i in range(len(rendered), len(found_list))]
        return changes + extra
    if rendered == live or (rendered in (None, "", []) and live in (None, "", [])) or str(rendered) == str(live):
        return []
    return [Change(path, rendered, MISSING if live is None else live, Effect.RESTART)]
