"""Quoting: what is written is what is read back, by YAML, by a shell, by a Dockerfile, by Kubernetes."""

import re
import subprocess

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nanochat_npu.errors import RenderError
from nanochat_npu.quoting import (
    comment_text,
    docker_value,
    environment,
    kubernetes_text,
    literal_block,
    plain_word,
    shell_word,
    yaml_value,
)

HORRORS = [
    "on", "off", "y", "n", "yes", "no", "true", "null", "~", "", " ", "0123", "0o17", "0x1f", "6e-4", "1_000", "1:30", "12:30:45", ".inf", ".nan", "=", "<<",
    "a: b", "a #b", "- x", "? x", "*x", "&x", "!x", "|", ">", "%x", "@x", "`x", "{x", "[x", "'", '"', "\\", "\\n", "x:", "2026-11-30", "1.0", "-",
    "{{ x }}", "{% x %}", "{# x #}", "$(X)", "${X}", "$$", "语料 🙂 é", "a\nb", "a\r\nb", "\ttab", "trailing ", "\x00\x07\x1b\x7f", "\x85\u2028\u2029\ufeff",
    "---", "...", "a\n---\nb\n", "\n", "a\n\n", "a\n\n\nb\n", " leading\n", "tab\tinside\n", "\n\ttab at the start of a line\n", "ends without newline", "\U0001f642\n",
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize("text", HORRORS)
def test_yaml_value_reads_back_equal(text: str) -> None:
    assert yaml.safe_load(f"key: {yaml_value(text)}\n") == {"key": text}
    assert yaml.safe_load(f"{yaml_value(text)}: 1\n") == {text: 1}


@settings(max_examples=300, deadline=None)
@given(st.recursive(TEXT | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)))
def test_any_value_reads_back_equal_in_value_and_type(value: object) -> None:
    found = yaml.safe_load(f"key: {yaml_value(value)}\n")["key"]
    assert found == value
    assert repr(found) == repr(value)


@pytest.mark.parametrize("text", HORRORS)
def test_block_reads_back_equal(text: str) -> None:
    assert yaml.safe_load(f"a:\n  key: {literal_block(text, 4)}\n  next: 1\n") == {"a": {"key": text, "next": 1}}


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXT, max_size=4).map(lambda lines: "\n".join(lines) + "\n"))
def test_any_block_reads_back_equal(text: str) -> None:
    assert yaml.safe_load(f"a:\n  key: {literal_block(text, 4)}\n  next: 1\n") == {"a": {"key": text, "next": 1}}


def test_readable_text_becomes_a_readable_block() -> None:
    assert literal_block("one\n  two\n\nthree\n", 4) == "|\n    one\n      two\n\n    three"


@pytest.mark.parametrize("value", [None, {"a": None}, [None], float("nan"), float("inf"), "\ud800"])
def test_what_no_file_can_hold_is_refused(value: object) -> None:
    with pytest.raises(RenderError):
        yaml_value(value)


def _kubernetes_expand(text: str) -> str:
    """How the kubelet reads command, args and env values, when no variable of that name exists."""
    return re.sub(r"\$\$|\$\(([^)]*)\)", lambda m: "$" if m.group() == "$$" else f"<expanded {m.group(1)}>", text)


@pytest.mark.parametrize("text", [*HORRORS, "$(A)$(B)", "$$(A)", "$$$(A)", "$", "a$"])
def test_kubernetes_gives_back_what_was_meant(text: str) -> None:
    assert _kubernetes_expand(kubernetes_text(text)) == text


@pytest.mark.parametrize("text", [text for text in HORRORS if not set(text) & set("\n\r\0")])
def test_shell_word_is_one_word(text: str) -> None:
    result = subprocess.run(["bash", "-c", f"printf %s {shell_word(text)}"], capture_output=True, check=True)
    assert result.stdout.decode() == text


def test_docker_value_escapes_what_docker_reads() -> None:
    assert docker_value('a"b\\c$d') == '"a\\"b\\\\c\\$d"'


@pytest.mark.parametrize("text", ["a\nRUN rm -rf /", "a\r", "a\0"])
def test_line_breaks_cannot_get_into_a_dockerfile(text: str) -> None:
    for quote in (docker_value, shell_word, plain_word):
        with pytest.raises(RenderError):
            quote(text)


@pytest.mark.parametrize("text", ["a b", "a;b", "$x", "", "a'b"])
def test_plain_word_refuses_what_would_need_quotes(text: str) -> None:
    with pytest.raises(RenderError):
        plain_word(text)


def test_comment_stays_a_comment() -> None:
    assert "\n" not in comment_text("a\nb: c") and "\u2028" not in comment_text("a\u2028b")


def test_template_with_nothing_where_a_value_belongs_is_refused() -> None:
    with pytest.raises(RenderError):
        environment().from_string("{{ x }}").render(x=None)
