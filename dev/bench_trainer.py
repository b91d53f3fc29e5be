"""All figures of the trainer beside upstream nanochat's, in one go, as a Markdown table: python dev/bench_trainer.py CHECKOUT.

CHECKOUT is a checkout of karpathy/nanochat (92d63d4), which is only read. Ours and upstream's run side by side and take turns step by
step (`bench_step.py`), so what else the machine does hits both alike; figures are medians over the steps, ratios of those medians.
About ten minutes on two quiet cores; sections that the time limit no longer allows are named and left out, and a section that
fails is named and does not stop the others. torch.compile's cache is kept between runs of this script (`--cache`).
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import bench_loader
import bench_step
from bench_step import Case

SCRIPT = Path(__file__).resolve()
PATHS = f"{SCRIPT.parents[1]}{os.pathsep}{SCRIPT.parent}"
GOALS = {"tokens/s": 1.2, "tokens/s compiled": 1.0, "optimizer": 0.5, "memory": 0.9, "start": 0.75, "loader": 3.0}
"""Ratios ours : upstream that the project wants: at least for speeds, at most for times and memory."""
TIMED: list[tuple[Case, int]] = [
    (Case(threads=2), 10), (Case(threads=1), 6), (Case(threads=2, dtype="bfloat16"), 12), (Case(threads=1, dtype="bfloat16"), 8),
    (Case(threads=2, length=2048, rows=1), 8), (Case(threads=2, length=2048, rows=1, dtype="bfloat16"), 8),
    (Case(threads=2, depth=8, rows=2), 4), (Case(threads=2, depth=8, rows=2, dtype="bfloat16"), 4), (Case(threads=2, compile=True), 10),
]
"""What is timed, and for how many steps after two of warming up."""
STARTS = 3
LOADER_ROUNDS = 3
WORLDS = (1, 2, 4)
SCALING_STEPS = 6


def title(case: Case) -> str:
    """A case in a few words."""
    how = "compiled" if case.compile else "eager"
    return f"d{case.depth}, T {case.length}, {case.rows} rows, {case.dtype}, {how}, {case.threads} thread{'s' if case.threads > 1 else ''}"


def verdict(ratio: float, goal: str) -> str:
    """Ratio and whether it reaches the goal."""
    wanted = GOALS[goal]
    more = goal in ("tokens/s", "tokens/s compiled", "loader")
    return f"{ratio:.2f} ({'≥' if more else '≤'} {wanted}: {'yes' if (ratio >= wanted if more else ratio <= wanted) else 'no'})"


def steps_section(checkout: Path, left: Callable[[], float]) -> Iterator[str]:
    """Tokens per second, parts of a step and memory, for all cases."""
    yield "| case | tokens/s ours | upstream | ratio | by CPU time | forward | backward | optimizer ms | ratio | memory MiB | ratio |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for case, steps in TIMED:
        if left() < (200 if case.compile else 60):  # compiling anew takes upstream a minute, and us
            yield f"| {title(case)} | left out: no time | | | | | | | | | |"
            continue
        try:
            found = bench_step.compare(case, checkout, steps)
        except (SystemExit, OSError, ValueError) as error:
            yield f"| {title(case)} | failed: {error} | | | | | | | | | |"
            continue
        speed = [1e3 * case.tokens / ms for ms in found["wall step ms"]]
        by_cpu = found["cpu step ms"][1] / found["cpu step ms"][0]
        ours, theirs = found["wall optimizer ms"]
        memory = found["peak memory MiB"]
        parts = [found[f"wall {part} ms"][0] / found[f"wall {part} ms"][1] for part in ("forward", "backward")]
        yield (
            f"| {title(case)} | {speed[0]:,.0f} | {speed[1]:,.0f} | {verdict(speed[0] / speed[1], 'tokens/s compiled' if case.compile else 'tokens/s')} "
            f"| {by_cpu:.2f} | {parts[0]:.2f} | {parts[1]:.2f} | {ours:.0f} / {theirs:.0f} | {verdict(ours / theirs, 'optimizer')} "
            f"| {memory[0]:.0f} / {memory[1]:.0f} | {verdict(memory[0] / memory[1], 'memory')} |"
        )


def start_section(checkout: Path, left: Callable[[], float]) -> Iterator[str]:
    """Seconds from the start of a process to the end of its first step."""
    case = Case(threads=2)
    seconds: dict[str, list[float]] = {"ours": [], "upstream": []}
    for number in range(STARTS):
        for whose in ("ours", "upstream") if number % 2 else ("upstream", "ours"):
            seconds[whose].append(bench_step.first_step_s(whose, case, checkout))
    ours, theirs = (statistics.median(values) for values in seconds.values())
    yield f"Start of the process to the end of the first step, {title(case)}, median of {STARTS}: {ours:.2f} s against {theirs:.2f} s, {verdict(ours / theirs, 'start')}."


def loader_section(checkout: Path, left: Callable[[], float]) -> Iterator[str]:
    """Tokens per second as processes usually run, and the longest waits with other work kept away (where the kernel lets us)."""
    yield "| loader | tokens/s | ratio | first batch s | median ms | longest gap ms, drained | longest gap ms, trained on at 0.5 Mtok/s |"
    yield "|---|---|---|---|---|---|---|"
    usual, alone = (
        bench_loader.measured(checkout, rounds=LOADER_ROUNDS, batch=4, length=512, batches=1000, realtime=realtime) for realtime in (False, True)
    )
    for kind in bench_loader.KINDS:
        own = {key: statistics.median(r[kind][key] for r in usual) for key in ("tokens_per_s", "first_s", "median_ms")}
        gaps = [statistics.median(r[kind][key] for r in alone) for key in ("max_ms", "paced_max_ms")]
        ratio = statistics.median(r[kind]["tokens_per_s"] / r["upstream"]["tokens_per_s"] for r in usual)
        yield (
            f"| {kind} | {own['tokens_per_s']:,.0f} | {'1' if kind == 'upstream' else verdict(ratio, 'loader')} | {own['first_s']:.3f} | {own['median_ms']:.2f} "
            f"| {gaps[0]:.1f} | {gaps[1]:.1f} |"
        )
    same = all(r["upstream"]["sha256"] == r["ours, upstream's packing"]["sha256"] for r in [*usual, *alone])
    yield f"\nRows of upstream's packing: {'the same token for token' if same else 'NOT THE SAME'}. Gaps: median of the maxima of {LOADER_ROUNDS} rounds, at real-time priority."


def scaling_section(checkout: Path, left: Callable[[], float]) -> Iterator[str]:
    """Gloo processes with one thread each, four rows of 512 tokens per process."""
    yield "| processes (gloo, 1 thread each) | tokens/s | of ideal | communication share of a step |"
    yield "|---|---|---|---|"
    base = 0.0
    for size in WORLDS:
        speed, share = _world(size)
        base = base or speed
        cores = min(size, len(os.sched_getaffinity(0)))
        yield f"| {size} | {speed:,.0f} | {speed / (base * cores):.2f} of {cores} core{'s' if cores > 1 else ''} | {share:.1%} |"


def _world(size: int) -> tuple[float, float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {
        **os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": PATHS, "PYTHONWARNINGS": "ignore",
    }
    ranks = [
        subprocess.Popen([sys.executable, "-P", str(SCRIPT), "--role", "rank"], env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    told = [rank.communicate(timeout=300)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a rank of {size} ended with {[rank.returncode for rank in ranks]}")
    result = json.loads(told[0].splitlines()[-1])
    return result["tokens_per_s"], result["share"]


def as_rank() -> None:
    """One rank of the scaling section."""
    import torch

    from nanochat.device import pick
    from nanochat.distributed import join
    from nanochat.optim import LearningRates, build_optimizer
    from nanochat.schedule import PretrainSchedule

    torch.set_num_threads(1)
    case = Case()
    comm = join(pick("cpu"))
    model, _ = bench_step.our_model(case)
    optimizer = build_optimizer(model, LearningRates(batch_scale=0.06), comm)
    schedule = PretrainSchedule(1000, weight_decay=0.3)
    rng = torch.Generator().manual_seed(comm.rank)
    walls, shares = [], []
    for step in range(SCALING_STEPS + 2):
        ids = torch.randint(case.vocab, (case.rows, case.length + 1), generator=rng)
        started = time.perf_counter()
        with optimizer.overlapping():
            (model(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()) / comm.size).backward()
        optimizer.step(schedule.at(step))
        optimizer.zero_grad()
        walls.append(time.perf_counter() - started)
        shares.append(comm.waits.take() / walls[-1])
    wall = statistics.median(walls[2:])
    if comm.is_first:
        print(json.dumps({"tokens_per_s": comm.size * case.tokens / wall, "share": statistics.median(shares[2:])}))
    comm.barrier()
    comm.close()


def profile_section(checkout: Path, left: Callable[[], float]) -> Iterator[str]:
    """Where a step goes, by operator."""
    yield "| operator (d4, float32, 1 thread) | share of a step's CPU time | calls |"
    yield "|---|---|---|"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATHS, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-P", str(SCRIPT), "--role", "profile"], env=env, capture_output=True, text=True, check=True, timeout=300)
    for name, share, calls in json.loads(done.stdout.splitlines()[-1]):
        yield f"| {name} | {share:.1%} | {calls} |"


def as_profile() -> None:
    """One profiled step."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    torch.set_num_threads(1)
    case = Case()
    forward, update = bench_step.ours(case)
    ids = torch.randint(case.vocab, (case.rows, case.length + 1), generator=torch.Generator().manual_seed(0))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    for step in range(2):
        forward(inputs, targets).backward()
        update(step)
    with profile(activities=[ProfilerActivity.CPU]) as taken:
        forward(inputs, targets).backward()
        with record_function("optimizer"):
            update(2)
    events = taken.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    optimizer = next(event for event in events if event.key == "optimizer")
    top = sorted((event for event in events if event.key != "optimizer"), key=lambda event: -event.self_cpu_time_total)[:12]
    rows: list[tuple[str, float, int]] = [("the optimizer with all below it", optimizer.cpu_time_total / total, 1)]
    print(json.dumps(rows + [(event.key, event.self_cpu_time_total / total, event.count) for event in top]))


