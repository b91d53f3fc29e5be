"""Reading a spec: a file or a preset, overrides on top, every problem in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nanochat_npu.errors import SpecSyntaxError
from nanochat_npu.spec import JobSpec

__all__ = ["LoadedSpec", "load_spec"]

_PRESETS = Path(__file__).parent / "templates" / "specs"


@dataclass(frozen=True)
class LoadedSpec:
    """A valid spec, where each value came from, and the text of the file."""

    spec: JobSpec
    text: str
    source: str
    origins: dict[str, str] = field(default_factory=dict)


def load_spec(source: str, overrides: Sequence[str] = ()) -> LoadedSpec:
    """The spec in a file, or of a preset's name.

    Args:
        source: Path of a YAML file, or the name of a preset.
        overrides: ``a.b=c`` each; they win over everything else.

    Raises:
        SpecError: with all problems.
    """
    path = Path(source) if Path(source).exists() else _PRESETS / f"{source}.yaml"
    text = path.read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    for override in overrides:
        key, _, value = override.partition("=")
        target = data
        *parents, last = key.split(".")
        for part in parents:
            target = target.setdefault(part, {})
        target[last] = yaml.safe_load(value)
    if not isinstance(data, dict):
        raise SpecSyntaxError("a spec is a map of keys to values", where=str(path))
    return LoadedSpec(JobSpec.model_validate(data), text, str(path))
