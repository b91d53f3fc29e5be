"""``python -m nanochat selfcheck``: does this image compute rightly on this machine, and how fast? One file to send back.

What cannot be proven without the hardware is proven here, by whoever has it: the device's kernels against the same
arithmetic on the host, a short training that must learn, collectives with their bandwidth. Run it alone for one NPU, or
under torchrun for several: ``torchrun --nproc-per-node 8 -m nanochat selfcheck``.
"""

import argparse
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nanochat import __version__
from nanochat.attention import self_test
from nanochat.contract import ExitCode, ModelConfig, ModelShape
from nanochat.device import CHOICES, HOST, Device, Kind, pick
from nanochat.distributed import Communicator, join
from nanochat.errors import TrainerError
from nanochat.files import write_atomic
from nanochat.model import GPT, build
from nanochat.ops import rms_norm, rotary_norm, softcap_cross_entropy
from nanochat.optim import LearningRates, build_optimizer
from nanochat.optim.kernels import AdamWRule, MuonRule, adamw_update, muon_update
from nanochat.schedule import PretrainSchedule

__all__ = ["CHECKS", "Check", "Machine", "check", "main"]

BANDWIDTH_BYTES = 64 * 2**20
GEMM_SIZE = 4096
PROFILED_STEPS = 3
FALL_BACK = "fall back to run on the CPU"
"""How torch_npu warns of an operator that it lacks (Ascend/pytorch, ``VariableFallbackKernel.cpp``): right, and very slow."""


@dataclass(frozen=True)
class Machine:
    """Where the checks run."""

    device: Device
    comm: Communicator = field(default_factory=Communicator)
    steps: int = 40
    dtype: torch.dtype = torch.bfloat16
    profile: Path | None = None
    """Folder for a trace of training steps, which TensorBoard and MindStudio Insight read."""


@dataclass(frozen=True)
class Check:
    """What one check found."""

    name: str
    passed: bool
    values: dict[str, Any]
    problem: str = ""
    seconds: float = 0.0


class Wrong(ValueError):
    """A check's finding: numbers that are not what they must be."""


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _off(got: Tensor, expected: Tensor, limit: float, what: str) -> float:
    """Relative error of a device's tensor.

    Raises:
        Wrong: It is more than the limit, or not a number.
    """
    error = float((got.detach().cpu().float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-12))
    if not error < limit:
        raise Wrong(f"{what} is off by {error:.2g}, more than {limit:g}")
    return error


def attention(machine: Machine) -> dict[str, Any]:
    """The chosen kernel against the formula, full and windowed, with gradients."""
    tests = {str(dtype): self_test(machine.device.torch, dtype) for dtype in (torch.float32, machine.dtype)}
    return {dtype: {"kernel": t.kernel, "worst": t.worst, "seconds": round(t.seconds, 3)} for dtype, t in tests.items()}


def operations(machine: Machine) -> dict[str, Any]:
    """Norm, rotation and loss with their gradients, on the device and on the host."""
    hidden, weight, heads = _random(64, 128), _random(500, 128, seed=1), _random(2, 32, 4, 64, seed=2)
    targets = torch.arange(64) * 7 % 500
    angle = _random(1, 32, 1, 32, seed=3)

    def loss(h: Tensor, w: Tensor) -> Tensor:
        return softcap_cross_entropy(h, w, targets.to(h.device), cap=15.0, chunk_rows=20, want_sum=True)

    def turned(x: Tensor) -> Tensor:
        return rotary_norm(x, angle.cos().to(x.device), angle.sin().to(x.device), 1.2)

    cases: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
        "rms_norm": (rms_norm, (hidden,)), "rotary_norm": (turned, (heads,)), "cross_entropy": (loss, (hidden, weight)),
    }
    errors = {}
    for name, (function, inputs) in cases.items():
        here, there = (_with_gradients(function, [t.to(place) for t in inputs]) for place in (HOST, machine.device.torch))
        errors[name] = max(_off(b, a, 1e-3, name) for a, b in zip(here, there, strict=True))
    return errors


