"""Source folder: what it reads, how it splits, and a named error for everything that it cannot read."""

import hashlib
import json
import os
from collections import Counter
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_helpers import BYTES, random_texts, run_file, write_shard

from nanochat.contract import DataConfig
from nanochat.data import Place, build_loader, iter_texts, open_corpus, validation_batches
from nanochat.data.folder import LONG_FILE_CHARS
from nanochat.errors import BadConfig, BadData


def split(folder: Path, **more: object) -> tuple[list[str], list[str]]:
    corpora = open_corpus(DataConfig(source="folder", dir=str(folder), **more), 0, folder.parent / "job")
    return list(iter_texts(corpora.train)), list(iter_texts(corpora.val))


def is_val(text: str) -> bool:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % 20 == 0


def test_all_kinds_of_files_are_read_and_split_by_hash(tmp_path: Path) -> None:
    texts = random_texts(200, 30)
    for i, suffix in enumerate((".txt", ".md", ".py")):
        (tmp_path / f"plain{i}{suffix}").write_text(texts[i])
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "lines.jsonl").write_text("".join(json.dumps({"text": text, "more": 1}) + "\n\n" for text in texts[3:80]))
    write_shard(deep / "shard.parquet", [*texts[80:], None, ""], row_group=50)
    (tmp_path / "ignored.csv").write_text("no")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.txt").write_text("no")
    train, val = split(tmp_path)
    assert sorted(train + val) == sorted(texts)
    assert sorted(val) == sorted(text for text in texts if is_val(text)) and val


def test_validation_has_at_least_one_document_and_training_too(tmp_path: Path) -> None:
    texts = [text for text in random_texts(30, 5) if not is_val(text)][:3]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
    train, val = split(tmp_path)
    assert len(train) == 2 and len(val) == 1


def test_equal_documents_only_still_give_both_splits(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / f"{i}.txt").write_text("the same")
    train, val = split(tmp_path)
    assert (len(train), len(val)) == (3, 1)