SECTIONS: dict[str, Callable[[Path, Callable[[], float]], Iterator[str]]] = {
    "steps": steps_section, "start": start_section, "loader": loader_section, "scaling": scaling_section, "profile": profile_section,
}


def main() -> None:
    """Prints the sections one after the other, each as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="Only this section; may be given again")
    parser.add_argument("--limit-s", type=float, default=690.0, help="Seconds after which no more is begun")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "nanochat-bench-compile", help="Folder of torch.compile's cache")
    parser.add_argument("--role", choices=["rank", "profile"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        (as_rank if args.role == "rank" else as_profile)()
        return
    if args.checkout is None or not (args.checkout / "nanochat" / "gpt.py").is_file():
        parser.error("CHECKOUT is to be a checkout of karpathy/nanochat (it holds nanochat/gpt.py)")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(args.cache)
    deadline = time.monotonic() + args.limit_s

    def left() -> float:
        return deadline - time.monotonic()

    print(f"torch {_torch_version()}, {len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[0]:.1f} at the start\n", flush=True)
    for name in ("start", "loader", "scaling", "profile", "steps"):  # the long one last, so that the limit costs the fewest sections
        if args.only and name not in args.only:
            continue
        begun = time.monotonic()
        if left() < 30:
            print(f"Section {name} was left out: no time.\n")
            continue
        try:
            for line in SECTIONS[name](args.checkout, left):
                print(line, flush=True)
        except (SystemExit, OSError, RuntimeError, subprocess.SubprocessError, ValueError) as error:
            print(f"Section {name} failed: {type(error).__name__}: {error}")
            print(*(str(getattr(error, "stderr", "") or "").splitlines()[-5:]), sep="\n")
        print(f"\n({name}: {time.monotonic() - begun:.0f} s)\n", flush=True)
    print(f"Load average {os.getloadavg()[0]:.1f} at the end.")


def _torch_version() -> str:
    from importlib.metadata import version

    return version("torch")


if __name__ == "__main__":
    main()
