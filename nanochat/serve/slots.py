"""A KV cache whose rows are at different positions, so that a conversation may join or leave at any step."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nanochat.model import GPT, KVCache

__all__ = ["SlotCache"]


class SlotCache(KVCache):
    """Rows of conversations; the first `active` ones take part in a step, each at its own position.

    A row that leaves is replaced by the last active one, so the active rows are always a contiguous view and a step copies
    nothing.

    Args:
        model: The model that it belongs to.
        slots: Most rows at the same time.
        max_len: Positions of a row.
    """

    def __init__(self, model: GPT, slots: int, max_len: int) -> None:
        super().__init__(model.shape, slots, max_len, model.dtype, model.device)
        self.lengths = torch.zeros(slots, dtype=torch.long, device=model.device)
        self.active = 0
        self._previous = torch.zeros((slots, 1, model.shape.width), dtype=model.dtype, device=model.device)
        self._keys = torch.arange(max_len, device=model.device)
        self._longest = 0

    @property
    def previous(self) -> Tensor | None:
        """Smear state of the active rows, (active, 1, C); a copy, since the model sets the new one before it uses the old."""
        return self._previous[: self.active].clone()

    @previous.setter
    def previous(self, value: Tensor | None) -> None:
        if value is not None:
            self._previous[: value.size(0)] = value

    def join(self, row: KVCache) -> int:
        """Slot of a new row, taken over from a cache of one row that holds its prompt.

        Raises:
            ValueError: No slot is free.
        """
        if self.active == self.batch or row.previous is None:
            raise ValueError("no slot is free, or the row is empty")
        slot = self.active
        self.data[:, :, slot, : row.length] = row.data[:, :, 0, : row.length]
        self.lengths[slot] = row.length
        self._previous[slot] = row.previous[0]
        self.active += 1
        return slot

    def leave(self, slot: int) -> int:
        """Free a slot; gives back the slot whose row now stands there (the last one), which is `slot` itself if it was the last."""
        last = self.active - 1
        if slot != last:
            length = int(self.lengths[last])
            self.data[:, :, slot, :length] = self.data[:, :, last, :length]
            self.lengths[slot] = self.lengths[last]
            self._previous[slot] = self._previous[last]
        self.active -= 1
        return last

    def begin(self) -> None:
        """Before a step: how far the longest active row is (one transfer from the device instead of one per layer)."""
        self._longest = int(self.lengths[: self.active].max()) if self.active else 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        """Mixed values (active, 1, H, D) of one new position in each active row, which is remembered."""
        n, end = self.active, self._longest + 1
        keys, values = self.data[layer, 0, :n], self.data[layer, 1, :n]
        rows, at = torch.arange(n, device=q.device), self.lengths[:n]
        keys[rows, at], values[rows, at] = k[:, 0], v[:, 0]
        distance = at[:, None] - self._keys[:end]
        mask = ((distance >= 0) & (distance <= window))[:, None, None, :]
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), keys[:, :end].transpose(1, 2), values[:, :end].transpose(1, 2), attn_mask=mask)
        return mixed.transpose(1, 2)

    def rotary(self, cos: Tensor, sin: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Rotary tables (active, 1, 1, D/2), each row's own position."""
        at = self.lengths[: self.active]
        return cos[0, at].unsqueeze(1), sin[0, at].unsqueeze(1)

    def advance(self, count: int) -> None:
        """Every active row has one position more."""
        self.lengths[: self.active] += count
