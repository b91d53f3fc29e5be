"""Which versions go together: the table, refusals with a way out, and that the parts never contradict each other."""

import pytest
from golden_support import plan_of
from hypothesis import given, settings
from hypothesis import strategies as st

from nanochat_npu.errors import ImageError
from nanochat_npu.image.describe import describe_image
from nanochat_npu.image.matrix import (
    ARCHITECTURES,
    CHIPS,
    KNOWN_CANN,
    ImageSet,
    Kind,
    check,
    nearest,
    published,
    valid_sets,
)
from nanochat_npu.render import render

VERSIONS = [*sorted({build.torch_npu for build in published()}), "2.12.0.post99", "3.0.0", "1.11.0"]
SETS = st.builds(
    ImageSet, st.sampled_from(VERSIONS), st.sampled_from([*KNOWN_CANN, "9.1.0.beta.1", "7.0.0", "8.5.1", "9.2.0"]),
    st.sampled_from([f"3.{minor}" for minor in range(8, 16)]), st.sampled_from([*CHIPS, "310p"]), st.sampled_from([*ARCHITECTURES, "riscv64"]),
)


def refusals(wanted: ImageSet) -> list[str]:
    return [finding.field for finding in check(wanted) if finding.level == "refuse"]


def test_every_row_has_its_source_and_date() -> None:
    assert all(build.source and build.read_on for build in published())
    assert len({build.torch_npu for build in published()}) == len(published())


def test_official_builds_fit_their_own_cann() -> None:
    for build in published():
        if build.kind is Kind.OFFICIAL:
            for python in build.python:
                assert "cann" not in [f.field for f in check(ImageSet(build.torch_npu, build.cann, python), own_base=True)]


@settings(max_examples=400, deadline=None)
@given(SETS)
def test_findings_and_nearest_sets_never_contradict(wanted: ImageSet) -> None:
    suggestions = nearest(wanted)
    assert len(suggestions) == 3
    assert all(check(entry) == [] for entry in suggestions)
    if not check(wanted) and wanted.arch == "arm64" and wanted.chip == "910b":
        assert wanted in valid_sets() or wanted.cann.upper() not in KNOWN_CANN or wanted.torch_npu not in [b.torch_npu for b in published() if b.kind is Kind.OFFICIAL]
        assert suggestions[0] == wanted
    assert check(wanted) == check(wanted)


@settings(max_examples=100, deadline=None)
@given(SETS)
def test_a_set_that_somebody_knows_to_work_is_not_held_against_the_table(wanted: ImageSet) -> None:
    fields = [finding.field for finding in check(wanted, [wanted], own_base=True) if finding.level == "refuse"]
    assert "cann" not in fields


@pytest.mark.parametrize(
    ("torch_npu", "cann", "python", "field"),
    [("2.7.1", "9.1.0", "3.12", "torch_npu"), ("2.12.0", "8.3.RC1", "3.12", "cann"), ("2.12.0", "9.1.0", "3.10", "python"), ("2.12.0", "9.1.0", "3.9", "python"),
     ("2.12.0rc1", "8.5.0", "3.11", "torch_npu"), ("2.12.0.post7", "9.1.0", "3.12", "torch_npu"), ("2.9.0.post6", "9.9.0", "3.12", "cann")],
)
def test_impossible_sets_are_refused_at_the_field_that_is_wrong(torch_npu: str, cann: str, python: str, field: str) -> None:
    assert field in refusals(ImageSet(torch_npu, cann, python))


def test_unpublished_pairing_warns() -> None:
    assert [(f.level, f.field) for f in check(ImageSet("2.12.0.post3", "9.1.0", "3.12"))] == [("warn", "torch_npu")]


def test_nearest_keeps_what_it_can() -> None:
    first = nearest(ImageSet("2.12.0", "9.1.0", "3.13"))[0]
    assert (first.torch_npu, first.cann) == ("2.12.0", "9.1.0")
    assert nearest(ImageSet("2.12.0.post9", "9.1.0", "3.12"))[0].cann == "9.1.0"


def test_render_refuses_with_the_nearest_sets() -> None:
    with pytest.raises(ImageError, match=r"built for CANN 9\.1\.0, not 8\.3\.RC1") as error:
        render(plan_of("one-server", "image.cann=8.3.RC1"))
    assert error.value.where == "image.cann"
    assert "torch_npu 2.12.0, CANN 8.5." in (error.value.hint or "")
    assert error.value.exit_code == 5


def test_spec_can_add_a_set() -> None:
    describe_image(plan_of("one-server", "image.torch_npu=2.12.0.post42", "image.known_sets=[{torch_npu: 2.12.0.post42, cann: 9.1.0, python: '3.12'}]"))


def test_x86_needs_an_index_of_cpu_builds() -> None:
    with pytest.raises(ImageError, match="CUDA builds"):
        describe_image(plan_of("one-server", "image.arch=amd64"))


@pytest.mark.parametrize("name", ["one-server", "hami", "cce", "plain-volcano"])
def test_torch_is_exactly_the_one_that_torch_npu_was_built_for(name: str) -> None:
    image = describe_image(plan_of(name))
    build = next(row for row in published() if row.torch_npu == image.torch_npu)
    assert image.torch_requirements == (f"torch=={build.torch}", f"torch_npu=={build.torch_npu}")
