"""The terminal side of a chat: lines of several lines, a history that stays, and commands that begin with a slash."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanochat.dialogue import Dialogue
from nanochat.engine import PromptTooLong
from nanochat.errors import TrainerError
from nanochat.files import write_atomic

__all__ = ["Terminal", "history_file"]

HELP = """\
/clear             forget what was said
/set NAME VALUE    temperature, top_k, top_p, max_new_tokens, seed, system; /set alone shows them
/save FILE         write the conversation: Markdown, or JSON where the name ends in .json
/help, /quit       Ctrl-D leaves too; Ctrl-C stops an answer, and empties the line
A line that ends in \\ goes on in the next; \"\"\" opens a text of several lines and closes it."""
HISTORY_LINES = 1000
FENCE = '"""'
SETTINGS: dict[str, type[int] | type[float]] = {"temperature": float, "top_k": int, "top_p": float, "max_new_tokens": int, "seed": int}


def history_file() -> Path:
    """Where lines are remembered, beside the jobs (``NANOCHAT_NPU_HOME``, else the XDG state folder)."""
    home = os.environ.get("NANOCHAT_NPU_HOME")
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    # Not Path.expanduser, which fails for ~ of a person whom nobody knows.
    return (Path(os.path.expanduser(home)) if home else Path(state) / "nanochat-npu") / "chat_history"  # noqa: PTH111


class Terminal:
    """Reads what a person says, prints what the model answers.

    Args:
        dialogue: With whom.
    """

    def __init__(self, dialogue: Dialogue) -> None:
        self.dialogue = dialogue
        self._person = sys.stdin.isatty()

    def run(self) -> None:
        """Talk until the end of the input, or ``/quit``."""
        with self._history():
            while True:
                try:
                    said = self._read()
                except EOFError:
                    self._tell("" if self._person else None)
                    return
                except KeyboardInterrupt:
                    self._tell("\n(Ctrl-D or /quit leaves)")
                    continue
                if said in ("/quit", "/exit"):
                    return
                if said.startswith("/"):
                    self._command(said)
                elif said:
                    self.turn(said)

    def turn(self, text: str) -> None:
        """One answer; Ctrl-C stops it and keeps the dialogue."""
        before = self.dialogue.forgotten
        try:
            self.say(text)
        except KeyboardInterrupt:
            self._tell("\n(stopped)")
        except PromptTooLong as error:
            self._tell(str(error))
        if self.dialogue.forgotten > before:
            self._tell(f"({self.dialogue.forgotten - before} older turns no longer fit and were forgotten)")

    def say(self, text: str) -> None:
        """The answer to a text, printed as it comes."""
        for piece in self.dialogue.answer(text):
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()

    def _read(self) -> str:
        """What the person says, of one line or several.

        Raises:
            EOFError: The input has ended.
        """
        line = input("> " if self._person else "")
        lines: list[str] = []
        if line.lstrip().startswith(FENCE):
            line = line.lstrip()[len(FENCE) :]
            while FENCE not in line:
                lines.append(line)
                line = self._more()
            return "\n".join([*lines, line.partition(FENCE)[0]]).strip()
        while line.endswith("\\"):
            lines.append(line[:-1])
            line = self._more()
        return "\n".join([*lines, line]).strip()

    def _more(self) -> str:
        return input("… " if self._person else "")

    def _command(self, said: str) -> None:
        name, _space, rest = said.partition(" ")
        rest = rest.strip()
        try:
            if name == "/clear":
                self.dialogue.clear()
                self._tell("(forgotten)")
            elif name == "/set":
                self._set(rest)
            elif name == "/save":
                self._save(rest)
            elif name == "/help":
                self._tell(HELP)
            else:
                self._tell(f"there is no {name}\n{HELP}")
        except TrainerError as error:
            self._tell(str(error))

    def _set(self, words: str) -> None:
        name, _space, value = words.partition(" ")
        name, value = name.replace("-", "_"), value.strip()
        if name == "system":
            self.dialogue.system = value
        elif name in SETTINGS and value:
            try:
                number = SETTINGS[name](value)
            except ValueError:
                self._tell(f"{name}: {value!r} is not a number")
                return
            self.dialogue.sampling = replace(self.dialogue.sampling, **{name: number})  # type: ignore[arg-type]  # by its type above
        elif name:
            self._tell(f"/set NAME VALUE, of {', '.join([*SETTINGS, 'system'])}")
            return
        shown: dict[str, Any] = {name: getattr(self.dialogue.sampling, name) for name in SETTINGS}
        self._tell("  ".join(f"{name} {value}" for name, value in {**shown, "system": repr(self.dialogue.system)}.items()))

    def _save(self, name: str) -> None:
        if not name:
            self._tell("/save FILE")
            return
        turns = self.dialogue.conversation()
        try:
            path = Path(name).expanduser()
            write_atomic(path, json.dumps({"messages": turns}, ensure_ascii=False, indent=1) + "\n" if path.suffix == ".json" else _markdown(turns))
        except (OSError, RuntimeError) as error:  # RuntimeError: ~ of a user whom nobody knows
            self._tell(f"{name}: {getattr(error, 'strerror', None) or error}")
            return
        self._tell(f"{path}: {len(turns)} turns")

    def _tell(self, text: str | None) -> None:
        """Words about the chat, kept apart from the model's, which go to standard output."""
        if text is not None:
            print(text, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def _history(self) -> Iterator[None]:
        """Editing, and lines of earlier chats with the arrow keys, where a person types."""
        if not self._person:
            yield
            return
        try:
            import readline
        except ImportError:  # a Python that was built without it
            yield
            return
        path = history_file()
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


def _markdown(turns: list[dict[str, Any]]) -> str:
    return "\n\n".join(f"**{turn['role']}**\n\n{turn['content']}" for turn in turns) + "\n"
