"""The command line: finds commands without importing them, and is the only place that catches our errors.

Commands are listed in `COMMANDS` with their one-line help, so that ``--help`` and completion import none of them.
"""

import importlib
import os
import sys
import tempfile
import traceback
from typing import Annotated, Any, NamedTuple

import typer
import typer.core
import typer.main

from nanochat_npu import __version__, console
from nanochat_npu.errors import NanochatNpuError
from nanochat_npu.i18n import _, set_language

__all__ = ["COMMANDS", "app", "main"]


# Newer Typer brings its own copy of click; this is the class that it raises, whichever copy that is.
_UsageProblem: type[Exception] = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")


class Entry(NamedTuple):
    """Where a command lives and what its line in ``--help`` says."""

    module: str
    help: str
    panel: str


PLAN, RUN, SEE, CLUSTER = "Write and plan", "Run", "See", "Cluster and image"

COMMANDS: dict[str, Entry] = {
    "init": Entry("init", "Write a spec from a preset.", PLAN),
    "validate": Entry("validate", "Check a spec and list every problem.", PLAN),
    "plan": Entry("plan", "Show what a spec will do, before anything is spent.", PLAN),
    "config": Entry("config", "Show every resolved value and where it came from.", PLAN),
    "render": Entry("render", "Write the exact files that would be used.", PLAN),
    "submit": Entry("submit", "Start a job, on a cluster or on this computer.", RUN),
    "cancel": Entry("cancel", "Stop a job; a checkpoint is written first.", RUN),
    "chat": Entry("chat", "Talk to a trained model.", RUN),
    "list": Entry("list_", "List jobs.", SEE),
    "status": Entry("status", "Show how a job is doing.", SEE),
    "logs": Entry("logs", "Show the output of a job's ranks.", SEE),
    "ranktable": Entry("ranktable", "Make, check and show HCCL rank tables.", CLUSTER),
}
"""Name → module under ``nanochat_npu.commands``, help line, panel. Texts are translated when shown."""


class LazyGroup(typer.core.TyperGroup):
    """A group that imports a command's module only when that command is run or asked for its own help."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in that knows only name and help: enough for ``--help`` and for completion of names."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        stub = typer.core.TyperCommand(cmd_name, short_help=_(entry.help), help=_(entry.help))
        stub.rich_help_panel = _(entry.panel)
        return stub

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The real command, imported now."""
        name, stub, rest = super().resolve_command(ctx, args)
        return name, (self._load(stub.name) if stub is not None and stub.name else stub), rest

    def _load(self, name: str) -> Any:
        module = importlib.import_module(f"nanochat_npu.commands.{COMMANDS[name].module}")
        sub: typer.Typer | None = getattr(module, "app", None)
        if sub is None:
            sub = typer.Typer(add_completion=False)
            sub.command(name)(module.command)
        command = typer.main.get_command(sub)
        command.name = name
        return command


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)


def _show_version(value: bool) -> None:
    if value:
        console.data(f"nanochat-npu {__version__}")
        raise typer.Exit


def _choose_language(value: str | None) -> str | None:
    if value:
        if value not in ("en", "zh"):
            raise typer.BadParameter(_("choose en or zh"))
        set_language(value)
    return value


@app.callback(help=_("Train nanochat language models on Ascend NPU clusters, or on this computer."))
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help=_("Show the version."))] = False,
    lang: Annotated[
        str | None, typer.Option("--lang", metavar="en|zh", callback=_choose_language, is_eager=True, help=_("Language of messages."))
    ] = None,
) -> None:
    pass


def _report(error: NanochatNpuError, argv: list[str]) -> None:
    if _wants_json(argv):
        console.json_data({"error": error.as_json(), "exit_code": error.exit_code, **({"errors": error.details["errors"]} if "errors" in error.details else {})})
        return
    console.say(_("error: {text}").format(text=error), style="bold red")
    if error.hint:
        console.say(_("hint: {text}").format(text=error.hint), style="yellow")


def _wants_json(argv: list[str]) -> bool:
    joined = " ".join(argv)
    return any(form in joined for form in ("-o json", "-ojson", "--output json", "--output=json"))


def _report_bug(error: Exception) -> int:
    with tempfile.NamedTemporaryFile("w", prefix="nanochat-npu-", suffix=".log", delete=False) as file:
        traceback.print_exception(error, file=file)
    console.say(_("this is a bug in nanochat-npu: {text} (traceback in {file})").format(text=f"{type(error).__name__}: {error}", file=file.name))
    return 1


def _show_usage_problem(problem: Any) -> int:
    problem.show()
    return int(problem.exit_code)


def main(argv: list[str] | None = None) -> Any:
    """Run the command line and leave with its exit code (design: 0 ok, 1 bug, 2 usage, 3 spec, … 130 interrupted)."""
    args = sys.argv[1:] if argv is None else argv
    try:
        code = app(args, prog_name="nanochat-npu", standalone_mode=False)
    except NanochatNpuError as error:
        _report(error, args)
        code = error.exit_code
    except typer.Exit as leave:
        code = leave.exit_code
    except _UsageProblem as problem:
        code = _show_usage_problem(problem)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        # The reader of our output left (`| head`): not an error; keep Python's shutdown from writing to it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        code = _report_bug(error)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()


