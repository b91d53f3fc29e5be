"""Bytes per token: counted in bytes, comparable, and without any network."""

from nanochat.compression import SAMPLES, by_kind, bytes_per_token
from nanochat.tokenizer import Tokenizer

BYTES = Tokenizer.train(["x"], 265)


def test_a_tokenizer_of_bytes_has_one_byte_a_token_in_every_script() -> None:
    assert set(by_kind(BYTES).values()) == {1.0}
    assert bytes_per_token(BYTES, ["你好", "a"]) == 1.0


def test_no_text_has_no_figure() -> None:
    assert bytes_per_token(BYTES, []) == 0.0


def test_one_that_learnt_a_kind_of_text_compresses_that_kind_best() -> None:
    code = by_kind(Tokenizer.train([SAMPLES["code"]] * 20, 330))
    english = by_kind(Tokenizer.train([SAMPLES["english"]] * 20, 330))
    assert code["code"] > 1.2 * english["code"] and english["english"] > 1.2 * code["english"]
