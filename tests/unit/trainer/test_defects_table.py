"""The table of defects names tests; a test that was renamed or dropped must not stay in it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "upstream_defects.md"


def test_every_test_that_the_table_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TABLE.read_text("utf-8"))
    assert len(named) > 60
    texts = {path: (ROOT / path).read_text("utf-8") if (ROOT / path).is_file() else "" for path, _ in named}
    assert [f"{path}::{name}" for path, name in named if not re.search(rf"^(?:async )?def {name}\(", texts[path], re.MULTILINE)] == []


def test_every_line_of_the_table_has_a_test_or_a_reason() -> None:
    tested = TABLE.read_text("utf-8").split("## Not tested")[0]
    lines = [line for line in tested.splitlines() if line.startswith("| ") and not line.startswith(("| there", "| report"))]
    assert [line for line in lines if "::test_" not in line] == []
