"""Runs all rules over the Volcano jobs of a file."""

from nanochat_npu import partial
from nanochat_npu.lint import ascend, volcano
from nanochat_npu.lint.context import JobContext
from nanochat_npu.lint.documents import read_documents
from nanochat_npu.lint.findings import Finding

__all__ = ["lint_text"]


def lint_text(text: str, name: str) -> tuple[list[Finding], int]:
    """(findings in the order of the file, number of Volcano jobs that were looked at).

    Args:
        text: YAML, any number of documents.
        name: File name, for errors.

    Raises:
        SpecSyntaxError: It is not YAML.
    """
    documents = read_documents(text, name)
    config_maps = [d for d in documents if d.data.get("kind") == "ConfigMap"]
    findings: list[Finding] = []
    jobs = [d for d in documents if d.data.get("kind") == "Job" and partial.text(d.data, "apiVersion").startswith("batch.volcano.sh/")]
    for document in jobs:
        context = JobContext(document, config_maps)
        for check in (*volcano.CHECKS, *ascend.CHECKS):
            check(context)
        findings += context.findings
    unique = {(f.rule, f.document, f.path, f.message): f for f in findings}
    return sorted(unique.values(), key=lambda f: (f.line, f.column, f.rule)), len(jobs)
