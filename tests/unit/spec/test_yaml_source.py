"""YAML is read strictly: what other loaders swallow is a named error with its place, and nothing is ever a traceback."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanochat_npu.errors import SpecSyntaxError
from nanochat_npu.yaml_source import MAX_BYTES, parse_scalar, parse_yaml


def _problem(content: bytes) -> tuple[int | None, int | None, str]:
    with pytest.raises(SpecSyntaxError) as caught:
        parse_yaml(content, "job.yaml")
    first = caught.value.problems[0]
    assert caught.value.exit_code == 3
    assert first.file == "job.yaml"
    return first.line, first.column, first.message


@pytest.mark.parametrize(
    ("content", "line", "column", "words"),
    [
        (b"", None, None, "no content"),
        (b"# only a comment\n", None, None, "no content"),
        (b"a: 1\nb:\n  c: 1\n  c: 2\n", 4, 3, "'c' is given twice (first in line 3)"),
        (b"a:\n\tb: 1\n", 2, 1, "a tab"),
        (b"- a\n- b\n", 1, 1, "this is a list"),
        (b"just words\n", 1, 1, "this is a single value"),
        (b"a: b: c\n", 1, 5, "a second ': '"),
        (b"a: [1, 2\n", 1, 4, "not valid YAML"),
        (b"a: &x 1\n", 1, 4, "anchor &x"),
        (b"a: *x\n", 1, 4, "alias *x"),
        (b"<<: {a: 1}\n", 1, 1, "merge key"),
        (b"a: !!python/object/apply:os.system [id]\n", 1, 4, "tag"),
        (b"a: 1\n---\nb: 2\n", 2, 1, "second document"),
        (b"? [1]\n: 2\n", 1, 3, "a key must be a plain word"),
        (b"ok: 1\nbad: \x00\n", 2, 6, "control character U+0000"),
        (b"\x7fELF\x02\x01\x01\x00", 1, 1, "control character"),
        (b"a: 1\nb: \xff\n", None, None, "not UTF-8 text (byte 0xff in line 2)"),
        ("a: 1\n".encode("utf-16"), None, None, "not UTF-8"),
        (b"a: " + b"x" * MAX_BYTES, None, None, "larger than"),
        (b"a: " + b"[" * 60 + b"]" * 60, 1, 44, "nested deeper"),
        (b"[" * 500_000, 1, None, ""),
        (b"{a: " * 200_000, 1, None, ""),
        (b'a: "\\ud800"\n', 1, None, "not valid YAML"),
    ],
)
def test_bad_files_are_named_errors_with_their_place(content: bytes, line: int | None, column: int | None, words: str) -> None:
    found_line, found_column, message = _problem(content)
    assert found_line == line
    assert words in message
    if column is not None:
        assert found_column == column


def test_ten_thousand_laughs_do_not_expand() -> None:
    bomb = b"a0: &a0 [x, x]\n" + b"".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n".encode() for i in range(1, 60))
    assert "anchor" in _problem(bomb)[2]


def test_all_duplicates_are_listed_in_one_pass() -> None:
    with pytest.raises(SpecSyntaxError) as caught:
        parse_yaml(b"a: 1\na: 2\nb: 1\nb: 2\n", "job.yaml")
    assert [problem.line for problem in caught.value.problems] == [2, 4]


def test_every_key_and_value_has_its_place() -> None:
    source = parse_yaml(b"run:\n  model: {depth: 20}\n  stages: [pretrain, eval]\n", "job.yaml")
    assert (source.keys[("run", "model", "depth")].line, source.keys[("run", "model", "depth")].column) == (2, 11)
    assert (source.values[("run", "model", "depth")].line, source.values[("run", "model", "depth")].column) == (2, 18)
    assert source.values[("run", "stages", 1)].column == 22


def test_columns_count_characters_not_bytes() -> None:
    source = parse_yaml("{项目: 一, b: 2}\n".encode(), "job.yaml")
    assert source.keys[("b",)].column == 9


def test_windows_files_are_read() -> None:
    assert parse_yaml(b"\xef\xbb\xbfa: 1\r\nb:\r\n  c: x\r\n", "job.yaml").data == {"a": 1, "b": {"c": "x"}}


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("on", "on"), ("no", "no"), ("y", "y"), ("true", True), ("False", False), ("", None), ("~", None), ("null", None), ("0123", "0123"), ("0", 0),
        ("-7", -7), ("1_000", 1000), ("10_00", "10_00"), ("0x10", 16), ("0o17", 15), ("6e-4", 6e-4), ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0),
        ("1:30", "1:30"), ("9.1.0", "9.1.0"), ("2026-11-01", "2026-11-01"), (".inf", ".inf"), ("nan", "nan"), ("１２", "１２"), ("9" * 500, "9" * 500),
    ],
)
def test_scalars_follow_yaml_1_2(raw: str, value: object) -> None:
    result = parse_scalar(raw)
    assert result == value
    assert type(result) is type(value)


def test_quoted_scalars_stay_text_and_plain_ones_keep_how_they_were_written() -> None:
    source = parse_yaml(b'a: "20"\nb: 3.10\n', "job.yaml")
    assert source.data == {"a": "20", "b": 3.1}
    assert source.raw == {("b",): "3.10"}


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(content: bytes) -> None:
    _never_a_traceback(content)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="abc:-[]{}&*!|>'\"#?, \n\t%@`1.~\\", max_size=80))
def test_random_yaml_like_text_is_read_or_refused(text: str) -> None:
    _never_a_traceback(text.encode())


def _never_a_traceback(content: bytes) -> None:
    try:
        source = parse_yaml(content, "junk")
    except SpecSyntaxError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.message
            problem.excerpt()
    else:
        assert isinstance(source.data, dict)
