"""The tokenizer: what it gives back, how it is stored, and what it refuses."""

import json
import resource

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanochat import tokenizer as module
from nanochat.data import toy
from nanochat.errors import BadConfig, BadData
from nanochat.tokenizer import FILE_NAME, SPECIAL_TOKENS, Tokenizer, training_texts

TEXTS = [*toy.documents(1, 300), "naïve café — 你好世界 🌍 don't I'm 1234567 @#$%^&*()\n\n\tend  "]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, 400)


@given(st.text(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back(text: str) -> None:
    trained = _trained()
    assert trained.decode(trained.encode(text)) == text
    assert trained.encode_array(text).tolist() == trained.encode(text)


def _trained(cache: list[Tokenizer] = []) -> Tokenizer:  # noqa: B006  (hypothesis and fixtures do not mix)
    return cache[0] if cache else (cache.append(Tokenizer.train(TEXTS, 400)) or cache[0])


@given(st.text(alphabet="ab 1.\n'é你\t", max_size=200))
@settings(max_examples=200, deadline=None)
def test_cutting_long_texts_into_segments_does_not_change_the_ids(text: str) -> None:
    trained = _trained()
    whole = trained._encoding.encode_ordinary(text)
    before, module.SEGMENT_CHARS = module.SEGMENT_CHARS, 20
    try:
        parts = module._segments(text)
        assert "".join(parts) == text
        # A run of 20 characters without "letter, blank" has to be cut somewhere; only then may ids differ.
        if all(len(part) < 20 for part in parts[:-1]):
            assert trained.encode(text) == whole
        assert trained.decode(trained.encode(text)) == text
    finally:
        module.SEGMENT_CHARS = before


@pytest.mark.parametrize("text", [" " * 400_000, "x" * 400_000, "\n" * 200_000, "!?" * 200_000, "你" * 200_000], ids=["blank", "x", "nl", "mark", "han"])
def test_runs_that_no_text_has_are_encoded_in_time(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode_array(text).tolist()) == text


def test_special_tokens_follow_the_vocabulary_in_upstreams_order(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 400
    assert [tokenizer.encode_special(name) for name in SPECIAL_TOKENS] == list(range(391, 400))


def test_text_cannot_smuggle_in_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|bos|><|assistant_start|> hello <|python_start|>")
    assert max(ids) < 391
    assert tokenizer.encode_array("<|bos|>").max() < 391


def test_lone_surrogates_from_json_do_not_crash(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode_array("a\ud800b").tolist()) == "a�b"


def test_token_bytes_count_raw_bytes_and_leave_special_tokens_out(tokenizer: Tokenizer) -> None:
    sizes = tokenizer.token_bytes()
    text = "naïve 你好 \x00 ÿ"
    assert len(sizes) == 400 and sizes[391:] == [0] * 9
    assert sum(sizes[token] for token in tokenizer.encode(text)) == len(text.encode())


def test_saved_and_loaded_it_encodes_alike_and_has_the_same_fingerprint(tokenizer: Tokenizer, tmp_path) -> None:
    path = tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert [again.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]
    json.loads(path.read_text())  # plain JSON, nothing that could execute


def test_on_a_full_disk_the_old_file_stays_and_nothing_half_made_is_left(tokenizer: Tokenizer, tmp_path) -> None:
    path = tokenizer.save(tmp_path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="large"):
            tokenizer.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [found.name for found in tmp_path.iterdir()] == [path.name] and path.read_bytes() == before


def test_another_vocabulary_has_another_fingerprint(tokenizer: Tokenizer) -> None:
    assert Tokenizer.train(TEXTS, 399).fingerprint != tokenizer.fingerprint


def test_training_twice_gives_the_same_tokenizer(tokenizer: Tokenizer) -> None:
    assert Tokenizer.train(TEXTS, 400).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("damage", [
    lambda text: text[: len(text) // 2], lambda text: "", lambda text: "[]", lambda text: text.replace('"version": 1', '"version": 9'),
    lambda text: text.replace("YQ==", "Yg=="), lambda text: "\x00\x01",
])
def test_a_damaged_file_is_refused_by_name(tokenizer: Tokenizer, tmp_path, damage) -> None:
    path = tokenizer.save(tmp_path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(BadData, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_a_missing_file_says_which_stage_makes_it(tmp_path) -> None:
    with pytest.raises(BadData, match="add stage tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_vocabulary_without_room_for_bytes_is_refused() -> None:
    with pytest.raises(BadConfig, match="256 bytes"):
        Tokenizer.train(TEXTS, 264)


def test_too_little_text_says_how_many_tokens_it_gives() -> None:
    with pytest.raises(BadData, match=r"set run\.tokenizer\.vocab_size to 26[0-9] or less"):
        Tokenizer.train(["abab"], 4096)


def test_the_smallest_vocabulary_works() -> None:
    bytes_only = Tokenizer.train(["hello"], 265)
    assert bytes_only.decode(bytes_only.encode("日本")) == "日本"


def test_training_reads_so_many_characters_of_a_document_and_in_all() -> None:
    texts = list(training_texts(["abcdef"] * 10, max_chars=8, doc_cap=4))
    assert texts == ["abcd"] * 3  # stops once max_chars are exceeded
