"""The one file that knows device types: which device there is, what it can do, and how to speak to it.

Everything else asks a `Device`. An NPU that was asked for and is not there is an error, never a silent fall to CPU.
Facts about torch_npu and the 910B: Ascend/pytorch (torch_npu) at 9e73e708 and Huawei's hardware pages, see docs/ascend_npu.md.
"""

from __future__ import annotations  # Device.torch hides the module's name within the class body

import contextlib
import importlib
import importlib.util
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from nanochat.errors import BadConfig, DeviceLost

__all__ = ["CHOICES", "HOST", "Device", "Kind", "is_cpu_only", "peak_flops", "pick"]

_Dtype = torch.dtype  # inside `Device` the name torch is its property
Denominator = Literal["vendor", "cube"]


class Kind(StrEnum):
    """Device types that the trainer runs on."""

    NPU = "npu"
    CUDA = "cuda"
    CPU = "cpu"


CHOICES = ("auto", *(kind.value for kind in Kind))
"""What `pick` understands."""
HOST = torch.device(Kind.CPU.value)
"""Where results are compared and files are written from."""

_BACKENDS: dict[Kind, str] = {Kind.NPU: "hccl", Kind.CUDA: "nccl", Kind.CPU: "gloo"}

_PEAK_TFLOPS: dict[str, tuple[float, float]] = {
    # Name as torch.npu.get_device_name() gives it -> (vendor, cube) dense bf16 TFLOP/s. The vendor's figure counts cube
    # and vector units (910B3: 294.9 + 18.4); some trainers divide by the cube part alone. A3: one die, which is one rank.
    "Ascend910B1": (414.0, 363.7),
    "Ascend910B2": (376.0, 353.9),
    "Ascend910B3": (313.0, 294.9),
    "Ascend910B4": (280.0, 262.1),
    "Ascend910B4-1": (280.0, 262.1),
    "Ascend910_93": (376.0, 353.9),
}
_CUDA_PEAK_TFLOPS: tuple[tuple[str, float], ...] = (
    # NVIDIA data sheets, dense bf16; matched as substring, more specific first.
    ("H200", 989.0), ("H100 PCIe", 756.0), ("H100", 989.0), ("H800", 989.0), ("A100", 312.0), ("A800", 312.0), ("L40S", 362.0),
)


def peak_flops(name: str, denominator: Denominator = "vendor") -> float | None:
    """Peak dense bf16 FLOP/s of one rank's device by name, or None where we do not know it (never 0, never infinity)."""
    pair = _PEAK_TFLOPS.get(name) or next((v for k, v in _PEAK_TFLOPS.items() if k.endswith("_93") and name.startswith(k)), None)
    if pair is not None:
        return pair[0 if denominator == "vendor" else 1] * 1e12
    return next((tflops * 1e12 for part, tflops in _CUDA_PEAK_TFLOPS if part in name), None)


