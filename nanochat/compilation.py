"""torch.compile, for whoever asks for it (``run.compile``): off by default, since it costs a minute of start-up on a CPU and
is young on an NPU, where it needs triton-ascend.

Only training steps run compiled; evaluation and sampling have other shapes, and each shape would be compiled anew.
"""

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nanochat.device import Device
from nanochat.errors import BadConfig
from nanochat.model import GPT

__all__ = ["compiled"]

WHERE = "run.compile"
HINT = "set run.compile to false: training is the same, only slower"


def compiled(model: GPT, device: Device, *, wanted: bool) -> Callable[..., Tensor]:
    """The model's forward pass: compiled where that is wanted, else the model itself.

    Raises:
        BadConfig: What compiling needs is not there. What torch finds out only in the first step is raised there, alike.
    """
    if not wanted:
        return model
    if device.compiles_with_cxx and shutil.which(os.environ.get("CXX", "g++")) is None:
        raise BadConfig(f"there is no C++ compiler {os.environ.get('CXX', 'g++')!r}, which torch.compile needs here", where=WHERE, hint=HINT)
    forward = torch.compile(model, dynamic=False)

    def call(*args: Any, **kwargs: Any) -> Tensor:
        from torch._dynamo.exc import TorchDynamoException

        try:
            result: Tensor = forward(*args, **kwargs)
        except TorchDynamoException as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise BadConfig(f"torch.compile failed on {device.name}: {first}", where=WHERE, hint=HINT) from error
        return result

    return call
