"""Reading a spec: a file or a preset, the site file under it, environment and ``--set`` over it, every problem in one pass."""

import getpass
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanochat_npu.errors import ClusterError, Problem, SpecConflictError, SpecError, SpecFieldError, UsageError
from nanochat_npu.i18n import _
from nanochat_npu.kubeconfig import Target
from nanochat_npu.origins import Layer, Merged, Origin, environment_layers, merge, set_layer
from nanochat_npu.presets import preset_names, preset_path
from nanochat_npu.site import read_site
from nanochat_npu.spec import JobSpec
from nanochat_npu.spec.findings import Finding, nearest
from nanochat_npu.spec.rules import advise
from nanochat_npu.spec.validate import validate
from nanochat_npu.yaml_source import MAX_BYTES, FieldPath, YamlSource, dotted, parse_yaml

__all__ = ["LoadedSpec", "load_spec", "load_text", "read_source"]

LOCAL_PATHS: tuple[FieldPath, ...] = (("run", "data", "dir"), ("run", "data", "manifest"), ("run", "eval", "bundle"))
"""Fields that name files of this computer where the job runs here: relative ones are meant from the spec's folder."""


@dataclass(frozen=True)
class LoadedSpec:
    """A valid spec with where each value came from.

    Attributes:
        text: The file as it was read.
        source: Its path, the preset's name, or "-" for stdin.
        origins: Dotted path -> origin, for every value that is not a default.
        advice: What is possible but probably not meant.
    """

    spec: JobSpec
    text: str
    source: str
    origins: dict[str, str] = field(default_factory=dict)
    advice: list[Problem] = field(default_factory=list)


