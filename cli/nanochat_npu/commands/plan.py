"""``plan``: what a spec will do, take and cost, before anything is spent."""

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from nanochat_npu import console, tables
from nanochat_npu.commands.validate import say_advice
from nanochat_npu.errors import BudgetError, SpecError, UsageError
from nanochat_npu.estimate import Calibration, Estimate
from nanochat_npu.estimating import check_budget, estimate_here, is_too_large, over_budget
from nanochat_npu.i18n import _
from nanochat_npu.load import LoadedSpec, load_spec
from nanochat_npu.options import OutputFormat, OutputOption, PriceOption, PricesOption, SetOption, SpecArgument
from nanochat_npu.plan import Plan, make_plan
from nanochat_npu.plan_view import plan_sections, plan_values
from nanochat_npu.planviews.sections import all_sections
from nanochat_npu.planviews.value import as_json, suggested_set
from nanochat_npu.tables import Section

__all__ = ["Planned", "command", "plan_with_estimate"]

CompareOption = Annotated[str | None, typer.Option("--compare", metavar="SPEC", help=_("Show the differences to another spec."), show_default=False)]
SweepOption = Annotated[
    str | None, typer.Option("--sweep", metavar="KEY=A,B,C", help=_("One line for each value, for example run.model.depth=12,20,26."), show_default=False)
]
PlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help=_("Draw the sweep (.svg or .png); without --sweep over nodes."), show_default=False)]
ExplainOption = Annotated[
    str | None, typer.Option("--explain-estimate", metavar="TERM", help=_("Formula, inputs and sources of a figure; 'list' names them."), show_default=False)
]
CalibrationOption = Annotated[
    Path | None, typer.Option("--calibration", metavar="FILE", help=_("A calibration beside the stored ones."), show_default=False)
]
PlanFileOption = Annotated[Path | None, typer.Option("--to", metavar="FILE", help=_("Put the plan aside; later: submit FILE."), show_default=False)]
DEFAULT_COUNTS = "1,2,4,8"
WHOLE_NODE_NPUS = 8
"""Of a server of the 910B family."""


@dataclass(frozen=True)
class Planned:
    """A spec, its plan and its estimate."""

    loaded: LoadedSpec
    plan: Plan
    estimate: Estimate
    problems: tuple[str, ...] = ()


def plan_with_estimate(source: str, overrides: list[str], calibrations: tuple[Calibration, ...] = ()) -> Planned:
    """Load a spec or a plan file, plan it and estimate it with what this computer knows.

    Raises:
        SpecError: The spec is wrong.
    """
    if source.endswith(".json"):
        from nanochat_npu import planfile

        loaded = planfile.load(source, overrides)
    else:
        loaded = load_spec(source, overrides)
    plan = make_plan(loaded.spec, datetime.date.today())
    result, problems = estimate_here(plan, calibrations)
    return Planned(loaded, plan, result, problems)


def command(
    spec: SpecArgument, set_: SetOption = None, output: OutputOption = OutputFormat.TEXT, compare: CompareOption = None, sweep: SweepOption = None,
    plot: PlotOption = None, explain_estimate: ExplainOption = None, price: PriceOption = None, prices: PricesOption = None,
    calibration: CalibrationOption = None, to: PlanFileOption = None,
) -> None:
    """Show what a spec will do, take and cost, before anything is spent. Needs no cluster, no network and no torch."""
    _one_of(compare=compare, sweep=sweep or plot, explain_estimate=explain_estimate)
    overrides = list(set_ or [])
    if price is not None or prices is not None:
        from nanochat_npu.prices import priced

        overrides += priced(spec, overrides, price, prices)
    calibrations = _read_calibration(calibration)
    if sweep is not None or plot is not None:
        _sweep(spec, overrides, sweep or _default_sweep(spec, overrides), plot, calibrations, output)
        return
    planned = plan_with_estimate(spec, overrides, calibrations)
    if to is not None:
        from nanochat_npu import planfile

        # Before anything is shown: an error after it would be a second JSON object on stdout.
        planfile.save(to, planned.plan, planned.loaded, overrides, as_json(planned.estimate, planned.plan.today))
    if explain_estimate is not None:
        _explain(planned, explain_estimate, output)
    elif compare is not None:
        from nanochat_npu.planviews.tables import comparison

        other = plan_with_estimate(compare, overrides, calibrations)
        _show([comparison((planned.plan.name, planned.estimate), (other.plan.name, other.estimate))], output)
    else:
        flags = [*_flags("--set", *(set_ or [])), *_flags("--price", price), *_flags("--prices", prices)]
        _show_plan(spec, planned, flags, output)
    if to is not None:
        console.say_next("submit", str(to))
    if output is OutputFormat.JSON and (found := over_budget(planned.estimate)):
        # One object on stdout: what exceeds the budget stands in it, so the error only says so and sets the code.
        console.say("; ".join(found))
        raise typer.Exit(BudgetError.exit_code)
    check_budget(planned.estimate)


