"""The command line: finds commands without importing them, and is the only place that catches our errors.

Commands are listed in `COMMANDS` with their one-line help, so that ``--help`` and completion import none of them. Help is
plain text by choice: rich's renderer alone would take a third of a second of every ``--help``.
"""

import difflib
import errno
import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer
import typer.core
import typer.main

from nanochat_npu import __version__, console
from nanochat_npu.errors import NanochatNpuError, Problem, SpecError, UsageError
from nanochat_npu.i18n import LANGUAGES, _, language, set_language

__all__ = ["COMMANDS", "main", "make_app"]

CommandFault: Any = typer.BadParameter.__mro__[2]
"""click's ClickException. Typer 0.29 and later bring their own copy of click, so it is found through typer."""
INTERRUPTED = 130
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


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
    "calibrate": Entry("calibrate", "Measure speed and memory here, so that plans are sure.", PLAN),
    "config": Entry("config", "Show every resolved value and where it came from.", PLAN),
    "render": Entry("render", "Write the exact files that would be used.", PLAN),
    "build": Entry("build", "Build the container image of a spec and push it.", PLAN),
    "submit": Entry("submit", "Start a job, on a cluster or on this computer.", RUN),
    "cancel": Entry("cancel", "Stop a job; a checkpoint is written first.", RUN),
    "suspend": Entry("suspend", "Free a cluster job's NPUs for a while.", RUN),
    "resume": Entry("resume", "Let a suspended job go on.", RUN),
    "chat": Entry("chat", "Talk to a trained model.", RUN),
    "serve": Entry("serve", "Serve a trained model: a web page, and OpenAI's protocol.", RUN),
    "export": Entry("export", "Write a trained model for other programs.", RUN),
    "list": Entry("list_", "List jobs.", SEE),
    "status": Entry("status", "Show how a job is doing.", SEE),
    "cost": Entry("cost", "Show what jobs took and cost, against their estimates.", SEE),
    "logs": Entry("logs", "Show the output of a job's ranks.", SEE),
    "explain": Entry("explain", "Say why a job waits, or why it failed.", SEE),
    "report": Entry("report", "Write a job's report: page, Markdown, charts, CSV.", SEE),
    "tracking": Entry("tracking", "Upload what an offline tracker wrote.", SEE),
    "watch": Entry("watch", "Watch a job: curves, stages, time left.", SEE),
    "compare": Entry("compare", "Set jobs side by side.", SEE),
    "files": Entry("files", "Look at a cluster job's files: ls, cat, get, put.", SEE),
    "capacity": Entry("capacity", "NPUs of the cluster by node and queue, and who holds them.", CLUSTER),
    "data": Entry("data", "Bring training text to a cluster.", CLUSTER),
    "collect": Entry("collect", "Pack a job's clues into one archive, without secrets.", CLUSTER),
    "recover": Entry("recover", "Free a job whose pod hangs on a dead node.", CLUSTER),
    "doctor": Entry("doctor", "Check what jobs need: this computer, the cluster, a spec.", CLUSTER),
    "diff": Entry("diff", "Compare a spec with the job of its name.", CLUSTER),
    "lint": Entry("lint", "Check anyone's Volcano and Ascend YAML.", CLUSTER),
    "ranktable": Entry("ranktable", "Make, check and show HCCL rank tables.", CLUSTER),
    "image": Entry("image", "Versions, wheels and bill of materials of the container image.", CLUSTER),
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
        return typer.core.TyperCommand(cmd_name, short_help=_(entry.help), help=_(entry.help))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The real command, imported now.

        Raises:
            UsageError: There is no such command.
        """
        name = args[0]
        if name not in COMMANDS:
            if ctx.resilient_parsing:
                return None, None, args[1:]
            close = difflib.get_close_matches(name, list(COMMANDS), n=1, cutoff=0.7)
            hint = _("did you mean {name}?").format(name=close[0]) if close else _("commands: {names}").format(names=", ".join(COMMANDS))
            raise UsageError(_("there is no command '{name}'").format(name=name), hint=hint)
        return name, _load(name), args[1:]

    def get_help(self, ctx: Any) -> str:
        """The help text, with click's own words in the chosen language."""
        return _in_language(super().get_help(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Commands under their headings."""
        for panel in dict.fromkeys(entry.panel for entry in COMMANDS.values()):
            with formatter.section(_(panel)):
                formatter.write_dl([(name, _(entry.help)) for name, entry in COMMANDS.items() if entry.panel == panel])


def _clicks_words() -> dict[str, str]:
    """click's own words in help texts; its gettext catalogue has no Chinese."""
    return {
        "Usage: ": _("Usage: "), "\nOptions:\n": _("\nOptions:\n"), "\nArguments:\n": _("\nArguments:\n"), "\nCommands:\n": _("\nCommands:\n"),
        "[OPTIONS]": _("[OPTIONS]"), "COMMAND [ARGS]...": _("COMMAND [ARGS]..."), "[default: ": _("[default: "), "[required]": _("[required]"),
        "Show this message and exit.": _("Show this message and exit."),
        "Install completion for the current shell.": _("Install completion for the current shell."),
        "Show completion for the current shell, to copy it or\n                        customize the installation.": _("Show completion for the current shell."),
    }


def _in_language(text: str) -> str:
    for word, translated in _clicks_words().items():
        text = text.replace(word, translated)
    return text


def _load(name: str) -> Any:
    module = importlib.import_module(f"nanochat_npu.commands.{COMMANDS[name].module}")
    sub: typer.Typer | None = getattr(module, "app", None)
    if sub is None:
        sub = typer.Typer(add_completion=False, rich_markup_mode=None)
        sub.command(name)(module.command)
    command = typer.main.get_command(sub)
    command.name = name
    _translate(command)
    return command


def _translate(command: Any) -> None:
    """Help texts in the chosen language; docstrings of commands are in English and in the catalogue like all texts."""
    if command.help:
        command.help = _(" ".join(command.help.split()))
    for parameter in command.params:
        if getattr(parameter, "help", None):
            parameter.help = _(parameter.help)
    for inner in getattr(command, "commands", {}).values():
        _translate(inner)
    if hasattr(command, "rich_markup_mode"):
        command.rich_markup_mode = None
    plain_help = command.get_help
    command.get_help = lambda ctx: _in_language(plain_help(ctx))


def _show_version(value: bool) -> None:
    if value:
        console.data(f"nanochat-npu {__version__}")
        raise typer.Exit


def make_app() -> typer.Typer:
    """The program, with help texts in the language that is set."""
    app = typer.Typer(
        cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
    )

    @app.callback(help=_("Train nanochat language models on Ascend NPU clusters, or on this computer."))
    def _root(
        version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help=_("Show the version."))] = False,
        lang: Annotated[str | None, typer.Option("--lang", metavar="en|zh", help=_("Language of messages."))] = None,
    ) -> None:
        pass

    return app


