"""HumanEval: functions to be completed, judged by their tests. Files as ``openai/openai_humaneval`` has them."""

import re
from typing import Any

from nanochat.contract import RunConfig
from nanochat.tasks.files import read_examples, require_keys
from nanochat.tasks.sandbox import Limits, run_program

__all__ = ["HumanEval", "extract_code"]

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_IMPORT = re.compile(r"^(?:import|from)\s.+$", re.MULTILINE)


def extract_code(answer: str) -> str:
    """The first fenced block of an answer, or all of it where there is none."""
    found = _FENCED.search(answer)
    return (found[1] if found else answer).rstrip()


class HumanEval:
    """The problems; there is only a test split.

    Args:
        run: Says where the files are.
        split: Whatever it is, the problems are the same.
        limits: Of the programs that answers are judged by.

    Raises:
        BadData: They are not there, or damaged.
    """

    name = "humaneval"

    def __init__(self, run: RunConfig, split: str, limits: Limits = Limits()) -> None:
        keys = ("prompt", "canonical_solution", "test", "entry_point")
        self._records = require_keys(read_examples(run, self.name, "test"), keys, self.name, split, texts=keys)
        self._limits = limits

    def __len__(self) -> int:
        """Number of problems."""
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Problem and solution as a conversation, with what judges it."""
        record = self._records[index]
        solution = f"```python\n{record['prompt']}{record['canonical_solution']}\n```"
        return {
            "messages": [{"role": "user", "content": record["prompt"]}, {"role": "assistant", "content": solution}],
            "prompt": record["prompt"], "test": record["test"], "entry_point": record["entry_point"],
        }

    def is_right(self, example: dict[str, Any], answer: str) -> bool:
        """True if the program passes the tests within the limits; see `nanochat.tasks.sandbox` for what those are worth."""
        code = extract_code(answer)
        if f"def {example['entry_point']}" not in code:  # the body alone
            code = example["prompt"] + code
        imports = "\n".join(_IMPORT.findall(example["prompt"]))
        program = f"{imports}\n\n{code}\n\n{example['test']}\n\ncheck({example['entry_point']})\n"
        return run_program(program, self._limits).end == "ok"
