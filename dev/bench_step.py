"""Training steps of this trainer beside upstream nanochat's, paired: python dev/bench_step.py PATH_OF_UPSTREAM_CHECKOUT.

Both live in processes of their own and take turns step by step, so that whatever else the machine does hits both alike. The
checkout (github.com/karpathy/nanochat, any commit since 92d63d4) is only read. Data are random tokens: the loader has a
benchmark of its own. Wall time counts waiting for other processes, CPU time does not; on a busy machine believe the latter.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve()
PARTS = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Case:
    """What is measured."""

    depth: int = 4
    length: int = 512
    rows: int = 4
    vocab: int = 4096
    dtype: str = "float32"
    compile: bool = False
    threads: int = 1
    pattern: str = "L"

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.rows * self.length


class Worker:
    """A process with one of the two trainers, which takes a step when told to."""

    def __init__(self, whose: str, case: Case, checkout: Path) -> None:
        env = {
            **os.environ, "OMP_NUM_THREADS": str(case.threads), "NANOCHAT_DTYPE": case.dtype, "PYTHONWARNINGS": "ignore",
            "TORCHDYNAMO_DISABLE": "0" if case.compile else "1",
        }
        root = checkout if whose == "upstream" else SCRIPT.parents[1]
        self.started = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT), str(checkout), "--worker", whose, "--case", json.dumps(vars(case))], env={**env, "PYTHONPATH": str(root)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )

    def step(self) -> dict[str, float]:
        """Take a step; wall and CPU milliseconds of its parts."""
        return self._ask("step")

    def leave(self) -> dict[str, float]:
        """End the process; its peak memory."""
        last = self._ask("leave")
        self._process.wait()
        return last

    def _ask(self, word: str) -> dict[str, float]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit("a worker ended early")


# -- inside a worker --------------------------------------------------------------------------------------------------


def our_model(case: Case) -> tuple[Any, Any]:
    """This trainer's model and its shape."""
    import torch

    from nanochat.contract import ModelConfig, ModelShape
    from nanochat.model import build

    shape = ModelShape.of(ModelConfig(depth=case.depth, sequence_len=case.length, window_pattern=case.pattern), case.vocab)
    return build(shape, getattr(torch, case.dtype), "cpu", 42), shape


def ours(case: Case) -> tuple[Any, Any]:
    """Loss and update of this trainer."""
    from nanochat.compilation import compiled
    from nanochat.device import pick
    from nanochat.optim import LearningRates, build_optimizer
    from nanochat.schedule import PretrainSchedule

    model, _ = our_model(case)
    optimizer = build_optimizer(model, LearningRates(batch_scale=0.06))
    schedule = PretrainSchedule(1000, weight_decay=0.3)
    forward = compiled(model, pick("cpu"), wanted=case.compile)

    def update(step: int) -> None:
        optimizer.step(schedule.at(step))
        optimizer.zero_grad()

    return forward, update


def upstream(case: Case) -> tuple[Any, Any]:
    """Loss and update of the checkout."""
    import torch
    from nanochat.gpt import GPT, GPTConfig

    heads = -(-case.depth * 64 // 128)
    config = GPTConfig(
        sequence_len=case.length, vocab_size=case.vocab, n_layer=case.depth, n_head=heads, n_kv_head=heads, n_embd=heads * 128,
        window_pattern=case.pattern,
    )
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device="cpu")
    model.init_weights()
    optimizer = model.setup_optimizer(weight_decay=0.3)
    forward = torch.compile(model, dynamic=False) if case.compile else model

    def update(step: int) -> None:
        optimizer.step()
        model.zero_grad(set_to_none=True)

    return forward, update


def work(whose: str, case: Case) -> None:
    """Answer the controller until it says leave."""
    import resource

    import torch

    torch.set_num_threads(case.threads)
    forward, update = (ours if whose == "ours" else upstream)(case)
    rng = torch.Generator().manual_seed(0)
    for number, word in enumerate(sys.stdin):
        if word.strip() == "leave":
            print(json.dumps({"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)
            return
        ids = torch.randint(case.vocab, (case.rows, case.length + 1), generator=rng)
        inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        marks = [(time.perf_counter(), time.process_time())]
        loss = forward(inputs, targets)
        marks.append((time.perf_counter(), time.process_time()))
        loss.backward()
        marks.append((time.perf_counter(), time.process_time()))
        update(number)
        marks.append((time.perf_counter(), time.process_time()))
        spans = {f"{kind} {part}": 1e3 * (b[i] - a[i]) for part, a, b in zip(PARTS, marks, marks[1:], strict=False) for i, kind in enumerate(("wall", "cpu"))}
        print(json.dumps(spans), flush=True)


# -- the controller ---------------------------------------------------------------------------------------------------


def first_step_s(whose: str, case: Case, checkout: Path) -> float:
    """Seconds from the start of a process to the end of its first step."""
    worker = Worker(whose, case, checkout)
    worker.step()
    elapsed = time.perf_counter() - worker.started
    worker.leave()
    return elapsed


def compare(case: Case, checkout: Path, steps: int) -> dict[str, tuple[float, float]]:
    """Medians (ours, upstream's) by what was measured."""
    pair = [Worker(whose, case, checkout) for whose in ("ours", "upstream")]
    taken: list[list[dict[str, float]]] = [[], []]
    for number in range(steps + 2):
        for who in (0, 1) if number % 2 else (1, 0):
            taken[who].append(pair[who].step())
    result = {}
    for kind in ("wall", "cpu"):
        for part in PARTS:
            result[f"{kind} {part} ms"] = tuple(statistics.median(s[f"{kind} {part}"] for s in side[2:]) for side in taken)
        result[f"{kind} step ms"] = tuple(statistics.median(sum(s[f"{kind} {p}"] for p in PARTS) for s in side[2:]) for side in taken)
    result["peak memory MiB"] = tuple(worker.leave()["peak_mib"] for worker in pair)
    return result  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--starts", type=int, default=2, help="Times that a start is measured")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--pattern", default="L")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--worker", choices=["ours", "upstream"], help=argparse.SUPPRESS)
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, Case(**args.case))
        return
    case = Case(args.depth, args.length, args.rows, dtype=args.dtype, compile=args.compile, threads=args.threads, pattern=args.pattern)
    print(f"d{case.depth}, T {case.length}, {case.tokens} tokens per step, {case.dtype}, {'compiled' if case.compile else 'eager'}, {case.threads} threads")
    print(f"{'':22}{'ours':>10}{'upstream':>10}{'ours/upstream':>15}")
    rows = compare(case, args.checkout, args.steps)
    starts = [[first_step_s(whose, case, args.checkout) for _ in range(args.starts)] for whose in ("ours", "upstream")]
    if args.starts:
        rows["start to first step s"] = (min(starts[0]), min(starts[1]))
    for name, (mine, theirs) in rows.items():
        print(f"{name:22}{mine:10.1f}{theirs:10.1f}{mine / theirs:15.2f}")
    for kind in ("wall", "cpu"):
        mine, theirs = rows[f"{kind} step ms"]
        print(f"tokens/s by {kind:10}{1e3 * case.tokens / mine:10.0f}{1e3 * case.tokens / theirs:10.0f}{theirs / mine:15.2f}")


if __name__ == "__main__":
    main()
