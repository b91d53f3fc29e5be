"""Any folder of text: .txt, .md and .py files, .jsonl with a field ``text``, .parquet with a column ``text``.

Validation documents are those whose SHA-256 is divisible by 20, at least one; so a document stays on its side when others
are added. The folder is scanned once at the start: every document is read, hashed and counted, and what is unreadable is named
before any training.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nanochat.data.corpus import Splits
from nanochat.data.shards import read_texts, row_groups
from nanochat.errors import BadData
from nanochat.files import write_atomic

__all__ = ["SUFFIXES", "FolderCorpus", "open_folder"]

TEXT_SUFFIXES = (".txt", ".md", ".py")
SUFFIXES = (*TEXT_SUFFIXES, ".jsonl", ".parquet")
VALIDATION_SHARE = 20
LINES_PER_BLOCK = 1024
TEXT_BLOCK_FILES = 256
INDEX_VERSION = 1
LONG_FILE_CHARS = 65_536
"""A longer text file is cut at blank lines into documents of about this length: one big file is then more than one document."""


@dataclass
class _Block:
    """Documents that are read together, and which of them belong to which split."""

    read: Callable[[], list[str]]
    where: str
    digest: str = ""
    train: list[int] = field(default_factory=list)
    val: list[int] = field(default_factory=list)

    def members(self, split: str) -> list[int]:
        return {"train": self.train, "val": self.val}[split]


class FolderCorpus:
    """One split of a folder.

    Args:
        name: For messages.
        split: "train" or "val".
        blocks: All blocks of the folder.
    """

    def __init__(self, name: str, split: str, blocks: Sequence[_Block]) -> None:
        self.name, self._split = name, split
        self._blocks = [block for block in blocks if block.members(split)]
        digest = hashlib.sha256(split.encode())
        for block in self._blocks:
            digest.update(block.digest.encode() + repr(block.members(split)).encode())
        self.fingerprint = digest.hexdigest()

    @property
    def block_sizes(self) -> Sequence[int]:
        """Documents of this split in each block."""
        return [len(block.members(self._split)) for block in self._blocks]

    def read_block(self, block: int) -> Sequence[str]:
        """Documents of this split in one block.

        Raises:
            BadData: A file changed or vanished since the start.
        """
        chosen = self._blocks[block]
        texts = chosen.read()
        if _digest(texts) != chosen.digest:
            raise BadData("the file has changed since the start of the job", where=chosen.where)
        return [texts[i] for i in chosen.members(self._split)]


def open_folder(folder: Path, index_file: Path | None = None) -> Splits:
    """Training and validation documents of a folder.

    Args:
        folder: Searched with everything below it.
        index_file: Where the outcome of the scan is kept, so that other ranks and later attempts need not scan again. It counts
            as long as names, sizes and times of change of all files are what they were.

    Raises:
        BadData: No usable file, a file that cannot be read or decoded, or fewer than two documents.
    """
    files = sorted(_files(folder))
    if not files:
        raise BadData(f"no {', '.join(SUFFIXES)} file in this folder", where=str(folder))
    listing = _listing(files, folder)
    blocks = list(_blocks(files))
    if index_file is None or not _read_index(index_file, listing, blocks):
        _scan(blocks, folder)
        if index_file is not None:
            _write_index(index_file, listing, blocks)
    return Splits(FolderCorpus(f"{folder} (train)", "train", blocks), FolderCorpus(f"{folder} (val)", "val", blocks))


def _scan(blocks: list[_Block], folder: Path) -> None:
    """Reads everything once: digests of the blocks, and the split of each document."""
    lowest: tuple[bytes, list[tuple[_Block, int]]] = (b"\xff" * 33, [])
    highest: tuple[bytes, list[tuple[_Block, int]]] = (b"", [])
    count = 0
    for block in blocks:
        texts = block.read()
        block.digest = _digest(texts)
        for i, text in enumerate(texts):
            if not text.strip():
                continue
            count += 1
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
            (block.val if int.from_bytes(digest) % VALIDATION_SHARE == 0 else block.train).append(i)
            if digest <= lowest[0]:
                lowest = (digest, [*(lowest[1] if digest == lowest[0] else []), (block, i)])
            if digest >= highest[0]:
                highest = (digest, [*(highest[1] if digest == highest[0] else []), (block, i)])
    if count < 2:
        raise BadData(
            f"{count} documents with text; training and validation need at least one each", where=str(folder),
            hint="add files, or cut the text into several",
        )
    if not any(block.val for block in blocks):
        _move(lowest[1], count, "train", "val")
    elif not any(block.train for block in blocks):
        _move(highest[1], count, "val", "train")


def _move(places: list[tuple[_Block, int]], count: int, source: str, target: str) -> None:
    """Moves a document with all its equals to the other split; only one of them where all documents are equal."""
    for block, i in places[:1] if len(places) == count else places:
        block.members(source).remove(i)
        block.members(target).append(i)


def _listing(files: list[Path], folder: Path) -> str:
    """Names, sizes and times of change of all files, as one checksum."""
    digest = hashlib.sha256(f"{INDEX_VERSION} {LINES_PER_BLOCK} {TEXT_BLOCK_FILES} {LONG_FILE_CHARS}".encode())
    for path in files:
        try:
            stat = path.stat()
        except OSError as error:
            raise BadData(f"the file cannot be read: {error.strerror}", where=str(path)) from error
        digest.update(f"{path.relative_to(folder)}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _read_index(path: Path, listing: str, blocks: list[_Block]) -> bool:
    """True if the index fits the files; the blocks then know their documents."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        entries = record["blocks"]
        if record["listing"] != listing or len(entries) != len(blocks):
            return False
        for block, (digest, train, val) in zip(blocks, entries, strict=True):
            block.digest, block.train, block.val = str(digest), list(train), list(val)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return True


