"""What templates may contain: they lay out, they do not decide."""

import jinja2
import pytest
from jinja2 import nodes

from nanochat_npu.quoting import TEMPLATES, environment

FILTERS = {
    ".yaml.j2": {"q", "block", "comment"},
    "Dockerfile.j2": {"word", "words", "sh", "docker", "comment"},
}
TEMPLATE_NAMES = sorted(path.name for path in TEMPLATES.glob("*.j2"))


def _tree(name: str) -> nodes.Template:
    return environment().parse((TEMPLATES / name).read_text())


def _allowed(name: str) -> set[str]:
    return next(filters for suffix, filters in FILTERS.items() if name.endswith(suffix))


def _unquoted(name: str) -> list[int]:
    found = []
    for output in _tree(name).find_all(nodes.Output):
        for node in output.nodes:
            constant = isinstance(node, nodes.TemplateData | nodes.Const) or (isinstance(node, nodes.CondExpr) and isinstance(node.expr1, nodes.Const))
            if not constant and not (isinstance(node, nodes.Filter) and node.name in _allowed(name)):
                found.append(node.lineno)
    return found


def test_there_are_templates() -> None:
    assert TEMPLATE_NAMES == ["Dockerfile.j2", "configmaps.yaml.j2", "volcano-job.yaml.j2"]


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_every_value_passes_a_quoting_filter(name: str) -> None:
    assert _unquoted(name) == []


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_no_arithmetic_and_no_defaults(name: str) -> None:
    tree = _tree(name)
    arithmetic = [node.lineno for node in tree.find_all((nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.Neg))]
    defaults = [node.lineno for node in tree.find_all(nodes.Filter) if node.name in {"default", "d", "int", "float", "round", "sum"}]
    comparisons = [node.lineno for node in tree.find_all(nodes.Compare)]
    assert arithmetic == defaults == comparisons == []


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_a_forgotten_value_is_an_error(name: str) -> None:
    with pytest.raises(jinja2.UndefinedError):
        environment().get_template(name).render()
