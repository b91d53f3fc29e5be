"""Add up the JUnit reports in a folder and print one line: N passed, N failed, N skipped.

A report named ``again-…`` holds tests that failed and were run once more: its word on a test is the last.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree


def outcome(case: ElementTree.Element) -> str:
    """passed, failed or skipped."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def main(folder: str) -> None:
    """Print the totals of all reports in `folder`."""
    found: dict[tuple[str, str], str] = {}
    for report in sorted(Path(folder).glob("*.xml"), key=lambda path: (path.name.startswith("again-"), path.name)):
        for case in ElementTree.parse(report).getroot().iter("testcase"):  # noqa: S314  (our own file)
            found[(case.get("classname", ""), case.get("name", ""))] = outcome(case)
    counts = {word: sum(value == word for value in found.values()) for word in ("passed", "failed", "skipped")}
    print(", ".join(f"{number} {word}" for word, number in counts.items()))


if __name__ == "__main__":
    main(sys.argv[1])