def _with_gradients(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    out = function(*leaves)
    out.square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def optimizer(machine: Machine) -> dict[str, Any]:
    """One update of AdamW and of Muon, on the device and on the host."""
    results = []
    for place in (HOST, machine.device.torch):
        p, m, v = (t.to(place) for t in (_random(300, 40), torch.zeros(300, 40), torch.zeros(300, 40)))
        adamw_update(p, _random(300, 40, seed=1).to(place), m, v, AdamWRule(0.1, 0.8, 0.95, 0.1), 0.1, 1)
        stack, momentum, second = (t.to(place) for t in (_random(3, 128, 32), torch.zeros(3, 128, 32), torch.zeros(3, 128, 1)))
        gradients = _random(3, 128, 32, seed=2).to(place)
        muon_update(stack, gradients, momentum, second, MuonRule(0.1), lr=0.1, momentum=0.9, weight_decay=0.1, dtype=torch.float32)
        results.append((p, stack))
    (host_p, host_stack), (p, stack) = results
    return {"adamw": _off(p, host_p, 1e-4, "adamw"), "muon": _off(stack, host_stack, 1e-3, "muon")}


def products(machine: Machine) -> dict[str, Any]:
    """Speed of a large matrix product in the compute dtype, and its part of the peak."""
    size = GEMM_SIZE if machine.device.peak_flops() else 512
    a, b = (_random(size, size, seed=s).to(machine.device.torch, machine.dtype) for s in (0, 1))
    elapsed = _timed(machine, lambda: torch.mm(a, b), 20)
    flops = 2 * size**3 / elapsed
    peak = machine.device.peak_flops()
    return {"tflops": round(flops / 1e12, 3), "of_peak": round(flops / peak, 3) if peak else None, "size": size}


def _timed(machine: Machine, work: Callable[[], Any], times: int) -> float:
    """Seconds of one call."""
    for _ in range(3):
        work()
    machine.device.synchronise()
    started = time.perf_counter()
    for _ in range(times):
        work()
    machine.device.synchronise()
    return (time.perf_counter() - started) / times


def training(machine: Machine) -> dict[str, Any]:
    """A short run of a small model on text that repeats itself: its first losses are the host's, and it learns."""
    shape = ModelShape.of(ModelConfig(depth=4, aspect_ratio=32, head_dim=64, sequence_len=256, window_pattern="SSSL"), 512)
    host = build(shape, torch.float32, HOST, seed=42)
    exact = build(shape, torch.float32, machine.device.torch)
    exact.load_state_dict(host.state_dict())
    first = [abs(a / b - 1) for a, b in zip(_train(exact, machine, 3)[0], _train(host, Machine(pick(Kind.CPU)), 3)[0], strict=True)]
    if not all(off < 1e-3 for off in first):  # NaN fails too
        raise Wrong(f"losses of the first steps are off by {max(first):.2g}")
    model = build(shape, machine.dtype, machine.device.torch)
    model.load_state_dict(build(shape, machine.dtype, HOST, seed=42).state_dict())
    losses, seconds = _train(model, machine, machine.steps)
    if not losses[-1] < losses[0] - 0.1:
        raise Wrong(f"the loss went from {losses[0]:.3f} to {losses[-1]:.3f} in {machine.steps} steps")
    if machine.profile is not None:
        with machine.device.profiler(machine.profile):
            _train(model, machine, PROFILED_STEPS)
    return {
        "first_losses_off": max(first), "losses": [round(loss, 4) for loss in losses], "tokens_per_s": round(4 * 256 / seconds),
        "peak_memory_bytes": machine.device.peak_memory_bytes(),
    }


def _train(model: GPT, machine: Machine, steps: int) -> tuple[list[float], float]:
    """Losses, and the median seconds of a step."""
    update = build_optimizer(model, LearningRates(batch_scale=0.3))
    schedule = PretrainSchedule(steps, warmup_steps=1, weight_decay=0.1)
    losses, seconds = [], []
    for step in range(steps):
        started = time.perf_counter()
        starts = torch.randint(512, (4, 1), generator=torch.Generator().manual_seed(step))
        ids = ((starts + torch.arange(257) * 3) % 512).to(model.device)
        loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        update.step(schedule.at(step))
        update.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - started)
    return losses, sorted(seconds)[len(seconds) // 2]


def collectives(machine: Machine) -> dict[str, Any]:
    """Sums and gatherings over the ranks: right, and with which bandwidth (GB/s of payload per rank)."""
    comm, size = machine.comm, machine.comm.size
    if size == 1:
        return {"skipped": "one rank; run under torchrun to test collectives"}
    part = torch.full((BANDWIDTH_BYTES // 4 // size,), float(comm.rank + 1), device=machine.device.torch)
    whole = torch.cat([part] * size)
    expected = size * (size + 1) / 2
    if not torch.all(comm.reduce_scatter(whole).wait() == expected) or not torch.all(comm.all_reduce(part.clone()).wait() == expected):
        raise Wrong(f"sums over {size} ranks are not {expected}")
    into = torch.empty_like(whole)
    comm.all_gather(part, into).wait()
    if not torch.equal(into.view(size, -1)[:, 0].cpu(), torch.arange(1.0, size + 1)):
        raise Wrong("gathered parts are not in the order of ranks")
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: comm.all_reduce(whole).wait(), "reduce_scatter": lambda: comm.reduce_scatter(whole).wait(),
        "all_gather": lambda: comm.all_gather(part, into).wait(),
    }
    return {name: round(whole.numel() * 4 / _timed(machine, call, 10) / 1e9, 3) for name, call in calls.items()}


CHECKS: dict[str, Callable[[Machine], dict[str, Any]]] = {
    check.__name__: check for check in (attention, operations, optimizer, products, training, collectives)
}
"""By name, in the order in which they run."""


def check(name: str, machine: Machine) -> Check:
    """The outcome of one check; an error of the device is an outcome too."""
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        always = torch.is_warn_always_enabled()
        torch.set_warn_always(True)  # else what was told once before is not told in the check that causes it
        try:
            values = CHECKS[name](machine)
        except (Wrong, TrainerError, RuntimeError) as error:
            return Check(name, False, {}, f"{type(error).__name__}: {error}", round(time.perf_counter() - started, 2))
        finally:
            torch.set_warn_always(always)
    elsewhere = sorted({str(warning.message).splitlines()[0] for warning in told if FALL_BACK in str(warning.message)})
    problem = f"not done on the device: {'; '.join(elsewhere)}" if elsewhere else ""
    return Check(name, not elsewhere, values, problem, round(time.perf_counter() - started, 2))


def _about(machine: Machine) -> dict[str, Any]:
    device = machine.device
    environment = {k: v for k, v in sorted(os.environ.items()) if k.startswith(("HCCL_", "ASCEND_", "PYTORCH_NPU", "TORCH_NPU", "OMP_"))}
    return {
        "nanochat": __version__, "python": platform.python_version(), "torch": torch.__version__, "runtime": device.runtime, "device": device.name,
        "kind": device.kind.value, "memory_bytes": device.total_memory_bytes(), "peak_flops": device.peak_flops(), "ranks": machine.comm.size,
        "environment": environment,
    }


def main(argv: Sequence[str] = ()) -> int:
    """Run the checks; 0 if all passed, 69 if one did not."""
    parser = argparse.ArgumentParser(prog="python -m nanochat selfcheck", description=__doc__)
    parser.add_argument("--device", choices=CHOICES, default="auto")
    parser.add_argument("--steps", type=int, default=40, help="steps of the short training")
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="also write a trace of some training steps there")
    parser.add_argument("--to", type=Path, default=Path("nanochat-selfcheck.json"), help="file to write")
    args = parser.parse_args(list(argv))
    try:
        device = pick(args.device, int(os.environ.get("LOCAL_RANK", "0")))
        machine = Machine(device, join(device), args.steps, torch.bfloat16, args.profile)
    except TrainerError as error:
        print(f"selfcheck: {error}", file=sys.stderr)
        return int(error.code)
    results = []
    for name in CHECKS:
        results.append(check(name, machine))
        if machine.comm.is_first:
            print(f"{'ok ' if results[-1].passed else 'BAD'} {name}: {results[-1].problem or json.dumps(results[-1].values)}", flush=True)
    if machine.comm.is_first:
        report = {"v": 1, "about": _about(machine), "checks": [asdict(result) for result in results]}
        write_atomic(args.to, json.dumps(report, indent=1) + "\n")
        print(f"written to {args.to}")
    machine.comm.close()
    return int(ExitCode.DONE if all(result.passed for result in results) else ExitCode.DEVICE_LOST)