def load_spec(source: str, overrides: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> LoadedSpec:
    """The spec in a file, or of a preset's name.

    Args:
        source: Path of a YAML file, the name of a preset, or "-" for stdin. A file wins over a preset of the same name.
        overrides: ``a.b=c`` each; they win over everything else.
        environ: The environment; default: the process's own.

    Raises:
        UsageError: No such file, or an override that cannot be understood.
        SpecError: With all problems.
    """
    content, name = read_source(source)
    folder = Path(name).parent if Path(name).is_file() else Path.cwd()
    return load_text(content, name, overrides=overrides or (), environ=os.environ if environ is None else environ, folder=folder)


def load_text(content: bytes, name: str, *, overrides: Sequence[str] = (), environ: Mapping[str, str], folder: Path | None = None) -> LoadedSpec:
    """The spec in a text; see `load_spec`.

    Args:
        content: Bytes of the file.
        name: Its name, for messages.
        overrides: As in `load_spec`.
        environ: The environment.
        folder: What relative paths of this computer start from.
    """
    spec_source = parse_yaml(content, name, empty_hint=_("nanochat-npu init writes one that works"))
    site = read_site(environ)
    files = [*([Layer(Origin.SITE, site)] if site else []), Layer(Origin.SPEC, spec_source)]
    sets = [set_layer(override) for override in overrides]
    merged = merge([*files, *environment_layers(environ, _logger(merge([*files, *sets]))), *sets])
    _fill_in(merged, folder or Path.cwd(), environ)
    spec, findings = validate(merged.data, merged.raw)
    if spec is None:
        raise _error(findings, merged, spec_source)
    origins = {dotted(path): layer.label for path, layer in merged.layers.items()}
    advice = [_problem(finding, merged, spec_source) for finding in advise(spec)]
    return LoadedSpec(spec, spec_source.text, name, origins, advice)


_STDIN: list[tuple[object, bytes]] = []
"""What stdin held, with the stream that it was."""


def _read_stdin() -> bytes:
    """What stdin holds: a stream gives it once, and commands ask for their spec more than once (for a price, a sweep, a measurement)."""
    stream = sys.stdin.buffer
    if not _STDIN or _STDIN[0][0] is not stream:
        _STDIN[:] = [(stream, stream.read(MAX_BYTES + 1))]
    return _STDIN[0][1]


def read_source(source: str) -> tuple[bytes, str]:
    """Bytes and name of a spec file, a preset, or stdin.

    Raises:
        UsageError: There is nothing of that name, or it cannot be read.
    """
    if source == "-":
        return _read_stdin(), "-"
    if not source.strip():
        raise UsageError(_("the name of the spec is empty"), hint=_("presets: {names}").format(names=", ".join(preset_names())))
    path = Path(source)
    preset = preset_path(source)
    try:
        if preset is not None and not path.is_file():
            return preset.read_bytes(), source
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1), source
    except FileNotFoundError as error:
        close = nearest(source, preset_names())
        hint = _("did you mean {name}?").format(name=close) if close else _("presets: {names}").format(names=", ".join(preset_names()))
        raise UsageError(_("no file and no preset '{name}'").format(name=source), hint=hint) from error
    except IsADirectoryError as error:
        raise UsageError(_("'{path}' is a folder").format(path=source), hint=_in_folder(path)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(_("cannot read '{name}': {reason}").format(name=source, reason=reason)) from error


def _in_folder(folder: Path) -> str:
    """What to name instead of a folder: the specs in it."""
    try:
        files = sorted(str(path) for path in folder.iterdir() if path.suffix in (".yaml", ".yml") and path.is_file())
    except OSError:
        files = []
    return _("name a file: {file}").format(file=", ".join(files[:5]) or folder / "job.yaml")


def _logger(merged: Merged) -> str:
    """The tracker that files and options ask for; wrong types are reported later."""
    value: Any = merged.data
    for part in ("run", "tracking", "logger"):
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def _fill_in(merged: Merged, folder: Path, environ: Mapping[str, str]) -> None:
    """What only this computer knows: its user, and what relative paths mean."""
    merged.data.setdefault("owner", _owner(environ))
    if merged.data.get("backend", "local") != "local":
        _fill_namespace(merged.data, environ)
        return
    for path in LOCAL_PATHS:
        parent: Any = merged.data
        for part in path[:-1]:
            parent = parent.get(part) if isinstance(parent, dict) else None
        value = parent.get(path[-1]) if isinstance(parent, dict) else None
        if not isinstance(value, str) or not value or "\0" in value:
            continue
        layer = merged.layers.get(path)
        base = folder if layer and layer.origin is Origin.SPEC else Path.cwd()
        parent[path[-1]] = str(Path(os.path.abspath(base / os.path.expanduser(value))))  # noqa: PTH100, PTH111


def _fill_namespace(data: dict[str, Any], environ: Mapping[str, str]) -> None:
    """As kubectl: where nobody names a namespace, that of the kubeconfig's context. Without a kubeconfig the field's default stands."""
    cluster = data.get("cluster", {})
    if data.get("backend") != "volcano" or not isinstance(cluster, dict) or "namespace" in cluster:
        return
    context = cluster.get("context")
    try:
        target = Target.choose(context=context if isinstance(context, str) else None, environ=environ)
    except ClusterError:
        return  # whoever needs the cluster will say what is wrong with the kubeconfig
    data["cluster"] = {**cluster, "namespace": target.namespace}


def _owner(environ: Mapping[str, str]) -> str:
    """The local user as a label's value; "" where the system knows none (a container with a bare uid)."""
    name = environ.get("LOGNAME") or environ.get("USER") or ""
    if not name:
        try:
            name = getpass.getuser()
        except (OSError, KeyError):
            name = str(os.getuid())
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:63]


def _problem(finding: Finding, merged: Merged, spec_source: YamlSource) -> Problem:
    layer = merged.layer_of(finding.path)
    return (layer.source if layer else spec_source).problem(finding.message, finding.path, hint=finding.hint, key=finding.at_key)


def _error(findings: list[Finding], merged: Merged, spec_source: YamlSource) -> SpecError:
    """One error with all findings, in the order of the file."""
    problems = sorted((_problem(finding, merged, spec_source) for finding in findings), key=lambda problem: (problem.file != spec_source.name, problem.line or 0, problem.column or 0))
    first = problems[0]
    kind = SpecConflictError if all(not finding.at_key for finding in findings) and merged.data.get("name") else SpecFieldError
    where = str(first).split(": ", 1)[0] if first.line else first.file
    return kind(f"{first.path}: {first.message}" if first.path else first.message, where=where, hint=first.hint, problems=problems)
