"""A device called npu:0 that any computer has, with the refusals of a real one.

Two of them. `fake_npu` has shapes, dtypes and devices but no numbers (torch's FakeTensorMode): any size fits, and memory can
be counted. `computing_npu` has tensors that say npu:0 and compute on the CPU, so that numbers can be compared.

Both refuse what a real 910B refuses or makes slow without saying so: an operand on another device, a 0-D CPU tensor (torch
itself lets that pass), fp64, complex numbers. Neither shows what HCCL, CANN or the memory allocator do.
"""

import sys
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

from nanochat import attention

REFUSED = (torch.float64, torch.complex64, torch.complex128)
GEMMS = ("mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_", "matmul", "linear")


def register() -> None:
    """Call torch's spare device npu, once a process. Torch 2.12 and later can do it without C++."""
    setup = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
    if setup is None:
        pytest.skip(f"torch {torch.__version__} cannot register a device from Python (2.12 and later can)", allow_module_level=True)
    if torch._C._get_privateuse1_backend_name() != "npu":
        setup("npu")


register()
NPU = torch.device("npu", 0)


class Refusal(RuntimeError):
    """What a real NPU would not do."""


@dataclass
class Seen:
    """What was run."""

    gemms: list[tuple[str, tuple[torch.dtype, ...]]] = field(default_factory=list)
    operations: int = 0
    live_bytes: int = 0
    peak_bytes: int = 0

    def gemm_dtypes(self) -> set[torch.dtype]:
        """Dtypes of all operands of all matrix products outside the device's own kernels."""
        return {dtype for _, dtypes in self.gemms for dtype in dtypes}


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def _check(func: Any, inputs: list[Tensor], outputs: list[Tensor], seen: Seen) -> None:
    """Raise where a real NPU would refuse, and note matrix products."""
    if not any(t.device.type == "npu" for t in inputs + outputs):
        return
    name = func.overloadpacket.__name__
    seen.operations += 1
    transfers = name in ("_to_copy", "copy_")
    for t in [] if transfers else inputs:
        if t.device.type != "npu" and t.dim() == 0:
            raise Refusal(f"{name}: a 0-D CPU tensor beside an NPU tensor")
        if t.device.type != "npu":
            raise Refusal(f"{name}: tensors on npu:0 and on {t.device}")
    for t in inputs + outputs:
        if t.device.type == "npu" and t.dtype in REFUSED:
            raise Refusal(f"{name}: {t.dtype} on an NPU")
    if name in GEMMS and inputs and not _IN_KERNEL[0]:
        seen.gemms.append((name, tuple(t.dtype for t in inputs)))


class _Strict(TorchDispatchMode):
    """Checks every operation, and counts the bytes that are alive on the NPU."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        outputs = _tensors(out)
        _check(func, _tensors((args, kwargs)), outputs, self.seen)
        for t in outputs:
            self._count(t)
        return out

    def _count(self, t: Tensor) -> None:
        storage = t.untyped_storage()
        key = storage._cdata
        if t.device.type != "npu" or key in self._alive:
            return
        size = storage.nbytes()
        self._alive[key] = size
        self.seen.live_bytes += size
        self.seen.peak_bytes = max(self.seen.peak_bytes, self.seen.live_bytes)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.seen.live_bytes -= self._alive.pop(key, 0)


class _OnNpu(Tensor):
    """A tensor that says npu:0 and keeps its numbers in an ordinary tensor on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "_OnNpu":
        return Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device=NPU,
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __repr__(self) -> str:  # torch's own would print numbers through the device
        return f"OnNpu({self.held!r})"

    def tolist(self) -> Any:
        """Torch's own refuses subclasses."""
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Refusal(f"{func}: an NPU tensor outlived its simulated device")


class _Computing(TorchDispatchMode):
    """Does on the CPU what is asked of npu:0."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        inputs = _tensors((args, kwargs))
        target = kwargs.get("device")
        to_npu = target is not None and torch.device(target).type == "npu"
        if not to_npu and not any(isinstance(t, _OnNpu) for t in inputs):
            return func(*args, **kwargs)
        _check(func, inputs, [], self.seen)
        if target is not None:
            kwargs["device"] = "cpu"
        held_args, held_kwargs = tree_map(_held, args), tree_map(_held, kwargs)
        out = func(*held_args, **held_kwargs)
        name = func.overloadpacket.__name__
        if name == "copy_" and not isinstance(args[0], _OnNpu):
            return args[0]
        leaves_npu = target is not None and not to_npu
        wrapped = out if leaves_npu else tree_map(lambda t: _OnNpu(t) if isinstance(t, Tensor) else t, out)
        _check(func, [], _tensors(wrapped), self.seen)
        stays = not leaves_npu and any(isinstance(t, _OnNpu) for t in inputs)
        return return_and_correct_aliasing(func, args, kwargs, wrapped) if stays else wrapped


class _NumbersFromTheHost(TorchFunctionMode):
    """``torch.tensor([…], device=npu)`` copies from the host below what a Python device can see: two steps here."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == "npu":
            return func(*args, **{**kwargs, "device": None}).to(NPU)
        return func(*args, **kwargs)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, _OnNpu) else value


