"""Where conversations come from: the tiny world, files of one's own, and mixtures of them."""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from nanochat import conversation
from nanochat.contract import DataSource, RunConfig
from nanochat.data import toy
from nanochat.errors import BadConfig, BadData

__all__ = ["ConversationFile", "Conversations", "Listed", "Mixture", "open_conversations"]

TOY_CONVERSATIONS = {"train": 4000, "val": 200}
VALIDATION_SHARE = 20


class Conversations(Protocol):
    """Conversations of one split, by number."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One of them."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes if and only if they change."""
        ...


class Listed:
    """Conversations that are held in memory.

    Args:
        items: The conversations.
    """

    def __init__(self, items: Sequence[dict[str, Any]]) -> None:
        self._items = items

    def __len__(self) -> int:
        """How many there are."""
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One of them."""
        return self._items[index]

    @cached_property
    def fingerprint(self) -> str:
        """Over all of them."""
        return hashlib.sha256(json.dumps(list(self._items), sort_keys=True).encode()).hexdigest()


class Mixture:
    """Several sources as one; a source may come more than once.

    Args:
        parts: The sources.
    """

    def __init__(self, parts: Sequence[Conversations]) -> None:
        self._parts = parts
        self._starts = [sum(map(len, parts[:i])) for i in range(len(parts) + 1)]

    def __len__(self) -> int:
        """How many there are in all."""
        return self._starts[-1]

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One of them."""
        part = next(i for i in range(len(self._parts)) if index < self._starts[i + 1])
        return self._parts[part][index - self._starts[part]]

    @property
    def fingerprint(self) -> str:
        """Over the parts."""
        return hashlib.sha256(" ".join(part.fingerprint for part in self._parts).encode()).hexdigest()


class ConversationFile(Listed):
    """A .jsonl file with a conversation a line: ``{"messages": […]}`` or the list of messages alone.

    Validation has the lines whose SHA-256 is divisible by 20, at least one; they are not trained on.

    Args:
        path: The file.
        split: "train" or "val".
        on_bad_record: refuse stops at the first bad line, naming it; skip leaves it out and counts it in `skipped`.

    Raises:
        BadData: A bad line, or too few conversations.
    """

    def __init__(self, path: Path, split: str, on_bad_record: Literal["refuse", "skip"]) -> None:
        self.skipped: list[str] = []
        good: list[tuple[int, dict[str, Any]]] = []
        for number, line in enumerate(_lines(path), 1):
            if not line.strip():
                continue
            try:
                good.append((int.from_bytes(hashlib.sha256(line.strip()).digest()), _parse(line)))
            except BadData as error:
                found = BadData(error.message, where=f"{path}:{number}", hint="correct the line, or set run.sft.on_bad_record: skip")
                if on_bad_record == "refuse":
                    raise found from error
                self.skipped.append(f"{found.where}: {found.message}")
        if len(good) < 2:
            raise BadData(f"{len(good)} usable conversations; training and validation need at least one each", where=str(path))
        held = {digest for digest, _ in good if digest % VALIDATION_SHARE == 0} or {min(digest for digest, _ in good)}
        if len(held) == len({digest for digest, _ in good}):
            held = {min(held)} if len(held) > 1 else set()
        chosen = [item for digest, item in good if (digest in held) == (split == "val")]
        super().__init__(chosen or [item for _, item in good[:1]])


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        raise BadData(f"the file cannot be read: {error.strerror}", where=str(path)) from error


def _parse(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadData(f"not UTF-8: byte 0x{line[error.start]:02x} at {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise BadData(f"not JSON: {error}") from error
    messages = conversation.check(record)
    if len(messages) < 2:
        raise BadData("the assistant never speaks")
    return {"messages": messages}


def open_conversations(run: RunConfig, split: str) -> Conversations:
    """Conversations of one split for stage sft.

    Args:
        run: ``sft.data`` names them; ``auto`` is what fits the data source.
        split: "train" or "val".

    Raises:
        BadData: A file is unreadable or wrong.
        BadConfig: A name is not known.
    """
    parts: list[Conversations] = []
    for name in run.sft.data:
        wanted = ("toy" if run.data.source == DataSource.TOY else "smoltalk") if name == "auto" else name
        parts.append(_open_one(wanted, run, split))
    if not parts:
        raise BadConfig("no conversations are named", where="run.sft.data")
    return parts[0] if len(parts) == 1 else Mixture(parts)


def _open_one(name: str, run: RunConfig, split: str) -> Conversations:
    if name == "toy":
        return Listed(toy.conversations(run.seed if split == "train" else run.seed + 1, TOY_CONVERSATIONS[split]))
    if name.endswith(".jsonl"):
        return ConversationFile(Path(name), split, run.sft.on_bad_record)
    raise BadConfig(
        f"{name!r} is not here", where="run.sft.data", hint="name a .jsonl file of conversations, or toy",
    )
