"""Between loader and loop: tensors go to the device, positions of all ranks come together."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nanochat.context import Context
from nanochat.data import Loader, merge_states

__all__ = ["Rows"]


class Rows:
    """The loader as the loop wants it: tensors on the device, positions of all ranks in one."""

    def __init__(self, loader: Loader, context: Context) -> None:
        self._loader, self._device = loader, context.device.torch
        self.epoch = 0

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets (B, T) on the device."""
        batch = self._loader.next_batch()
        self.epoch = batch.epoch
        return batch.inputs.to(self._device, non_blocking=True), batch.targets.to(self._device, non_blocking=True)

    def state_dict(self) -> Any:
        """Position of this rank."""
        return self._loader.state_dict()

    def load_state_dict(self, states: Sequence[Any]) -> None:
        """Go to the position that some world saved."""
        self._loader.load_state_dict(merge_states(states))
