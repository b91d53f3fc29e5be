"""The only file that writes to the terminal: data on stdout, talk on stderr, no colour or animation in a pipe."""

import io
import json
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

__all__ = [
    "SCHEMA_VERSION", "binary_data", "confirm", "data", "forget", "is_interactive", "is_watching", "json_data", "prepare_streams", "rich_err", "rich_out", "say", "say_next", "stream_data",
    "width",
]

SCHEMA_VERSION = 1
"""Version of the JSON that ``-o json`` prints; raised when a key changes its meaning."""


def rich_out() -> "RichConsole":
    """Rich console on stdout, plain in a pipe and under NO_COLOR."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty())


def rich_err() -> "RichConsole":
    """Rich console on stderr, plain in a pipe and under NO_COLOR."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, soft_wrap=not sys.stderr.isatty())


def is_interactive() -> bool:
    """True if a person is at the terminal: questions may be asked and progress may move."""
    return sys.stdin.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")


def is_watching() -> bool:
    """True if a person sees stderr: pictures may move there, even while stdout goes into a pipe."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")


def width(default: int = 80) -> int:
    """Columns of the terminal, or `default` in a pipe."""
    import shutil

    return shutil.get_terminal_size((default, 24)).columns


def forget(stream: IO[str]) -> None:
    """Let everything further that is written to stdout or stderr vanish: its reader has left (`| head`)."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def prepare_streams() -> None:
    """Let stdin, stdout and stderr take whatever is written, in any environment.

    Streams that the caller closed (`>&-`) become empty ones; Python has None for them. That also keeps a file that is opened
    later from getting their number, and so what is printed. A character that the encoding lacks, or half of one in the name of
    a file, is written as its escape, which JSON and YAML read as the same character, instead of ending the command.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  (they live as long as the program)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _write(stream: IO[str], text: str) -> None:
    # A reader that has left does not change what a command does, nor its exit code.
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        forget(stream)
    except OSError:
        # Talk that cannot be kept is no reason to fail; data is. What is left in the buffer would fail once more at the end.
        forget(stream)
        if stream is sys.stdout:
            raise


def data(text: str) -> None:
    """Write what was asked for to stdout, with exactly one newline at the end."""
    _write(sys.stdout, text if text.endswith("\n") else text + "\n")


def stream_data(text: str) -> None:
    """Write a line of many, perhaps endless ones to stdout.

    Raises:
        BrokenPipeError: The reader has left, so that there is no point in further ones.
    """
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def binary_data(piece: bytes) -> None:
    """Write bytes to stdout as they are."""
    sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def json_data(value: dict[str, Any]) -> None:
    """Write an object to stdout as JSON, with its schema_version first."""
    data(json.dumps({"schema_version": SCHEMA_VERSION, **value}, ensure_ascii=False, indent=2, default=str))


def say(text: str = "", *, style: str | None = None) -> None:
    """Write talk to stderr; `style` is a rich style and is dropped in a pipe."""
    if style and sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        rich_err().print(text, style=style, markup=False)
    else:
        _write(sys.stderr, text + "\n")


def say_next(*words: str) -> None:
    """Name the command that comes next, for people who do not know the program by heart.

    Args:
        words: Words of the command after the program's name, unquoted; what a shell would read otherwise is quoted here.
    """
    import shlex

    from nanochat_npu.i18n import _

    say(_("next: {command}").format(command=shlex.join(["nanochat-npu", *words])))


def confirm(question: str, *, yes: bool) -> bool:
    """Ask a person. Without a terminal, or with ``--yes``, nobody is asked: the answer is `yes`."""
    if yes or not is_interactive():
        return yes
    sys.stderr.write(f"{question} [y/n]: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes", "是")