def _write_index(path: Path, listing: str, blocks: list[_Block]) -> None:
    record = {"listing": listing, "blocks": [[block.digest, block.train, block.val] for block in blocks]}
    with suppress(OSError):  # it only saves time
        write_atomic(path, json.dumps(record, separators=(",", ":")))


def _files(folder: Path) -> Iterator[Path]:
    """Files of the known kinds, hidden ones and those in hidden folders left out; links are followed, each folder once."""

    def refuse(error: OSError) -> None:
        raise BadData(f"the folder cannot be read: {error.strerror}", where=str(error.filename)) from error

    seen: set[Path] = set()
    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = Path(parent).resolve()
        if real in seen:  # a link that leads back
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(parent) / name for name in names if not name.startswith(".")]
        # A link to nowhere is kept, so that reading it tells; a pipe or device would be waited for.
        yield from (path for path in paths if path.suffix in SUFFIXES and (path.is_file() or not path.exists()))


def _digest(texts: list[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def _blocks(files: list[Path]) -> Iterator[_Block]:
    for path in files:
        if path.suffix == ".parquet":
            for number in range(len(row_groups(path))):
                yield _Block(partial(read_texts, path, number), f"{path} row group {number}")
        elif path.suffix == ".jsonl":
            for first, offset, count in _line_blocks(path):
                yield _Block(partial(_read_lines, path, first, offset, count), str(path))
    plain = [path for path in files if path.suffix in TEXT_SUFFIXES]
    for start in range(0, len(plain), TEXT_BLOCK_FILES):
        group = plain[start : start + TEXT_BLOCK_FILES]
        yield _Block(partial(_read_whole, group), f"{group[0]} … {group[-1]}")


def _read_whole(files: list[Path]) -> list[str]:
    return [part for path in files for part in _cut(_read_file(path))]


def _read_file(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadData(f"the file cannot be read: {error.strerror}", where=str(path)) from error
    return _decode(raw, path, 1)


def _decode(raw: bytes, path: Path, line: int) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = line + raw.count(b"\n", 0, error.start)
        raise BadData(
            f"not UTF-8: byte 0x{raw[error.start]:02x}", where=f"{path}:{at}", hint="convert the file to UTF-8, for example with iconv",
        ) from error


def _cut(text: str) -> list[str]:
    """A text as documents: whole, or cut at blank lines (else at line ends, else anywhere) where it is long."""
    if len(text) <= LONG_FILE_CHARS:
        return [text]
    parts, start = [], 0
    while len(text) - start > LONG_FILE_CHARS:
        end = start + LONG_FILE_CHARS
        for separator in ("\n\n", "\n", " "):
            at = text.rfind(separator, start + LONG_FILE_CHARS // 2, end)
            if at > 0:
                end = at + len(separator)
                break
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]


def _line_blocks(path: Path) -> Iterator[tuple[int, int, int]]:
    """First line number, byte offset and number of lines of each block."""
    try:
        with path.open("rb") as file:
            number, offset, count, position = 1, 0, 0, 0
            for line in file:
                count += 1
                position += len(line)
                if count == LINES_PER_BLOCK:
                    yield number, offset, count
                    number, offset, count = number + count, position, 0
            if count:
                yield number, offset, count
    except OSError as error:
        raise BadData(f"the file cannot be read: {error.strerror}", where=str(path)) from error


def _read_lines(path: Path, first: int, offset: int, count: int) -> list[str]:
    texts = []
    try:
        with path.open("rb") as file:
            file.seek(offset)
            lines = [file.readline() for _ in range(count)]
    except OSError as error:
        raise BadData(f"the file cannot be read: {error.strerror}", where=str(path)) from error
    for number, line in enumerate(lines, first):
        if line.strip():
            texts.append(_text_of(line, path, number))
    return texts


def _text_of(line: bytes, path: Path, number: int) -> str:
    where = f"{path}:{number}"
    try:
        record = json.loads(_decode(line, path, number))
    except (ValueError, RecursionError) as error:
        raise BadData(f"not JSON: {error}", where=where) from error
    text = record.get("text") if isinstance(record, dict) else record
    if not isinstance(text, str):
        raise BadData("no text in field 'text'", where=where)
    return text
