"""What exit codes mean, in the person's language. The contract's own clauses are English: they stand in logs and rendered files."""

from nanochat.contract import ExitCode, describe
from nanochat_npu.i18n import _

__all__ = ["TEXTS", "meaning"]

TEXTS = (*(describe(code) for code in ExitCode), "killed by signal {n}", "exit code {n}")
"""All that `meaning` says, for the catalogue; the last two are of codes that are not ours."""


def meaning(code: int) -> str:
    """One clause; total over all integers."""
    text = describe(code)
    if text in TEXTS:
        return _(text)
    sentence, _space, number = text.rpartition(" ")
    return _(f"{sentence} {{n}}").format(n=number)
