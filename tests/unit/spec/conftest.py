"""Short ways to load a spec from a text, and to see what is wrong with one."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from nanochat_npu.errors import Problem, SpecError
from nanochat_npu.load import LoadedSpec, load_text

Load = Callable[..., LoadedSpec]
Problems = Callable[..., list[Problem]]

CLUSTER = """\
spec_version: 1
name: job
backend: volcano
resources: {nodes: 1, npus_per_node: 8, npu: 910B3}
run: {pretrain: {device_batch: 8}}
"""
"""A good cluster spec that ends with a newline, for texts that are appended to it."""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a text as ``job.yaml`` with an empty environment."""

    def load_it(text: str, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> LoadedSpec:
        return load_text(text.encode(), "job.yaml", overrides=overrides, environ={"USER": "li", "HOME": str(tmp_path), **(environ or {})}, folder=tmp_path)

    return load_it


@pytest.fixture
def problems(load: Load) -> Problems:
    """The problems of a text that is not a good spec."""

    def of(text: str, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> list[Problem]:
        with pytest.raises(SpecError) as caught:
            load(text, overrides, environ)
        assert caught.value.exit_code == 3
        return caught.value.problems

    return of
