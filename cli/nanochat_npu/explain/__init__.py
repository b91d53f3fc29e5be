"""Why a job waits, or why it failed: one paragraph with the cause, the numbers, who can mend it and what to do.

`explain` is pure: it is handed what was read and knows no cluster. Rules look at it one after the other, the most specific
first; each has an id. A text that no rule knows is shown raw and called unknown, never guessed.
"""

from nanochat_npu.explain.codes import CodeMeaning, find_codes
from nanochat_npu.explain.engine import explain, explain_log
from nanochat_npu.explain.facts import Explanation, Facts, Who
from nanochat_npu.explain.fit import Fit, GangFit, gang_fit

__all__ = ["CodeMeaning", "Explanation", "Facts", "Fit", "GangFit", "Who", "explain", "explain_log", "find_codes", "gang_fit"]