@dataclass(frozen=True)
class Device:
    """One rank's device. Made by `pick`."""

    kind: Kind
    index: int
    name: str
    """Chip name as the driver gives it, "cpu" on a CPU."""
    runtime: str
    """Version of the device library, for the log ("torch_npu 2.12.0")."""

    @property
    def torch(self) -> torch.device:
        """The device as torch writes it."""
        return torch.device(self.kind.value) if self.kind is Kind.CPU else torch.device(self.kind.value, self.index)

    @property
    def backend(self) -> str:
        """Name of the collective backend."""
        return _BACKENDS[self.kind]

    @property
    def _module(self) -> Any:
        return getattr(torch, self.kind.value)

    def compute_dtype(self, wanted: str) -> _Dtype:
        """The dtype of activations and GEMMs for ``run.dtype``.

        Raises:
            BadConfig: float16, which needs loss scaling that we do not have, or bfloat16 where the device lacks it.
        """
        if wanted == "float16":
            raise BadConfig(
                "float16 overflows without loss scaling", where="run.dtype",
                hint="use bfloat16 (910B and later) or float32",
            )
        if wanted == "float32" or (wanted == "auto" and not self._fast_bf16()):
            return torch.float32
        if not self._has_bf16():
            raise BadConfig(f"{self.name} has no bfloat16", where="run.dtype", hint="set run.dtype to float32")
        return torch.bfloat16

    def _has_bf16(self) -> bool:
        return self.kind is Kind.CPU or bool(self._module.is_bf16_supported())

    def _fast_bf16(self) -> bool:
        if self.kind is Kind.CUDA:
            return torch.cuda.get_device_capability(self.index) >= (8, 0)
        return self.kind is Kind.NPU and self._has_bf16()

    def seed(self, seed: int) -> None:
        """Seed the global generators of CPU and device; model and data use generators of their own."""
        torch.manual_seed(seed)
        if self.kind is not Kind.CPU:
            self._module.manual_seed(seed)

    @property
    def compiles_with_cxx(self) -> bool:
        """Whether torch.compile writes C++ for this device, and so needs a compiler for it."""
        return self.kind is Kind.CPU

    def timing_event(self) -> Any:
        """An event that remembers when the device's queue reached it, or None on CPU, where nothing is queued."""
        return None if self.kind is Kind.CPU else self._module.Event(enable_timing=True)

    def synchronise(self) -> None:
        """Wait until the device has done all that was queued, so that a clock read after it means something."""
        if self.kind is not Kind.CPU:
            self._module.synchronize(self.torch)

    def peak_memory_bytes(self) -> int:
        """Most memory in use so far: the allocator's peak on a device, the process's resident peak on CPU."""
        if self.kind is Kind.CPU:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return int(self._module.max_memory_allocated(self.torch))

    def reset_peak_memory(self) -> None:
        """Start the allocator's peak anew; on CPU the kernel keeps the peak of the process's whole life."""
        if self.kind is not Kind.CPU:
            self._module.reset_peak_memory_stats(self.torch)

    def total_memory_bytes(self) -> int | None:
        """Memory of the device as the driver reports it (61 GiB of a 64 GB 910B); None on CPU."""
        return None if self.kind is Kind.CPU else int(self._module.mem_get_info(self.torch)[1])

    def peak_flops(self, denominator: Denominator = "vendor") -> float | None:
        """Peak dense bf16 FLOP/s, the denominator of MFU; None where unknown."""
        return peak_flops(self.name, denominator)

    def profiler(self, folder: Path) -> contextlib.AbstractContextManager[Any]:
        """A profiler that writes a trace for TensorBoard into the folder when it closes."""
        if self.kind is Kind.NPU:
            npu = importlib.import_module("torch_npu").profiler
            return npu.profile(
                activities=[npu.ProfilerActivity.CPU, npu.ProfilerActivity.NPU],
                on_trace_ready=npu.tensorboard_trace_handler(str(folder)),
            )
        from torch import profiler

        activities = [profiler.ProfilerActivity.CPU] + [profiler.ProfilerActivity.CUDA] * (self.kind is Kind.CUDA)
        return profiler.profile(activities=activities, on_trace_ready=profiler.tensorboard_trace_handler(str(folder)), acc_events=True)  # unset, it warns


def is_cpu_only(wanted: str = "auto") -> bool:
    """True if `pick` is sure to give a CPU. Asks no driver, so that a process may fork afterwards."""
    if wanted != "auto":
        return wanted == Kind.CPU
    return importlib.util.find_spec("torch_npu") is None and not Path("/dev/nvidiactl").exists()


def generator(device: torch.device, seed: int) -> torch.Generator:
    """A random generator on the device; its numbers depend on seed and device type, and on nothing drawn before."""
    return torch.Generator(device).manual_seed(seed)


def logits_chunk_elements(device: torch.device) -> int:
    """Logits that may exist at a time: on a CPU what its caches hold, elsewhere 256 MiB in fp32 (a row of all is 8 KiB x vocabulary)."""
    return 2**21 if device.type == Kind.CPU else 2**26


def muon_chunk_elements(device: torch.device) -> int:
    """Elements of a stack of Muon matrices worked on at once, which bounds the temporaries to a few times this: on a CPU what
    stays in its caches (2 MiB in fp32: 5 to 15 % less time than with the whole stack, d4 and d8), elsewhere 256 MiB.
    """
    return 2**19 if device.type == Kind.CPU else 2**26


