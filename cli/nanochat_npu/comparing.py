"""Several jobs side by side: what they reached, and in which settings they differ. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

from nanochat_npu import curves, units
from nanochat_npu.i18n import _
from nanochat_npu.tables import Section
from nanochat_npu.views import Snapshot, job_json

__all__ = ["compare", "differing_settings", "flatten"]

CURVE_WIDTH = 24


def flatten(value: object, path: str = "") -> dict[str, object]:
    """The leaves of nested maps by dotted path; a list is a leaf."""
    if not isinstance(value, dict) or not value:
        return {path: value} if path else {}
    return {leaf: inner for key, item in value.items() for leaf, inner in flatten(item, f"{path}.{key}" if path else str(key)).items()}


def differing_settings(configs: Sequence[dict[str, Any]]) -> dict[str, list[object]]:
    """Settings that are not the same in all run configs, by path; None where a job has none."""
    flat = [flatten(config) for config in configs]
    paths = dict.fromkeys(path for leaves in flat for path in leaves)
    rows = {path: [leaves.get(path) for leaves in flat] for path in paths}
    return {path: values for path, values in rows.items() if any(value != values[0] for value in values)}


def compare(snapshots: Sequence[Snapshot], configs: Sequence[dict[str, Any]]) -> list[Section]:
    """Sections that set jobs side by side.

    Args:
        snapshots: The jobs, in the order of the columns.
        configs: ``run`` of each job's run.json, {} where it is not known here.
    """
    names = tuple(shot.job.name for shot in snapshots)
    facts = [(label, tuple(cell(shot) for shot in snapshots)) for label, cell in _facts()]
    facts = [(label, cells) for label, cells in facts if any(cell != "-" for cell in cells)]
    reached = _results(snapshots)
    differing = differing_settings(configs)
    return [
        Section("jobs", header=("", *names), table=tuple((label, *cells) for label, cells in facts), value=[job_json(shot) for shot in snapshots]),
        Section(
            "results", _("Results"), header=(_("measured"), *names), table=tuple((title, *map(_shown, values)) for title, values in reached.items()),
            value={title: list(values) for title, values in reached.items()},
        ),
        Section("loss", _("Loss, from the first step to the last, on one scale"), rows=_loss_curves(snapshots)),
        Section(
            "settings", _("Settings that differ"), header=(_("setting"), *names),
            table=tuple((path, *map(_shown, values)) for path, values in differing.items()), value=differing,
        ),
    ]


def _facts() -> list[tuple[str, Callable[[Snapshot], str]]]:
    return [
        (_("state"), lambda shot: str(shot.job.state)),
        (_("took"), lambda shot: units.duration(shot.elapsed_s) if shot.elapsed_s is not None else "-"),
        (_("world size"), lambda shot: str(shot.job.world_size or "-")),
        (_("attempts"), lambda shot: str(shot.job.attempt + 1) if shot.job.attempt is not None else "-"),
        (_("tokens"), lambda shot: units.count(shot.progress.tokens) if shot.progress.tokens else "-"),
        *((title, cell) for stage in ("pretrain", "sft", "rl") for title, cell in _stage_facts(stage)),
    ]


def _stage_facts(stage: str) -> list[tuple[str, Callable[[Snapshot], str]]]:
    def of(shot: Snapshot, show: Callable[[Any], str]) -> str:
        run = next((run for run in shot.progress.runs if run.name == stage and run.step is not None), None)
        return show(run) if run is not None else "-"

    return [
        (f"{stage}: " + _("steps"), lambda shot: of(shot, lambda run: f"{run.step:,}" + (f" / {run.steps:,}" if run.steps else ""))),
        (f"{stage}: " + _("loss"), lambda shot: of(shot, lambda run: f"{run.loss:.4f}" if run.loss is not None else "-")),
        (f"{stage}: " + _("tokens/s"), lambda shot: of(shot, lambda run: units.count(run.mean_tokens_per_s) if run.mean_tokens_per_s else "-")),
    ]


def _results(snapshots: Sequence[Snapshot]) -> dict[str, list[str | None]]:
    """Last result of everything that any of the jobs measured."""
    found = [{title: last.text for title, (_first, last) in shot.progress.before_and_after().items()} for shot in snapshots]
    titles = dict.fromkeys(title for results in found for title in results)
    return {title: [results.get(title) for results in found] for title in titles}


def _loss_curves(snapshots: Sequence[Snapshot]) -> tuple[tuple[str, str], ...]:
    shown = []
    for shot in snapshots:
        run = shot.progress.stepping
        losses = [loss for run in shot.progress.runs if run.name == "pretrain" for _step, loss, _speed in run.curve]
        if run is not None and losses:
            shown.append((shot.job.name, losses))
    if not shown:
        return ()
    scale = (min(min(losses) for _name, losses in shown), max(max(losses) for _name, losses in shown))
    return tuple((name, curves.sparkline(losses, CURVE_WIDTH, scale=scale)) for name, losses in shown)


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
