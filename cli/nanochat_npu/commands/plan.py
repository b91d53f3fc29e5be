"""``plan``: what a spec will do, before anything is spent."""

import datetime

from nanochat_npu import console, tables
from nanochat_npu.commands.validate import say_advice
from nanochat_npu.load import load_spec
from nanochat_npu.options import OutputFormat, OutputOption, SetOption, SpecArgument
from nanochat_npu.plan import make_plan
from nanochat_npu.plan_view import plan_sections, plan_values

__all__ = ["command"]


def command(spec: SpecArgument, set_: SetOption = None, output: OutputOption = OutputFormat.TEXT) -> None:
    """Show what a spec will do, before anything is spent: model, batch, horizon, names. Needs no cluster and no torch."""
    loaded = load_spec(spec, set_ or [])
    plan = make_plan(loaded.spec, datetime.date.today())
    sections = plan_sections(plan)
    if output is OutputFormat.JSON:
        advice = [problem.as_json() for problem in loaded.advice]
        console.json_data({**plan_values(plan), **tables.to_json(sections), "advice": advice})
    elif output is OutputFormat.MARKDOWN:
        console.data(tables.to_markdown(sections))
    else:
        console.data(tables.to_text(sections))
    say_advice(loaded.advice)
    console.say_next(f"nanochat-npu submit {spec}" + "".join(f" --set {override}" for override in set_ or []))
