"""Small files of the published tasks' formats, all invented here."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nanochat.contract import RunConfig

ARC = [
    {"id": "1", "question": "Which of these is hot?", "choices": {"text": ["ice", "fire", "snow", "rain"], "label": ["A", "B", "C", "D"]}, "answerKey": "B"},
    {"id": "2", "question": "How many legs has a fox?", "choices": {"text": ["two", "four", "six"], "label": ["1", "2", "3"]}, "answerKey": "2"},
]
MMLU = [{"question": "2 + 2?", "subject": "sums", "choices": ["1", "2", "3", "4"], "answer": 3}, {"question": "1 + 1?", "subject": "sums", "choices": ["2", "3", "4", "5"], "answer": 0}]
GSM8K = [
    {"question": "Pim has 3 plums and finds 4 more. How many?", "answer": "He has 3 + 4 = <<3+4=7>>7 plums.\n#### 7"},
    {"question": "Bo has 1,000 pots and sells 1. How many?", "answer": "1000 - 1 = <<1000-1=999>>999.\n#### 999"},
]
HUMANEVAL = [{
    "task_id": "t/0", "prompt": "from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n    \"\"\"Sum.\"\"\"\n", "canonical_solution": "    return sum(numbers)\n",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n", "entry_point": "total",
}]
SMOLTALK = [{"messages": [{"role": "user", "content": f"hi {i}"}, {"role": "assistant", "content": f"hello {i}"}]} for i in range(30)]
FILES = {
    "arc-easy/test": ARC, "arc-challenge/test": ARC, "mmlu/test": MMLU, "mmlu/auxiliary_train": MMLU, "gsm8k/train": GSM8K, "gsm8k/test": GSM8K,
    "humaneval/test": HUMANEVAL, "smoltalk/train": SMOLTALK, "smoltalk/test": SMOLTALK[:4],
}


def write_tasks(folder: Path) -> Path:
    """A folder of tasks: most as parquet, GSM8K as JSON lines, SmolTalk in several files."""
    for name, records in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("gsm8k"):
            path.with_suffix(".jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        elif name == "smoltalk/train":
            path.mkdir()
            pq.write_table(pa.Table.from_pylist(records[:20]), path / "0.parquet")
            pq.write_table(pa.Table.from_pylist(records[20:]), path / "1.parquet")
        else:
            pq.write_table(pa.Table.from_pylist(records), f"{path}.parquet")
    return folder


def run_with(folder: Path | None, **blocks: Any) -> RunConfig:
    return RunConfig.model_validate({"data": {"source": "climbmix", "tasks_dir": None if folder is None else str(folder)}, **blocks})
