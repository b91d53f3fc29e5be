"""What tracking costs a training step: SwanLab and W&B offline, a dead cloud, a slow tracker, against none.

    python dev/bench_tracking.py [--steps 200] [--blocks 6] [--every 1 10] [--step-ms 100]

Each kind runs in a process of its own: a step is a fixed amount of matrix work of about `--step-ms`, followed by the event that
the trainer writes after a step. Blocks of steps with the tracker listening and without take turns in one process, and the medians are
compared, in wall clock and in CPU time of the whole process (which includes the tracker's own threads; W&B also has a process of
its own, whose CPU time is told beside it). `emit` is the time that the training thread spends in writing the event and handing it on.
The default sends each 10th step; `--every 1` is the worst case.
"""

import argparse
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("swanlab", "wandb", "dead", "slow")
FIELDS: dict[str, Any] = {
    "loss": 2.5, "loss_ema": 2.6, "lr_frac": 0.5, "dt_s": 0.1, "tokens_per_s": 1e5, "tokens": 10**6, "mfu_frac": 0.4, "mfu_peak_flops": 1e14, "epoch": 1,
    "eta_s": 100.0, "data_wait_s": 0.001, "comm_s": 0.01, "memory_bytes": 10**9,
}


class Slow:
    """A tracker that takes two seconds for each point."""

    def open(self) -> str | None:
        """Nothing to begin."""
        return None

    def log(self, stage: str, step: int, values: Any) -> None:
        """Waits."""
        time.sleep(2.0)

    def close(self) -> None:
        """Nothing to end."""


def measure(kind: str, steps: int, blocks: int, every: int, step_ms: float) -> dict[str, float]:
    """Medians of steps with and without a tracker."""
    import torch

    from nanochat.contract import RunConfig, RunFile
    from nanochat.eventlog import EventLog
    from nanochat.tracking import Tracker, choose_backend

    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    os.environ["HOME"] = str(folder)
    if kind == "dead":
        os.environ.update({"SWANLAB_API_KEY": "k", "SWANLAB_API_HOST": "http://127.0.0.1:9"})
    left = torch.randn(384, 384)

    def work(count: int) -> None:
        for _ in range(count):
            torch.mm(left, left)

    begun = time.perf_counter()
    work(200)
    repeats = max(1, round(200 * step_ms / 1000 / (time.perf_counter() - begun)))
    events = EventLog(folder / "events.jsonl", stream=io.StringIO())
    events.stage = "pretrain"
    mode = "cloud" if kind == "dead" else "offline"
    run_file = RunFile(job="bench", submission_id="0" * 16, run=RunConfig(tracking={"logger": "swanlab" if kind in ("dead", "slow") else kind, "mode": mode}))
    backend = Slow() if kind == "slow" else choose_backend(run_file, folder, {})
    assert backend is not None
    tracker = Tracker(backend, events, every)
    listeners = events._listeners
    number, longest = 0, 0.0
    found: dict[bool, dict[str, list[float]]] = {on: {"wall": [], "cpu": [], "emit": []} for on in (True, False)}

    def step() -> tuple[float, float, float]:
        nonlocal number
        number += 1
        cpu, wall = time.process_time(), time.perf_counter()
        work(repeats)
        written = time.perf_counter()
        events.emit("step", step=number, steps=10**9, **FIELDS)
        return time.perf_counter() - wall, time.process_time() - cpu, time.perf_counter() - written

    opening = time.perf_counter()  # the first steps, while the thread imports and logs in
    while time.perf_counter() - opening < 6.0:
        longest = max(longest, step()[0])
    for block in range(2 * blocks):
        on = block % 2 == 0
        events._listeners = listeners if on else []
        for _ in range(steps):
            wall, cpu, emit = step()
            found[on]["wall"].append(wall)
            found[on]["cpu"].append(cpu)
            found[on]["emit"].append(emit)
    events._listeners = listeners
    closing = time.perf_counter()
    tracker.close()
    mid = {f"{name}_{'on' if on else 'off'}": statistics.median(values) for on, parts in found.items() for name, values in parts.items()}
    means = {f"mean_cpu_{'on' if on else 'off'}": statistics.fmean(parts["cpu"]) for on, parts in found.items()}
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        **mid, **means, "worst_emit": max(found[True]["emit"]), "opening": longest, "close": time.perf_counter() - closing,
        "children_cpu": (children.ru_utime + children.ru_stime) / max(1, number),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="in a block")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--every", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        kind, every = arguments.child
        print("RESULT" + json.dumps(measure(kind, arguments.steps, arguments.blocks, int(every), arguments.step_ms)))
        return
    print(f"steps of {arguments.step_ms:.0f} ms, {arguments.blocks} blocks of {arguments.steps} each way, load average {os.getloadavg()[0]:.1f}")
    print("tracker  every  step on/off (ms)     wall +%   CPU +%   emit on/off (µs)  worst emit (ms)  longest of the first 6 s (ms)  close (s)")
    for kind in arguments.kinds:
        for every in arguments.every:
            command = [sys.executable, __file__, *sys.argv[1:], "--child", kind, str(every)]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
            if not lines:
                print(f"{kind:<8} {every:>5}  failed: {done.stderr.strip().splitlines()[-1:]}")
                continue
            m = json.loads(lines[0].removeprefix("RESULT"))
            print(f"{kind:<8} {every:>5}  {m['wall_on'] * 1e3:7.2f} / {m['wall_off'] * 1e3:7.2f}  {100 * (m['wall_on'] / m['wall_off'] - 1):+7.2f}  "
                  f"{100 * (m['mean_cpu_on'] / m['mean_cpu_off'] - 1):+7.2f}  {m['emit_on'] * 1e6:7.0f} / {m['emit_off'] * 1e6:5.0f}  {m['worst_emit'] * 1e3:15.2f}  "
                  f"{m['opening'] * 1e3:29.1f}  {m['close']:8.2f}", flush=True)


if __name__ == "__main__":
    main()
