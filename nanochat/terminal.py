"""The terminal side of a chat: lines of several lines, a history that stays, and commands that begin with a slash."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanochat.contract.chat_input import as_markdown, history, read_text
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
        with history(history_file(), person=self._person):
            while True:
                try:
                    said = read_text(self._ask)
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

    def _ask(self, sign: str) -> str:
        return input(sign if self._person else "")

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
            write_atomic(path, json.dumps({"messages": turns}, ensure_ascii=False, indent=1) + "\n" if path.suffix == ".json" else as_markdown(turns))
        except (OSError, RuntimeError) as error:  # RuntimeError: ~ of a user whom nobody knows
            self._tell(f"{name}: {getattr(error, 'strerror', None) or error}")
            return
        self._tell(f"{path}: {len(turns)} turns")

    def _tell(self, text: str | None) -> None:
        """Words about the chat, kept apart from the model's, which go to standard output."""
        if text is not None:
            print(text, file=sys.stderr, flush=True)
