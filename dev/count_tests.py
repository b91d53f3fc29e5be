"""Add up the JUnit reports in a folder and print one line: N passed, N failed, N skipped."""

import sys
from pathlib import Path
from xml.etree import ElementTree


def main(folder: str) -> None:
    """Print the totals of all reports in `folder`."""
    totals = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for report in sorted(Path(folder).glob("*.xml")):
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):  # noqa: S314  (our own file)
            for key in totals:
                totals[key] += int(suite.get(key, 0))
    bad = totals["failures"] + totals["errors"]
    print(f"{totals['tests'] - bad - totals['skipped']} passed, {bad} failed, {totals['skipped']} skipped")


if __name__ == "__main__":
    main(sys.argv[1])