def _one_of(**given: object) -> None:
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if len(names) > 1:
        raise UsageError(_("{one} and {two} cannot go together").format(one=names[0], two=names[1]))


def _flags(name: str, *values: str | None) -> list[str]:
    return [part for value in values if value is not None for part in (name, value)]


def _default_sweep(source: str, overrides: list[str]) -> str:
    """Over nodes; over the NPUs of one node for a job that takes a part of it, since several nodes are whole ones.

    Raises:
        UsageError: It is a plan file, in which nothing is varied.
    """
    if source.endswith(".json"):
        from nanochat_npu import planfile

        planfile.refuse_changes(source)
    resources = load_spec(source, overrides).spec.resources
    part = resources.nodes == 1 and 0 < resources.npus_per_node < WHOLE_NODE_NPUS
    return f"resources.{'npus_per_node' if part else 'nodes'}={DEFAULT_COUNTS}"


def _read_calibration(path: Path | None) -> tuple[Calibration, ...]:
    if path is None:
        return ()
    from nanochat_npu.calibration import read_file

    return (read_file(path),)


def _show(sections: list[Section], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        console.json_data(tables.to_json(sections))
    else:
        console.data(tables.to_markdown(sections) if output is OutputFormat.MARKDOWN else tables.to_text(sections))


def _show_plan(source: str, planned: Planned, flags: list[str], output: OutputFormat) -> None:
    plan = planned.plan
    sections = plan_sections(plan)
    if output is OutputFormat.JSON:
        advice = [problem.as_json() for problem in planned.loaded.advice]
        values: dict[str, Any] = {**plan_values(plan), **tables.to_json(sections), **as_json(planned.estimate, plan.today), "over_budget": over_budget(planned.estimate), "advice": advice}
        console.json_data(values)
    else:
        _show([*sections, *all_sections(planned.estimate, plan.today, datetime.datetime.now())], output)
    for problem in planned.problems:
        console.say(problem)
    say_advice(planned.loaded.advice)
    if not over_budget(planned.estimate):
        _say_next(source, planned.estimate, flags)


def _say_next(source: str, result: Estimate, flags: list[str]) -> None:
    """The command after ``plan``, as a shell reads it: no submission of what would not fit."""
    fits = not is_too_large(result)
    way_out = None if fits else suggested_set(result)
    if fits or way_out is not None:
        console.say_next("submit" if fits else "plan", source, *flags, *_flags("--set", way_out))
    else:
        console.say(_("it does not fit: a smaller depth, or more NPUs"))


def _sweep(source: str, overrides: list[str], sweep: str, plot: Path | None, calibrations: tuple[Calibration, ...], output: OutputFormat) -> None:
    key, equals, values = sweep.partition("=")
    wanted = [value.strip() for value in values.split(",") if value.strip()]
    if not equals or not key or not wanted:
        raise UsageError(_("a sweep is KEY=A,B,C"), where="--sweep", hint="--sweep run.model.depth=12,20,26")
    points: list[tuple[str, Estimate]] = []
    for value in wanted:
        try:
            points.append((value, plan_with_estimate(source, [*overrides, f"{key}={value}"], calibrations).estimate))
        except SpecError as error:
            console.say(_("{key}={value} is left out: {reason}").format(key=key, value=value, reason=error.problems[0].message))
    if not points:
        raise UsageError(_("no value of the sweep is possible"), where="--sweep")
    if plot is not None:
        from nanochat_npu.plot import plot_sweep

        plot_sweep(plot, key, points)
        console.say(_("drawn: {file}").format(file=plot))
    from nanochat_npu.planviews.tables import sweep as sweep_section

    _show([sweep_section(key, points)], output)


def _explain(planned: Planned, term: str, output: OutputFormat) -> None:
    from nanochat_npu.estimate.explain import explain, explainable
    from nanochat_npu.planviews.tables import explanation

    names = explainable(planned.estimate)
    if term == "list":
        console.data("\n".join(names))
        return
    found = explain(planned.estimate, term)
    if found is None:
        raise UsageError(_("no figure '{name}' in this estimate").format(name=term), where="--explain-estimate", hint=_("there are: {names}").format(names=", ".join(names)))
    _show([explanation(found)], output)
