"""Changing one value leaves the rest of a text as a person wrote it; what we write reads back the same."""

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from nanochat_npu.yaml_edit import dump_yaml, set_value
from nanochat_npu.yaml_source import parse_yaml

TEXT = """\
# a comment
name: d20   # mine
run:
  # before
  model: {depth: 20}       # the dial
  stages: [pretrain, eval]  # in order
  title: "a # b"  # quoted
  marks: [1, "0"]
  list:
    - 1
resources: {}
"""


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("name",), "other", "name: other # mine"),
        (("run", "model", "depth"), 6, "  model: {depth: 6}       # the dial"),
        (("run", "model", "head_dim"), 64, "  model: {head_dim: 64, depth: 20}       # the dial"),
        (("run", "stages", 1), "sft", "  stages: [pretrain, sft]  # in order"),
        (("run", "seed"), 7, "  seed: 7"),
        (("resources", "nodes"), 2, "resources: {nodes: 2}"),
        (("cluster", "node_selector", "a"), "on", "cluster: {node_selector: {a: on}}"),
        (("owner",), "0123 # x", 'owner: "0123 # x"'),
        (("env", "A"), "7", 'env: {A: "7"}'),
        (("run", "stages"), ["data", "sft"], "  stages: [data, sft]       # in order"),
        (("run", "title"), "two", "  title: two      # quoted"),
        (("run", "marks", 1), "b", "  marks: [1, b]"),
    ],
)
def test_one_value_changes_and_the_rest_stays(path: tuple[str | int, ...], value: Any, line: str) -> None:
    text = set_value(TEXT, path, value)
    assert line in text.splitlines()
    assert {"# a comment", "  # before"} <= set(text.splitlines())
    found: Any = parse_yaml(text.encode(), "x").data
    for part in path:
        found = found[part]
    assert found == value


def test_a_block_is_not_replaced_by_a_value() -> None:
    for path in (("run", "model"), ("run", "list"), ("run",)):
        with pytest.raises(ValueError, match="not a plain scalar"):
            set_value(TEXT, path, 1)


_DATA = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12), st.sampled_from(["0E0", "on", "0123", "1:30", "1_0", "~", ".5"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.from_regex(r"\A[a-z]{1,5}\Z"), inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.dictionaries(st.from_regex(r"\A[a-z]{1,5}\Z"), _DATA, min_size=1, max_size=3))
def test_what_is_written_reads_back_the_same(data: dict[str, Any]) -> None:
    assert parse_yaml(dump_yaml(data).encode(), "x").data == data