def _choose_language(args: Sequence[str]) -> list[str]:
    """Set the language, and give back the arguments without ``--lang``, which may stand anywhere.

    It is looked for before anything else is parsed, since help and errors of parsing are translated too.
    """
    rest: list[str] = []
    chosen = language()
    words = iter(args)
    for word in words:
        if word == "--":
            rest.append(word)
            rest.extend(words)
        elif word == "--lang" or word.startswith("--lang="):
            chosen = word.partition("=")[2] if "=" in word else next(words, "")
        else:
            rest.append(word)
    set_language(chosen if chosen in LANGUAGES else language())
    if chosen not in LANGUAGES:
        raise UsageError(_("--lang: choose {names}, not '{value}'").format(names=", ".join(LANGUAGES), value=chosen))
    return rest


def _report(error: NanochatNpuError, argv: Sequence[str]) -> None:
    if _wants_json(argv):
        value = error.as_json()
        errors = {"errors": value.pop("errors")} if "errors" in value else {}
        console.json_data({"error": value, **errors, "exit_code": error.exit_code})
    elif isinstance(error, SpecError):
        for problem in error.problems:
            _report_problem(problem)
        if len(error.problems) > 1:
            console.say(_("{count} problems").format(count=len(error.problems)), style="bold")
    else:
        console.say(_("error: {text}").format(text=error), style="bold red")
        if error.hint:
            console.say(_("hint: {text}").format(text=error.hint), style="yellow")


