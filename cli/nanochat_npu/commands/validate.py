"""``validate``: check a spec and list every problem."""

from collections.abc import Sequence

from nanochat_npu import console
from nanochat_npu.errors import Problem
from nanochat_npu.i18n import _
from nanochat_npu.load import load_spec
from nanochat_npu.options import OutputFormat, OutputOption, SetOption, SpecArgument, set_flags

__all__ = ["command", "say_advice"]


def command(spec: SpecArgument, set_: SetOption = None, output: OutputOption = OutputFormat.TEXT) -> None:
    """Check a spec and list every problem with its line; exit code 3 if there is one."""
    loaded = load_spec(spec, set_ or [])
    if output is OutputFormat.JSON:
        advice = [problem.as_json() for problem in loaded.advice]
        console.json_data({"valid": True, "job": loaded.spec.name, "backend": loaded.spec.backend, "errors": [], "advice": advice})
        return
    console.data(_("{source}: a good spec").format(source=loaded.source))
    say_advice(loaded.advice)
    console.say_next("plan", spec, *set_flags(set_))


def say_advice(advice: Sequence[Problem]) -> None:
    """What is possible but probably not meant, on stderr."""
    for problem in advice:
        console.say(_("note: {text}").format(text=problem))
        if problem.hint:
            console.say(_("hint: {text}").format(text=problem.hint))
