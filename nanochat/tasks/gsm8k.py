"""GSM8K: word problems whose answer is a number after ``####``. Files as ``openai/gsm8k`` has them (question, answer).

Its ``<<48/2=24>>`` marks become calls of the calculator, so that a model learns to use one.
"""

import re
from typing import Any

from nanochat.contract import RunConfig
from nanochat.tasks.files import read_examples, require_keys

__all__ = ["Gsm8k", "final_number", "solution_parts"]

_CALL = re.compile(r"<<([^<>]*)=([^<>=]*)>>")
_FINAL = re.compile(r"####\s*(-?[\d.,]*\d)")


def final_number(text: str) -> str | None:
    """The number after the last ``####``, without thousands separators and needless zeros; None where there is none."""
    found = _FINAL.findall(text)
    if not found:
        return None
    number = found[-1].replace(",", "")
    return re.sub(r"\.0*$", "", number)


def solution_parts(answer: str) -> list[dict[str, str]]:
    """A solution as parts of an assistant's turn: text, calls of the calculator, and their results."""
    parts, at = [], 0
    for match in _CALL.finditer(answer):
        parts += [
            {"type": "text", "text": answer[at : match.start()]}, {"type": "python", "text": match[1]}, {"type": "python_output", "text": match[2]},
        ]
        at = match.end()
    parts.append({"type": "text", "text": answer[at:]})
    return [part for part in parts if part["text"] or part["type"] != "text"]


class Gsm8k:
    """The problems of a split.

    Args:
        run: Says where the files are.
        split: "train" or "val" (its test split).

    Raises:
        BadData: They are not there, or damaged.
    """

    name = "gsm8k"

    def __init__(self, run: RunConfig, split: str) -> None:
        files = {"train": "train", "val": "test"}[split]
        self._records = require_keys(read_examples(run, self.name, files), ("question", "answer"), self.name, split, texts=("question", "answer"))

    def __len__(self) -> int:
        """Number of problems."""
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Problem and solution as a conversation."""
        record = self._records[index]
        return {"messages": [{"role": "user", "content": record["question"]}, {"role": "assistant", "content": solution_parts(record["answer"])}]}

    def is_right(self, example: dict[str, Any], answer: str) -> bool:
        """True for the same number after ``####``."""
        solution = "".join(part["text"] for part in example["messages"][-1]["content"] if part["type"] == "text")
        given = final_number(answer)
        return given is not None and given == final_number(solution)