def halves_symmetric_products(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Whether a stack of symmetric products (K, size, size) is made faster from one half of the entries. On a CPU in fp32, from
    512 up: 0.86 to 0.80 of the time, and 0.9 of it below, which the assembling eats up in the whole step. Not in bf16, where
    smaller products are less efficient; not tried on accelerators.
    """
    return device.type == Kind.CPU and dtype == torch.float32 and size >= 512


def native_ops(device: torch.device) -> Any:
    """The module with the device's own operators (torch_npu on an NPU), or None."""
    return importlib.import_module("torch_npu") if device.type == Kind.NPU else None


def prefers_blocks(device: torch.device) -> bool:
    """Whether windowed attention is better done block by block in plain operations than by the device's kernel with a mask."""
    return device.type == Kind.CPU


def packs_weights(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a product of few rows with a matrix gains by the matrix being laid out for it first: oneDNN does that on a CPU, and
    refuses bf16 on those without its instructions, where torch's own product takes it.
    """
    if device.type != Kind.CPU or not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def attends_in_fp32(device: torch.device) -> bool:
    """Whether attention of a single query is done in fp32 whatever the dtype: on a CPU a bf16 product of such sizes takes three times as long."""
    return device.type == Kind.CPU


@contextlib.contextmanager
def alone(device: torch.device, *, when: bool) -> Iterator[None]:
    """Where work on a CPU is so small that waking another thread takes longer than doing it: this thread does all, for as long as that lasts."""
    threads = torch.get_num_threads()
    if not when or device.type != Kind.CPU or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def prefers_fused_adamw(device: torch.device) -> bool:
    """Whether torch's fused AdamW is used. Not on an NPU: its step count would be a 0-D tensor, and its bf16 rounding is its own."""
    return device.type == Kind.CPU


def pick(wanted: str = "auto", local_rank: int = 0) -> Device:
    """The device of a rank.

    Args:
        wanted: ``npu``, ``cuda``, ``cpu`` or ``auto``: an NPU where torch_npu is installed, else CUDA, else CPU.
        local_rank: Which of the node's devices; ignored on CPU.

    Raises:
        BadConfig: The software for the device is missing, so every attempt would fail.
        DeviceLost: The software is there and the device is not; another node may have it.
    """
    if wanted == Kind.NPU or (wanted == "auto" and importlib.util.find_spec("torch_npu") is not None):
        return _npu(local_rank)
    if wanted == Kind.CUDA or (wanted == "auto" and torch.cuda.is_available()):
        return _cuda(local_rank)
    if wanted in (Kind.CPU, "auto"):
        return Device(Kind.CPU, 0, "cpu", f"torch {torch.__version__}")
    raise BadConfig(f"unknown device {wanted!r}", where="world.device", hint="one of auto, npu, cuda, cpu")


def _import_torch_npu() -> ModuleType:
    try:
        return importlib.import_module("torch_npu")
    except (ImportError, RuntimeError, OSError) as error:  # libhccl.so missing is one or the other, by version
        raise BadConfig(
            f"an NPU was asked for, but torch_npu cannot be loaded: {error}", where="world.device",
            hint="use an image with CANN and the torch_npu that fits it, or set world.device to cpu",
        ) from error


def _npu(local_rank: int) -> Device:
    torch_npu = _import_torch_npu()
    npu: Any = torch.npu  # type: ignore[attr-defined]
    _require(npu, "NPU", local_rank, "check npu-smi info, the device mounts and ASCEND_RT_VISIBLE_DEVICES (its ids must be sorted)")
    npu.set_device(local_rank)
    npu.set_compile_mode(jit_compile=False)  # prebuilt kernels; compiling them one by one stalls the first steps for minutes
    return Device(Kind.NPU, local_rank, npu.get_device_name(local_rank), f"torch_npu {torch_npu.__version__}")


def _cuda(local_rank: int) -> Device:
    _require(torch.cuda, "CUDA device", local_rank, "check nvidia-smi, or set world.device to cpu")
    torch.cuda.set_device(local_rank)
    torch.set_float32_matmul_precision("high")
    return Device(Kind.CUDA, local_rank, torch.cuda.get_device_name(local_rank), f"CUDA {torch.version.cuda}")


def _require(module: Any, what: str, local_rank: int, hint: str) -> None:
    count = module.device_count() if module.is_available() else 0
    if count <= local_rank:
        raise DeviceLost(f"local rank {local_rank} needs {what} number {local_rank}, and {count} are visible", hint=hint)
