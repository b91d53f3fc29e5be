"""What `python -m nanochat selfcheck` checks, as tests on a real NPU. Skipped where there is none."""

import importlib.util

import pytest
import torch

from nanochat.device import pick
from nanochat.selfcheck import CHECKS, Machine, check

pytestmark = [
    pytest.mark.npu,
    pytest.mark.skipif(importlib.util.find_spec("torch_npu") is None, reason="needs an Ascend NPU with CANN and torch_npu; there is none here"),
]


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(pick("npu"))


@pytest.mark.parametrize("name", list(CHECKS))
def test_check(name: str, machine: Machine) -> None:
    result = check(name, machine)
    assert result.passed, result.problem


def test_the_device_names_itself_and_its_memory(machine: Machine) -> None:
    assert machine.device.name.startswith("Ascend") and (machine.device.total_memory_bytes() or 0) > 2**30
    assert machine.device.compute_dtype("auto") == torch.bfloat16
