"""Where conversations come from: the tiny world, files of one's own, and mixtures of them."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from nanochat import conversation
from nanochat.contract import DataSource, RunConfig
from nanochat.data import toy
from nanochat.errors import BadConfig, BadData

__all__ = ["ConversationFile", "Conversations", "Listed", "Mixture", "OfTask", "first_look", "open_conversations", "own_files", "skipped_records"]

TOY_CONVERSATIONS = {"train": 4000, "val": 200}
AUTO_MIXTURE = ("smoltalk", *3 * ("mmlu",), *4 * ("gsm8k",))
"""What ``auto`` means where the text is not the tiny world's: upstream nanochat's mixture (karpathy/nanochat 92d63d4, ``scripts/chat_sft.py``)."""
FINGERPRINTED = 1000
VALIDATION_SHARE = 20


class Conversations(Protocol):
    """Conversations of one split, by number."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One of them."""
        ...

    def place(self, index: int) -> str:
        """Where one of them comes from, for messages."""
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

    def place(self, index: int) -> str:
        """Its number."""
        return f"conversation {index}"

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
        self.parts = parts
        self._starts = [sum(map(len, parts[:i])) for i in range(len(parts) + 1)]

    def __len__(self) -> int:
        """How many there are in all."""
        return self._starts[-1]

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One of them."""
        part = self._part(index)
        return self.parts[part][index - self._starts[part]]

    def place(self, index: int) -> str:
        """Its place in its source."""
        part = self._part(index)
        return self.parts[part].place(index - self._starts[part])

    def source(self, index: int) -> tuple[Conversations, int]:
        """Which source it is from, and how many copies of that source stand before."""
        part = self._part(index)
        return self.parts[part], sum(before is self.parts[part] for before in self.parts[:part])

    def _part(self, index: int) -> int:
        return next(i for i in range(len(self.parts)) if index < self._starts[i + 1])

    @property
    def fingerprint(self) -> str:
        """Over the parts."""
        return hashlib.sha256(" ".join(part.fingerprint for part in self.parts).encode()).hexdigest()


class OfTask:
    """Examples of a task, or rows of its files, as conversations.

    Args:
        name: Of the task and split.
        items: Each with its messages.
    """

    def __init__(self, name: str, items: Any) -> None:
        self._name, self._items = name, items

    def __len__(self) -> int:
        """How many there are."""
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One of them; nothing but the messages."""
        return {"messages": self._items[index].get("messages")}

    def place(self, index: int) -> str:
        """Source and number of the record."""
        return f"{self._name}, record {index}"

    @cached_property
    def fingerprint(self) -> str:
        """Over their number and a thousand of them: reading half a million on every rank would cost a minute."""
        digest = hashlib.sha256(f"{self._name} {len(self)}".encode())
        for i in range(0, len(self), max(1, len(self) // FINGERPRINTED)):
            digest.update(json.dumps(self[i], sort_keys=True).encode())
        return digest.hexdigest()


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
        self.path, self.refuses = path, on_bad_record == "refuse"
        self.skipped: list[str] = []
        good: list[tuple[int, dict[str, Any]]] = []
        lines: dict[int, int] = {}
        for number, line in enumerate(_lines(path), 1):
            if not line.strip():
                continue
            try:
                good.append((int.from_bytes(hashlib.sha256(line.strip()).digest()), _parse(line)))
                lines[len(good) - 1] = number
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
        chosen = [at for at, (digest, _) in enumerate(good) if (digest in held) == (split == "val")] or [0]
        self.lines = [lines[at] for at in chosen]
        """The line of each conversation in the file, counted from 1."""
        super().__init__([good[at][1] for at in chosen])

    def place(self, index: int) -> str:
        """File and line."""
        return f"{self.path}:{self.lines[index]}"

    def leave_out_unlearnable(self, learnt_of: Callable[[dict[str, Any]], int], limit: int) -> None:
        """Refuses conversations, or counts them as skipped, that hold nothing to learn once they are cut.

        Args:
            learnt_of: How many tokens of a conversation are learnt from.
            limit: Tokens that it is cut at, for the message.

        Raises:
            BadData: There is one, and bad records are refused.
        """
        for line, item in zip(self.lines, self._items, strict=True):
            if learnt_of(item):
                continue
            found = BadData(
                f"the assistant says nothing within the first {limit} tokens, where a conversation is cut", where=f"{self.path}:{line}",
                hint="shorten the question, raise run.model.sequence_len, or set run.sft.on_bad_record: skip",
            )
            if self.refuses:
                raise found
            self.skipped.append(f"{found.where}: {found.message}")


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
    auto = ("toy",) if run.data.source == DataSource.TOY else AUTO_MIXTURE
    names = [name for entry in run.sft.data for name in (auto if entry == "auto" else (entry,))]
    if split == "val":
        names = list(dict.fromkeys(names))  # what is trained on more often is not measured more often
    opened = {name: _open_one(name, run, split) for name in dict.fromkeys(names)}
    parts = [opened[name] for name in names]
    if not parts:
        raise BadConfig("no conversations are named", where="run.sft.data")
    return parts[0] if len(parts) == 1 else Mixture(parts)


def skipped_records(conversations: Conversations) -> list[str]:
    """Where records were left out because they are wrong, and why."""
    return [line for file in own_files(conversations) for line in file.skipped]


def first_look(conversations: Conversations, index: int) -> bool:
    """True for a conversation that nobody looks at before it is trained on, so that what is wrong with it is met, and counted, then.

    Not those of files of one's own, which are looked through when they are opened, and not the second copy of a source that a
    mixture holds several times.
    """
    if not isinstance(conversations, Mixture):
        return not isinstance(conversations, ConversationFile)
    source, copy = conversations.source(index)
    return copy == 0 and not isinstance(source, ConversationFile)


def own_files(conversations: Conversations) -> list[ConversationFile]:
    """The files of one's own among the sources, each once."""
    parts = conversations.parts if isinstance(conversations, Mixture) else [conversations]
    return [part for part in dict.fromkeys(parts) if isinstance(part, ConversationFile)]


def _open_one(name: str, run: RunConfig, split: str) -> Conversations:
    from nanochat.tasks.files import open_rows  # tasks read the tiny world's data, which is in this package
    from nanochat.tasks.registry import TASKS, open_task

    if name == "toy":
        return Listed(toy.conversations(run.seed if split == "train" else run.seed + 1, TOY_CONVERSATIONS[split]))
    if name.endswith(".jsonl"):
        return ConversationFile(Path(name), split, run.sft.on_bad_record)
    if name == "smoltalk":
        return OfTask(f"{name} {split}", open_rows(run, name, "train" if split == "train" else "test"))
    if name in TASKS:
        return OfTask(f"{name} {split}", open_task(name, run, split))
    raise BadConfig(
        f"{name!r} is not here", where="run.sft.data", hint=f"name a .jsonl file of conversations, toy, smoltalk, or one of {', '.join(sorted(TASKS))}",
    )
