#!/usr/bin/env python3
"""Runs calibrate, plan, run, compare on this computer's cores, several times, and prints estimate against actual by term.

    python dev/bench_calibration.py [--cycles 3] [--spec tiny] [--set KEY=VALUE ...] [--keep FOLDER]

A cycle of the preset `tiny` takes two minutes on two idle cores, three to four under load. Every cycle has a state folder of its
own, so no cycle learns from the one before; `--shared` gives them one, and the ledger's history then shifts and narrows.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TERMS = ("start_up_s", "training_s", "evaluating_s", "saving_s", "allowance")


def call(home: Path, *args: str) -> Any:
    """What a command of ours prints as JSON, with a state folder.

    Raises:
        SystemExit: It failed; its messages are shown.
    """
    environment = {**os.environ, "NANOCHAT_NPU_HOME": str(home)}
    done = subprocess.run([sys.executable, "-m", "nanochat_npu.main", *args, "-o", "json"], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(args)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def cycle(home: Path, job: list[str]) -> dict[str, Any]:
    """One calibration, the plan that rests on it, the run, and its line in the ledger."""
    begun = time.time()
    loads = [os.getloadavg()[0]]
    before = call(home, "plan", *job)["time_h"]
    measured = call(home, "calibrate", *job, "--yes")["calibration"]
    loads.append(os.getloadavg()[0])
    call(home, "submit", *job, "--follow", "--rerun", "--yes")
    loads.append(os.getloadavg()[0])
    entry = call(home, "cost", "report")["jobs"][-1]  # the calibration has a line too, before it
    return {"measured": measured, "before": before, "entry": entry, "loads": loads, "took_s": time.time() - begun}


def show(number: int, found: dict[str, Any]) -> bool:
    """Prints a cycle; true if the run was inside the interval that stood in the ledger when it began."""
    entry, measured = found["entry"], found["measured"]
    low, middle, high, actual = (3600 * entry[key] for key in ("hours_p10", "hours_p50", "hours_p90", "hours"))
    inside = low <= actual <= high
    slow = (measured["mean_step_s"] / measured["quick_step_s"]) if measured["quick_step_s"] else 1.0
    others = measured["load_others"]
    print(
        f"cycle {number}: tier {entry['tier']}, P10/P50/P90 {low:.0f}/{middle:.0f}/{high:.0f} s, took {actual:.0f} s: {'INSIDE' if inside else 'outside'} "
        f"({100 * (actual / middle - 1):+.0f} % of the median)"
    )
    low, middle, high = (3600 * found["before"][key] for key in ("p10", "p50", "p90"))
    print(f"  before the calibration: P10/P50/P90 {low:.0f}/{middle:.0f}/{high:.0f} s")
    print(
        f"  load average before / between / after {' / '.join(f'{load:.1f}' for load in found['loads'])}; of others while calibrating "
        f"{f'{others:.1f}' if others is not None else '-'}; mean over fastest step {slow:.2f}; drift (ln) {measured['drift_ln_sd']:.2f}; cycle {found['took_s']:.0f} s"
    )
    print(f"  {'term':14s} {'estimated':>10s} {'took':>8s} {'ratio':>7s}")
    for term in entry["terms"]:
        if term["term"] in TERMS and term["actual_s"] is not None:
            ratio = f"{term['actual_s'] / term['estimated_s']:7.2f}" if term["estimated_s"] > 0.5 else "      -"
            print(f"  {term['term']:14s} {term['estimated_s']:10.1f} {term['actual_s']:8.1f} {ratio}")
    print(flush=True)
    return bool(inside)


def main() -> None:
    """Runs the cycles and sums up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--spec", default="tiny")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--shared", action="store_true", help="one state folder for all cycles")
    parser.add_argument("--keep", type=Path, help="leave the state folders here")
    options = parser.parse_args()
    job = [options.spec, *(part for override in options.overrides for part in ("--set", override))]
    inside = 0
    with tempfile.TemporaryDirectory() as scratch:
        root = options.keep or Path(scratch)
        for number in range(1, options.cycles + 1):
            inside += show(number, cycle(root / ("shared" if options.shared else f"cycle{number}"), job))
    print(f"inside P10-P90: {inside} of {options.cycles}")


if __name__ == "__main__":
    main()
