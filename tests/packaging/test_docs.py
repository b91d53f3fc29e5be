"""What readers are told: both languages name the same things, every link leads somewhere, every command in a text exists."""

import re
from pathlib import Path

import pytest

from nanochat_npu.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
TEXTS = sorted(path for pattern in ("*.md", "docs/*.md", "k8s/*.md", "docker/*.md", "dev/*.md") for path in ROOT.glob(pattern))
CHINESE = [path for path in TEXTS if path.name.endswith(".zh-CN.md")]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _english(path: Path) -> Path:
    return path.with_name(path.name.replace(".zh-CN.md", ".md"))


def _commands(text: str) -> list[str]:
    """The lines of fenced blocks without their comments and drawings, which are translated."""
    lines = [line for block in FENCE.findall(text) for line in block.splitlines()[1:-1]]
    bare = [re.split(r"\s+#\s", line)[0].strip() for line in lines]
    return [line for line in bare if line.isascii() and line and not line.startswith("#")]


def _named(text: str) -> set[str]:
    """What stands in backticks outside of fenced blocks: fields, flags, variables, files, commands."""
    return set(re.findall(r"`([^`\n]+)`", FENCE.sub("", text)))


@pytest.mark.parametrize("path", CHINESE, ids=lambda path: str(path.relative_to(ROOT)))
def test_both_languages_say_the_same(path: Path) -> None:
    chinese, english = path.read_text("utf-8"), _english(path).read_text("utf-8")
    for what, pattern in {"headings": r"^#+ ", "table rows": r"^\|", "list items": r"^- "}.items():
        assert len(re.findall(pattern, FENCE.sub("", chinese), re.MULTILINE)) == len(re.findall(pattern, FENCE.sub("", english), re.MULTILINE)), what
    assert _commands(chinese) == _commands(english)
    assert {name for name in _named(chinese) if name.isascii()} ^ {name for name in _named(english) if name.isascii()} == set()


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(path: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text("utf-8"))
    assert [link for link in links if "://" not in link and not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_in_a_text_exists(path: Path) -> None:
    named = set(re.findall(r"nanochat-npu (?:--lang \w+ )?([a-z][a-z-]*)\b", path.read_text("utf-8")))
    assert {name for name in named if name not in COMMANDS} == set()


@pytest.mark.parametrize("preset", ["d26", "d32-2x8"])
def test_the_plans_in_the_documentation_are_those_that_plan_gives(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "plan_and_cost.md").read_text("utf-8")
    block = FENCE.search(text, text.index(f"\n`nanochat-npu plan {preset} --price 3.0CNY`,"))
    assert block is not None
    with pytest.raises(SystemExit):
        main(["plan", preset, "--price", "3.0CNY"])
    given = capsys.readouterr().out.splitlines()
    shown = [line for line in block[0].splitlines()[1:-1] if "price from" not in line]  # its date is today's
    assert len(shown) > 25
    assert [line for line in shown if line not in given] == []
