"""Checks anyone's Volcano and Ascend YAML: what hangs, what is silently ignored, what fails after an hour.

`lint_text` reads a file with several documents and gives findings with rule, line and, where the mend is certain, a fix. Our own
output passes (a test). Rules are data-like functions in `volcano` and `ascend`; `RULES` is their catalogue.
"""

from nanochat_npu.lint.engine import lint_text
from nanochat_npu.lint.findings import RULES, Finding, Fix, Severity
from nanochat_npu.lint.fixes import apply_fixes
from nanochat_npu.lint.sarif import to_sarif

__all__ = ["RULES", "Finding", "Fix", "Severity", "apply_fixes", "lint_text", "to_sarif"]