def _report_problem(problem: Problem) -> None:
    """One problem as compilers show it: place, sentence, line and caret, way out."""
    console.say(str(problem), style="bold red")
    excerpt = problem.excerpt()
    if excerpt:
        console.say(excerpt)
    if problem.hint:
        console.say(_("hint: {text}").format(text=problem.hint), style="yellow")


def _wants_json(argv: Sequence[str]) -> bool:
    joined = " ".join(argv)
    return any(form in joined for form in ("-o json", "-ojson", "-o=json", "--output json", "--output=json"))


def _report_bug(error: Exception, argv: Sequence[str]) -> int:
    import tempfile
    import traceback

    place: str | None = None
    try:
        with tempfile.NamedTemporaryFile("w", prefix="nanochat-npu-", suffix=".log", delete=False, encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
        place = file.name
    except OSError:  # no room for it, or no folder: the sentence has to do
        pass
    what = f"{type(error).__name__}: {error}"
    if _wants_json(argv):
        console.json_data({"error": {"kind": "bug", "message": what, "where": place, "hint": None}, "exit_code": 1})
        return 1
    if place is None:
        console.say(_("this is a bug in nanochat-npu: {text} (its traceback could not be written to a temporary file)").format(text=what))
    else:
        console.say(_("this is a bug in nanochat-npu: {text} (traceback in {file})").format(text=what, file=place))
    return 1


def _report_full(error: OSError) -> int:
    """A full disk is not a bug of ours, whatever was being written."""
    console.forget(sys.stdout)
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    console.say(_("error: {text}").format(text=_("cannot write the result: {reason}").format(reason=what)), style="bold red")
    console.say(_("hint: {text}").format(text=_("make room, or write it elsewhere")), style="yellow")
    return UsageError.exit_code


def _called(args: Sequence[str]) -> str:
    """Program and command as the person called them, for complaints that do not know where they arose."""
    return " ".join(["nanochat-npu", *[word for word in args if word in COMMANDS][:1]])


def _run(args: Sequence[str]) -> int:
    words = _choose_language(args)
    code = make_app()(words or ["--help"], prog_name="nanochat-npu", standalone_mode=False)
    return code if isinstance(code, int) else 0


def main(argv: list[str] | None = None) -> Any:
    """Run the command line and leave with its exit code (design: 0 ok, 1 bug, 2 usage, 3 spec, … 130 interrupted)."""
    console.prepare_streams()
    args = sys.argv[1:] if argv is None else argv
    try:
        code = _run(args)
    except NanochatNpuError as error:
        _report(error, args)
        code = error.exit_code
    except typer.Exit as leave:
        code = leave.exit_code
    except CommandFault as error:
        from nanochat_npu.complaints import as_usage

        _report(as_usage(error, _called(args)), args)
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except SystemExit as leave:
        # click leaves with 1 where the reader of a stream or of a help text has left (`| head`): that is no error.
        if not isinstance(leave.__context__, BrokenPipeError):
            raise
        console.forget(sys.stdout)
        code = 0
    except OSError as error:
        code = _report_full(error) if error.errno in NO_ROOM else _report_bug(error, args)
    except Exception as error:
        code = _report_bug(error, args)
    sys.exit(code)


if __name__ == "__main__":
    main()
