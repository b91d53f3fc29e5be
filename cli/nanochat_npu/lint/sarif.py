"""Findings as SARIF 2.1.0, which code hosts show beside the lines of a change."""

from typing import Any

from nanochat_npu import __version__
from nanochat_npu.i18n import _
from nanochat_npu.lint.findings import RULES, Finding

__all__ = ["to_sarif"]


def to_sarif(findings: dict[str, list[Finding]]) -> dict[str, Any]:
    """A SARIF log.

    Args:
        findings: Findings by file name.
    """
    used = sorted({finding.rule for listed in findings.values() for finding in listed})
    rules = [{"id": rule, "shortDescription": {"text": _(RULES[rule].why)}, "defaultConfiguration": {"level": RULES[rule].severity.value}} for rule in used]
    results = [
        {
            "ruleId": finding.rule, "ruleIndex": used.index(finding.rule), "level": finding.severity.value,
            "message": {"text": f"{finding.message} ({finding.hint})" if finding.hint else finding.message},
            "locations": [{"physicalLocation": {
                "artifactLocation": {"uri": name}, "region": {"startLine": finding.line, "startColumn": finding.column},
            }}],
        }
        for name, listed in findings.items() for finding in listed
    ]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
        "runs": [{"tool": {"driver": {"name": "nanochat-npu lint", "version": __version__, "rules": rules}}, "results": results}],
    }
