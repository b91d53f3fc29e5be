"""Where a job goes when its spec names no namespace: where kubectl would put it (B19)."""

import json
from pathlib import Path

import pytest

from nanochat_npu.load import load_text

SPEC = b"spec_version: 1\nname: d12\nbackend: volcano\nresources: {npu: 910B3}\n"


def kubeconfig(folder: Path, namespace: str) -> dict[str, str]:
    """An environment whose current context has this namespace."""
    path = folder / "config"
    contexts = [{"name": "c", "context": {"cluster": "x", "user": "u", "namespace": namespace}}, {"name": "other", "context": {"namespace": "elsewhere"}}]
    path.write_text(json.dumps({"current-context": "c", "contexts": contexts}))
    return {"KUBECONFIG": str(path)}


def namespace_of(text: bytes, environ: dict[str, str], *overrides: str) -> str:
    """Namespace that a job of this spec goes to."""
    return load_text(text, "job.yaml", environ=environ, overrides=overrides).spec.cluster.namespace


def test_the_contexts_namespace_is_used(tmp_path: Path) -> None:
    assert namespace_of(SPEC, kubeconfig(tmp_path, "team")) == "team"


def test_a_namespace_that_is_said_wins(tmp_path: Path) -> None:
    assert namespace_of(SPEC + b"cluster: {namespace: mine}\n", kubeconfig(tmp_path, "team")) == "mine"
    assert namespace_of(SPEC, kubeconfig(tmp_path, "team"), "cluster.namespace=set") == "set"


def test_the_namespace_follows_the_context_that_is_said(tmp_path: Path) -> None:
    assert namespace_of(SPEC + b"cluster: {context: other}\n", kubeconfig(tmp_path, "team")) == "elsewhere"


@pytest.mark.parametrize("environ", [{}, {"KUBECONFIG": "/nonexistent"}])
def test_without_a_kubeconfig_the_default_stands(environ: dict[str, str]) -> None:
    assert namespace_of(SPEC, environ) == "default"


def test_a_broken_kubeconfig_does_not_keep_a_spec_from_being_read(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("{")
    assert namespace_of(SPEC, {"KUBECONFIG": str(tmp_path / "config")}) == "default"


def test_a_local_job_reads_no_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("{")
    assert namespace_of(b"spec_version: 1\nname: d12\n", {"KUBECONFIG": str(tmp_path / "config")}) == "default"