def test_a_document_stays_on_its_side_when_others_are_added(tmp_path: Path) -> None:
    texts = random_texts(300, 5)
    (tmp_path / "one.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:150]))
    before = set(split(tmp_path)[1])
    (tmp_path / "two.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[150:]))
    assert before <= set(split(tmp_path)[1])


def test_one_long_file_is_cut_at_blank_lines_into_documents(tmp_path: Path) -> None:
    paragraphs = [f"{i} " + "word " * 200 for i in range(400)]
    text = "\n\n".join(paragraphs)
    (tmp_path / "book.txt").write_text(text)
    train, val = split(tmp_path)
    assert len(train) + len(val) >= len(text) // LONG_FILE_CHARS and max(map(len, train + val)) <= LONG_FILE_CHARS
    assert sum(map(len, train + val)) == len(text)
    assert all(part.split()[0].isdigit() for part in train + val)


def test_a_long_file_without_any_break_is_still_cut(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x" * (5 * LONG_FILE_CHARS))
    (tmp_path / "y.txt").write_text("y")
    train, val = split(tmp_path)
    assert max(map(len, train + val)) == LONG_FILE_CHARS


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello")
    (tmp_path / "b.txt").write_text("there")
    assert sorted(chain(*split(tmp_path))) == ["hello", "there"]


@pytest.mark.parametrize(("files", "told"), [
    ({}, r"no \.txt, \.md, \.py, \.jsonl, \.parquet file"),
    ({"a.csv": b"x"}, "no .txt"),
    ({"a.txt": b"one"}, "1 documents with text"),
    ({"a.txt": b"", "b.txt": b"  \n"}, "0 documents with text"),
    ({"a.txt": b"ok", "b.md": b"line\nbad \xff byte"}, r"b\.md:2: not UTF-8: byte 0xff.*iconv"),
    ({"a.txt": b"ok", "b.jsonl": b'{"text": "x"}\n{"text": "y"'}, r"b\.jsonl:2: not JSON"),
    ({"a.txt": b"ok", "b.jsonl": b'{"text": "x"}\n\n{"other": "y"}\n'}, r"b\.jsonl:3: no text in field 'text'"),
    ({"a.txt": b"ok", "b.jsonl": b'{"text": 5}\n'}, r"b\.jsonl:1: no text"),
    ({"a.txt": b"ok", "b.jsonl": b'{"text": "\xc3"}\n'}, r"b\.jsonl:1: not UTF-8"),
    ({"a.txt": b"ok", "b.jsonl": b'"x"\n' + b"[" * 100_000}, r"b\.jsonl:2: not JSON"),
    ({"a.txt": b"ok", "b.parquet": b"junk"}, r"b\.parquet: not a readable parquet file"),
    ({"a.txt": b"ok", "b.parquet": b""}, r"b\.parquet: not a readable parquet file"),
])
def test_bad_folders_are_refused_with_the_place(tmp_path: Path, files: dict[str, bytes], told: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadData, match=told):
        split(tmp_path)


def test_a_parquet_file_with_other_columns_or_types_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ok")
    pq.write_table(pa.table({"content": ["x"], "id": [1]}), tmp_path / "b.parquet")
    with pytest.raises(BadData, match=r"b\.parquet: no column 'text'; there are content, id"):
        split(tmp_path)
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "b.parquet")
    with pytest.raises(BadData, match="holds int64, not text"):
        split(tmp_path)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_text_is_read_however_parquet_stores_it(tmp_path: Path, kind: pa.DataType) -> None:
    """Table libraries write few different texts as a dictionary."""
    texts = ["one", "two", "one", None]
    pq.write_table(pa.table({"text": pa.array(texts).cast(kind)}), tmp_path / "a.parquet")
    assert sorted(chain(*split(tmp_path))) == ["one", "one", "two"]


def test_a_truncated_parquet_file_is_refused_by_name(tmp_path: Path) -> None:
    whole = write_shard(tmp_path / "a.parquet", random_texts(500, 100), 100).read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[: len(whole) // 2] + whole[-600:])
    with pytest.raises(BadData, match=r"a\.parquet"):
        split(tmp_path)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(BadData, match=r"b\.txt: the file cannot be read: No such file"):
        split(tmp_path)


def test_links_are_followed_and_a_circle_ends(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("one")
    (tmp_path / "real" / "b.txt").write_text("two")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "back").symlink_to(tmp_path / "used")
    assert sorted(chain(*split(tmp_path / "used"))) == ["one", "two"]


def test_a_pipe_named_like_text_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    os.mkfifo(tmp_path / "c.txt")
    assert sorted(chain(*split(tmp_path))) == ["one", "two"]


def test_no_folder_and_no_such_folder_and_a_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"run\.data\.dir"):
        open_corpus(DataConfig(source="folder"), 0, tmp_path)
    with pytest.raises(BadData, match="no such folder"):
        split(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadData, match="not a folder"):
        split(tmp_path / "file")


def test_a_file_that_changes_while_training_is_noticed(tmp_path: Path) -> None:
    for i in range(9):
        (tmp_path / f"{i}.txt").write_text(f"text {i}")
    corpora = open_corpus(DataConfig(source="folder", dir=str(tmp_path)), 0, tmp_path)
    (tmp_path / "3.txt").write_text("another text")
    with pytest.raises(BadData, match="changed since the start"):
        list(iter_texts(corpora.train))


def test_a_folder_is_scanned_once_for_all_ranks_and_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").mkdir()
    for i, text in enumerate(random_texts(60, 40)):
        (tmp_path / "text" / f"{i}.txt").write_text(text)
    (tmp_path / "text" / "x.jsonl").write_text('{"text": "one"}\n{"text": " "}\n{"text": "two"}\n')
    data = DataConfig(source="folder", dir=str(tmp_path / "text"))
    first = open_corpus(data, 0, tmp_path / "job")
    monkeypatch.setattr("nanochat.data.folder._scan", lambda *_: pytest.fail("scanned again"))
    again = open_corpus(data, 0, tmp_path / "job")
    for split in ("train", "val"):
        assert again.of(split).fingerprint == first.of(split).fingerprint
        assert list(iter_texts(again.of(split))) == list(iter_texts(first.of(split)))


@pytest.mark.parametrize("index", ["", "{}", '{"listing": "x", "blocks": []}', "[1]"])
def test_an_index_that_does_not_fit_is_made_anew(tmp_path: Path, index: str) -> None:
    (tmp_path / "text").mkdir()
    for i in range(5):
        (tmp_path / "text" / f"{i}.txt").write_text(f"text {i}")
    data = DataConfig(source="folder", dir=str(tmp_path / "text"))
    before = open_corpus(data, 0, tmp_path / "job").train.fingerprint
    (tmp_path / "job" / "data" / "folder_index.json").write_text(index)
    assert open_corpus(data, 0, tmp_path / "job").train.fingerprint == before
    (tmp_path / "text" / "5.txt").write_text("more")
    assert open_corpus(data, 0, tmp_path / "job").train.fingerprint != before


def test_a_changed_folder_has_another_fingerprint(tmp_path: Path) -> None:
    def fingerprint() -> str:
        return open_corpus(DataConfig(source="folder", dir=str(tmp_path)), 0, tmp_path).train.fingerprint
    for i in range(9):
        (tmp_path / f"{i}.txt").write_text(f"text {i}")
    before = fingerprint()
    assert fingerprint() == before
    (tmp_path / "zz.txt").write_text("more")
    assert fingerprint() != before


def test_documents_much_longer_than_the_sequence_are_trained_on_in_full(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / f"{i}.txt").write_text(chr(97 + i) * 5000)
    run = run_file(DataConfig(source="folder", dir=str(tmp_path)), rows=2, sequence_len=64)
    seen: Counter[int] = Counter()
    for batch in validation_batches(run, BYTES, Place(0, 1, 2, 64), tmp_path, eval_tokens=10**6, split="train"):
        seen.update(batch.targets.flatten().tolist())
    assert sorted(seen[letter] for letter in b"abcd") == [0, 5000, 5000, 5000]  # one is for validation
    loader = build_loader(run, BYTES, Place(0, 1, 2, 64), tmp_path, prefetch=0)
    assert all(loader.next_batch().targets.min() >= 0 for _ in range(50))
    assert len(list(validation_batches(run, BYTES, Place(0, 1, 2, 64), tmp_path, eval_tokens=10**6))) == -(-5000 // 64 // 2)
