"""Random specs survive being written and read; random junk never becomes a traceback."""

from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from nanochat_npu.errors import SpecError
from nanochat_npu.load import load_text
from nanochat_npu.spec import JobSpec, NpuType
from nanochat_npu.spec.findings import known_paths
from nanochat_npu.spec.validate import validate
from nanochat_npu.yaml_edit import dump_yaml

_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without shrinking: a failing spec is small enough as it is, and shrinking takes minutes."""
_WORDS = st.from_regex(r"\A[a-z]([-a-z0-9]{0,20}[a-z0-9])?\Z")
_TEXT = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20).filter(lambda text: not set(text) & {"\ufffe", "\uffff"}),
    st.sampled_from(["on", "no", "0123", "6e-4", "1:30", "a: b", "null", "~", "", "'", '"', "{{x}}", "$HOME", "# x", "- x", "7", "true", "3.10", "🙂", "=", "@a"]),
)
_RATES = st.floats(1e-6, 10, allow_nan=False)

SPECS = st.fixed_dictionaries(
    {"name": _WORDS, "backend": st.sampled_from(["local", "volcano"])},
    optional={
        "owner": _WORDS,
        "env": st.dictionaries(st.sampled_from(["A", "B_1", "PATH_X"]), _TEXT, max_size=3),
        "resources": st.fixed_dictionaries({"npu": st.sampled_from(list(NpuType)), "npus_per_node": st.sampled_from([0, 1, 2, 8])}),
        "run": st.fixed_dictionaries(
            {}, optional={
                "seed": st.integers(0, 2**63 - 1), "compile": st.booleans(), "stages": st.lists(st.sampled_from(["data", "pretrain", "sft", "eval"]), min_size=1, max_size=4),
                "pretrain": st.fixed_dictionaries({}, optional={"matrix_lr": _RATES, "weight_decay": _RATES, "device_batch": st.integers(1, 64)}),
                "tracking": st.fixed_dictionaries({}, optional={"project": _TEXT, "workspace": st.one_of(st.none(), _TEXT)}),
            },
        ),
        "cluster": st.fixed_dictionaries({}, optional={"annotations": st.dictionaries(_WORDS, _TEXT, max_size=2), "patch": st.dictionaries(_WORDS, st.one_of(_TEXT, st.integers(), st.booleans()))}),
    },
)


@settings(max_examples=60, deadline=None, phases=_PHASES)
@given(SPECS)
def test_a_spec_survives_being_written_and_read(data: dict[str, Any]) -> None:
    spec, findings = validate(data)
    if spec is None:
        assert findings
        return
    text = dump_yaml(spec.model_dump(mode="json"))
    assert load_text(text.encode(), "again.yaml", environ={}).spec.model_dump() == {**spec.model_dump(), "owner": spec.owner}


_JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), _TEXT), lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_TEXT, inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None, phases=_PHASES)
@given(st.dictionaries(st.sampled_from(known_paths()), _JUNK, min_size=1, max_size=6))
def test_junk_in_known_fields_is_refused_with_findings(values: dict[str, Any]) -> None:
    data: dict[str, Any] = {"name": "a"}
    for path, value in values.items():
        *parents, last = path.split(".")
        target = data
        for part in parents:
            inner = target.setdefault(part, {})
            if not isinstance(inner, dict):
                break
            target = inner
        else:
            target[last] = value
    spec, findings = validate(data)
    assert (spec is None) == bool(findings)
    assert all(finding.message for finding in findings)


@settings(max_examples=60, deadline=None, phases=_PHASES)
@given(st.lists(st.tuples(st.sampled_from(["name", "run", "run.seed", "resources.nodes", "env.A", "cluster.patch", "x.y"]), st.text(max_size=12)), max_size=4))
def test_junk_in_overrides_is_a_spec_or_a_spec_error(pairs: list[tuple[str, str]]) -> None:
    try:
        loaded = load_text(b"name: a\n", "a.yaml", overrides=[f"{key}={value}" for key, value in pairs], environ={"USER": "li"})
    except SpecError as error:
        assert error.problems
    else:
        assert isinstance(loaded.spec, JobSpec)