@contextmanager
def fake_npu() -> Iterator[Seen]:
    """An NPU without numbers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    seen = Seen()
    with _no_old_masks(), FakeTensorMode(), _Strict(seen):
        yield seen


@contextmanager
def computing_npu() -> Iterator[Seen]:
    """An NPU that computes on the CPU."""
    seen = Seen()
    with _no_old_masks(), _NumbersFromTheHost(), _Computing(seen):
        yield seen


@contextmanager
def _no_old_masks() -> Iterator[None]:
    """The trainer keeps one mask for each device; one simulated npu:0 is not another."""
    _MASKS.cache_clear()
    try:
        yield
    finally:
        _MASKS.cache_clear()


def documented_fusion(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *, atten_mask: Tensor | None = None, scale: float = 1.0,
    pre_tockens: int = 2**31 - 1, next_tockens: int = 2**31 - 1, sparse_mode: int = 0,
) -> Tensor:
    """What op-plugin's documentation says of npu_fusion_attention, for layout BSND and sparse modes 0 and 4.

    True in the mask is hidden; without a mask nothing is hidden, whatever the mode; the default scale is 1. In mode 4 the
    mask must be the 2048 x 2048 upper triangle, and keys i - pre … i + next are seen.
    """
    assert input_layout == "BSND" and query.size(2) == head_num
    length = query.size(1)
    scores = torch.einsum("bihd,bjhd->bhij", query.float(), key.float()) * scale
    if atten_mask is not None:
        hidden = atten_mask[:length, :length]
        if sparse_mode == 4:
            assert atten_mask.shape == (2048, 2048) and atten_mask.dtype == torch.bool
            i, j = (torch.arange(length, device=query.device).view(shape) for shape in ((-1, 1), (1, -1)))
            hidden = hidden | (j < i - pre_tockens) | (j > i + next_tockens)
        scores = scores.masked_fill(hidden, -1e30)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), value.float()).to(query.dtype)


class _Fusion(torch.autograd.Function):
    """One kernel, as on the device: what it computes within is not seen from outside."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: Any) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.call = call
        with _inside_kernel():
            return call(q, k, v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [t.detach().requires_grad_() for t in ctx.saved_tensors]
        with _inside_kernel(), torch.enable_grad():
            return (*torch.autograd.grad((ctx.call(*inputs) * grad).sum(), inputs), None)


_IN_KERNEL = [False]


@contextmanager
def _inside_kernel() -> Iterator[None]:
    _IN_KERNEL[0] = True
    try:
        yield
    finally:
        _IN_KERNEL[0] = False


def npu_fusion_attention(query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, **options: Any) -> tuple[Tensor, ...]:
    """`documented_fusion` with gradients, in the form that torch_npu gives it back."""
    out = _Fusion.apply(query, key, value, lambda q, k, v: documented_fusion(q, k, v, head_num, input_layout, **options))
    return (out, *[None] * 6)


_SDPA = attention._sdpa
_MASKS = attention._hidden_above_diagonal


def fused_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool = False) -> Tensor:
    """Torch's attention as one kernel, which it is on a 910B."""
    return _Fusion.apply(q, k, v, lambda q, k, v: _SDPA(q, k, v, mask, causal=causal))


def torch_npu(fusion: Any = npu_fusion_attention) -> types.ModuleType:
    """A module with the operators that the trainer asks torch_npu for."""
    module = types.ModuleType("torch_npu")
    module.npu_fusion_attention = fusion  # type: ignore[attr-defined]
    module.__version__ = "simulated"  # type: ignore[attr-defined]
    return module


def _quiet(mode: Any) -> torch.no_grad:
    """The no_grad that stands for an inference mode."""
    if not hasattr(mode, "stand_in"):
        mode.stand_in = torch.no_grad()
    return mode.stand_in


def install(monkeypatch: pytest.MonkeyPatch, fusion: Any = npu_fusion_attention) -> None:
    """Let the trainer find the simulated torch_npu, and draw numbers for npu:0 on the CPU."""
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu(fusion))
    monkeypatch.setattr(attention, "_sdpa", fused_sdpa)
    # Tensors made by wrapping have no place in inference mode; without gradients is what it means here.
    monkeypatch.setattr(torch.inference_mode, "__enter__", lambda self: torch.no_grad.__enter__(_quiet(self)))
    monkeypatch.setattr(torch.inference_mode, "__exit__", lambda self, *error: torch.no_grad.__exit__(_quiet(self), *error))
    monkeypatch.setattr("nanochat.model.generator", lambda device, seed: torch.Generator().manual_seed(seed))
