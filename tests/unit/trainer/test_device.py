"""Which device, what it is called, how fast it can be, and what happens where it is missing."""

import sys
import types

import pytest
import torch

from nanochat import device as devices
from nanochat.device import Device, Kind, peak_flops, pick
from nanochat.errors import BadConfig, DeviceLost


@pytest.mark.parametrize(
    ("name", "vendor", "cube"),
    [
        ("Ascend910B1", 414, 363.7), ("Ascend910B2", 376, 353.9), ("Ascend910B3", 313, 294.9), ("Ascend910B4", 280, 262.1),
        ("Ascend910B4-1", 280, 262.1), ("Ascend910_9392", 376, 353.9), ("Ascend910_9381", 376, 353.9),
    ],
)
def test_peak_of_ascend_chips_by_denominator(name: str, vendor: float, cube: float) -> None:
    assert peak_flops(name) == vendor * 1e12 and peak_flops(name, "cube") == cube * 1e12


@pytest.mark.parametrize("name", ["Ascend910B2C", "Ascend910A", "Ascend310P3", "cpu", "", "Ascend950"])
def test_an_unknown_peak_is_unknown(name: str) -> None:
    assert peak_flops(name) is None


def test_a_cpu_is_picked_when_asked_for() -> None:
    device = pick("cpu", 3)
    assert (device.kind, device.torch, device.backend) == (Kind.CPU, torch.device("cpu"), "gloo")
    assert device.peak_memory_bytes() > 2**20 and device.total_memory_bytes() is None and device.peak_flops() is None
    device.synchronise()


def test_an_npu_that_was_asked_for_and_has_no_software_is_bad_config() -> None:
    with pytest.raises(BadConfig, match="torch_npu cannot be loaded"):
        pick("npu")


def fake_driver(monkeypatch: pytest.MonkeyPatch, count: int) -> list[object]:
    """torch_npu and torch.npu with a number of NPUs; gives back what was called."""
    called: list[object] = []
    npu = types.SimpleNamespace(
        is_available=lambda: count > 0, device_count=lambda: count, set_device=lambda i: called.append(("set_device", i)),
        set_compile_mode=lambda **mode: called.append(mode), get_device_name=lambda i: "Ascend910B3", is_bf16_supported=lambda: True,
        manual_seed=lambda seed: called.append(("seed", seed)),
    )
    module = types.ModuleType("torch_npu")
    module.__version__ = "2.12.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    return called


def test_an_npu_is_set_up_by_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    called = fake_driver(monkeypatch, 8)
    device = pick("npu", 5)
    assert (device.kind, device.index, device.backend, device.runtime) == (Kind.NPU, 5, "hccl", "torch_npu 2.12.0")
    assert called == [("set_device", 5), {"jit_compile": False}]
    assert device.peak_flops() == 313e12 and device.compute_dtype("auto") == torch.bfloat16


def test_too_few_npus_are_a_lost_device_and_say_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, 2)
    with pytest.raises(DeviceLost, match="local rank 2 needs NPU number 2, and 2 are visible"):
        pick("npu", 2)


def test_software_without_an_npu_is_a_lost_device(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, 0)
    with pytest.raises(DeviceLost, match="0 are visible"):
        pick("npu")


def test_auto_takes_the_npu_where_its_software_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, 1)
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: object())
    assert pick("auto").kind is Kind.NPU


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(BadConfig, match="unknown device 'tpu'"):
        pick("tpu")


def test_dtypes_on_a_cpu() -> None:
    device = pick("cpu")
    assert device.compute_dtype("auto") == device.compute_dtype("float32") == torch.float32
    assert device.compute_dtype("bfloat16") == torch.bfloat16
    with pytest.raises(BadConfig, match="loss scaling"):
        device.compute_dtype("float16")


def test_bf16_where_there_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, 1)
    monkeypatch.setattr(torch.npu, "is_bf16_supported", lambda: False)  # type: ignore[attr-defined]
    device = Device(Kind.NPU, 0, "Ascend910A", "")
    assert device.compute_dtype("auto") == torch.float32
    with pytest.raises(BadConfig, match="Ascend910A has no bfloat16"):
        device.compute_dtype("bfloat16")


def test_seeds_make_draws_repeat() -> None:
    draws = []
    for _ in range(2):
        pick("cpu").seed(7)
        draws.append(torch.rand(3))
    assert torch.equal(*draws)
    assert torch.equal(*(torch.rand(3, generator=devices.generator(torch.device("cpu"), 7)) for _ in range(2)))
