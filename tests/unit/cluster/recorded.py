"""Recordings of real Volcano as a series of what a client knew at each moment."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nanochat_npu.job_state import JobObjects

RECORDINGS = Path(__file__).parents[2] / "recordings"
SCENARIOS = sorted(path.stem for path in RECORDINGS.glob("*.jsonl") if path.stem != "verdicts")


def lines(scenario: str) -> list[dict[str, Any]]:
    """The recorded lines of a scenario, in time order."""
    return [json.loads(line) for line in (RECORDINGS / f"{scenario}.jsonl").read_text().splitlines()]


def moments(scenario: str) -> Iterator[tuple[float, JobObjects]]:
    """After each recorded change: its time, and everything that a client that watches has seen so far."""
    kept: dict[str, dict[str, dict[str, Any]]] = {"jobs": {}, "podgroups": {}, "pods": {}, "events": {}}
    for line in lines(scenario):
        kind, obj = line["resource"], line["object"]
        if kind not in kept:
            continue
        key = obj["metadata"]["name"] if kind != "events" else json.dumps([obj["involvedObject"].get("name"), obj.get("reason"), obj.get("message")])
        if line["type"] == "DELETED":
            kept[kind].pop(key, None)
        else:
            kept[kind][key] = obj
        job = next(iter(kept["jobs"].values()), None)
        podgroup = next(iter(kept["podgroups"].values()), None)
        yield line["t"], JobObjects(job, podgroup, list(kept["pods"].values()), list(kept["events"].values()))
