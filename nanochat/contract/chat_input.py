"""How a person types in a chat, the same in the trainer's own (`nanochat.terminal`) and in the command line's with a cluster."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

__all__ = ["as_markdown", "history", "read_text"]

FENCE = '"""'
HISTORY_LINES = 1000


def read_text(ask: Callable[[str], str]) -> str:
    """What a person says, of one line or several: a line that ends in a backslash goes on, three double quotes open and close a text.

    Args:
        ask: Gives the next line; gets the sign to show before it, ``> `` or ``… ``.

    Raises:
        EOFError: The input has ended.
    """
    line = ask("> ")
    lines: list[str] = []
    if line.lstrip().startswith(FENCE):
        line = line.lstrip()[len(FENCE) :]
        while FENCE not in line:
            lines.append(line)
            line = ask("… ")
        return "\n".join([*lines, line.partition(FENCE)[0]]).strip()
    while line.endswith("\\"):
        lines.append(line[:-1])
        line = ask("… ")
    return "\n".join([*lines, line]).strip()


@contextlib.contextmanager
def history(path: Path, *, person: bool) -> Iterator[None]:
    """Editing, and lines of earlier chats with the arrow keys, where a person types.

    Args:
        path: Where lines are remembered.
        person: False for a pipe, which has neither.
    """
    if not person:
        yield
        return
    try:
        import readline
    except ImportError:  # a Python that was built without it
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a full or read-only disk costs the history, not the chat
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.set_history_length(HISTORY_LINES)
            readline.write_history_file(path)


def as_markdown(turns: Iterable[Mapping[str, object]]) -> str:
    """A conversation to read, from turns with ``role`` and ``content``."""
    return "\n\n".join(f"**{turn['role']}**\n\n{turn['content']}" for turn in turns) + "\n"
