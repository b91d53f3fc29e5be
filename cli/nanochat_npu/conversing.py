"""A conversation in the terminal with a chat server: the same commands and keys as ``python -m nanochat chat``.

The trainer has its own (`nanochat.terminal`), since a login node need not have the trainer and a container not this program; how a person
types is one piece of code for both.
"""

import io
import json
import sys
from pathlib import Path
from typing import Any

from nanochat.contract.chat_input import as_markdown, history, read_text
from nanochat_npu import console
from nanochat_npu.errors import ClusterError, ClusterUnreachable
from nanochat_npu.i18n import _
from nanochat_npu.jobs import home_dir
from nanochat_npu.talk import answer

__all__ = ["Conversation"]

SETTINGS: dict[str, type[int] | type[float]] = {"temperature": float, "top_k": int, "top_p": float, "max_tokens": int, "seed": int}


def _help() -> str:
    return _(
        "/clear forgets what was said; /set NAME VALUE changes temperature, top_k, top_p, max_tokens, seed or system; /save FILE writes the conversation "
        "(Markdown, or .json); /quit or Ctrl-D leaves; Ctrl-C stops an answer. A line that ends in \\ goes on; three double quotes open and close a longer text."
    )


class Conversation:
    """Turns with a server.

    Args:
        url: Its address.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._turns: list[dict[str, str]] = []
        self._settings: dict[str, float] = {}
        self._system = ""
        self._person = console.is_interactive()

    def run(self) -> None:
        """Talk until the end of the input, or ``/quit``."""
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a text in another encoding ends no conversation
        if self._person:
            console.say(_help())
        with history(home_dir() / "chat_history", person=self._person and sys.stdin.isatty()):
            while True:
                try:
                    said = read_text(self._ask)
                except EOFError:
                    return
                except KeyboardInterrupt:
                    console.say("\n" + _("(Ctrl-D or /quit leaves)"))
                    continue
                if said in ("/quit", "/exit"):
                    return
                if said.startswith("/"):
                    self._command(said)
                elif said:
                    self._turn(said)

    def ask(self, said: str) -> None:
        """One question; its answer is printed as it comes.

        Raises:
            ClusterError: The server refuses, or cannot be reached.
        """
        whole = ""
        try:
            for piece in answer(self._url, [*self._all(), {"role": "user", "content": said}], **self._settings):
                whole += piece
                console.binary_data(piece.encode())
        finally:
            console.binary_data(b"\n")
            if whole:
                self._turns += [{"role": "user", "content": said}, {"role": "assistant", "content": whole}]

    def _all(self) -> list[dict[str, str]]:
        return [*([{"role": "system", "content": self._system}] if self._system else []), *self._turns]

    def _turn(self, said: str) -> None:
        try:
            self.ask(said)
        except KeyboardInterrupt:  # the stream is closed by now, and the server generates no more
            console.say(_("(stopped)"))
        except ClusterUnreachable:
            raise
        except ClusterError as error:  # too long, busy: the person may go on
            console.say(_("error: {text}").format(text=error), style="bold red")

    def _ask(self, sign: str) -> str:
        return input(sign if self._person else "")

    def _command(self, said: str) -> None:
        name, _space, rest = said.partition(" ")
        if name == "/clear":
            self._turns = []
            console.say(_("(forgotten)"))
        elif name == "/set":
            self._set(rest.strip())
        elif name == "/save" and rest.strip():
            self._save(rest.strip())
        else:
            console.say(_help())

    def _set(self, words: str) -> None:
        name, _space, value = words.partition(" ")
        name = name.replace("-", "_")
        if name == "system":
            self._system = value.strip()
        elif name in SETTINGS:
            try:
                self._settings[name] = SETTINGS[name](value)
            except ValueError:
                console.say(_("{name}: '{value}' is not a number").format(name=name, value=value))
                return
        elif name:
            console.say(_help())
            return
        shown: dict[str, Any] = {**self._settings, "system": self._system}
        console.say("  ".join(f"{key} {value!r}" for key, value in shown.items()))

    def _save(self, name: str) -> None:
        turns = self._all()
        try:
            path = Path(name).expanduser()
        except RuntimeError as error:  # ~ of a user whom nobody knows
            console.say(_("cannot write {path}: {reason}").format(path=name, reason=error))
            return
        text = (
            json.dumps({"messages": turns}, ensure_ascii=False, indent=1) + "\n" if path.suffix == ".json"
            else as_markdown(turns)
        )
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            console.say(_("cannot write {path}: {reason}").format(path=path, reason=error.strerror))
            return
        console.say(_("{path}: {count} turns").format(path=path, count=len(turns)))
