"""Counts of the model as earlier commits of upstream had it, so that published logs can be checked to the digit.

`nanochat.contract.ModelShape` is the model as it is today; the logs of 2025 and early 2026 come from older ones.
"""

from dataclasses import dataclass

__all__ = ["RECIPES", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """What changed between commits.

    Attributes:
        gate_channels: Inputs of a value-embedding gate; 0 without value embeddings.
        short_window: Tokens of an S layer; None where every layer is full.
        layer_scalars: Learned scalars per layer.
        other_scalars: Smear gate and the like.
    """

    gate_channels: int
    short_window: int | None
    layer_scalars: int
    other_scalars: int
    sequence_len: int = 2048

    def parameters(self, depth: int, vocab: int) -> tuple[int, int]:
        """All parameters, and those that scaling laws and FLOPs count (matrices and lm_head)."""
        width = 64 * depth if 64 * depth % 128 == 0 else 64 * depth + 64
        table = vocab * width
        embeds = (depth + 1) // 2 if self.gate_channels else 0
        matrices = 12 * depth * width * width + self.gate_channels * (width // 128) * embeds
        scalars = self.layer_scalars * depth + self.other_scalars
        return (2 + embeds) * table + matrices + scalars, matrices + table

    def flops_per_token(self, depth: int, vocab: int) -> int:
        """FLOPs of forward and backward per trained token, as the logs of that time print them."""
        width = 64 * depth if 64 * depth % 128 == 0 else 64 * depth + 64
        full = [self.short_window is None or i % 4 == 3 or i == depth - 1 for i in range(depth)]
        seen = sum(self.sequence_len if is_full else self.short_window or 0 for is_full in full)
        return 6 * self.parameters(depth, vocab)[1] + 12 * width * seen


RECIPES = {
    "2025-10": Recipe(gate_channels=0, short_window=None, layer_scalars=0, other_scalars=0),
    "2026-01": Recipe(gate_channels=32, short_window=1024, layer_scalars=2, other_scalars=0),
    "2026-01 full windows": Recipe(gate_channels=32, short_window=None, layer_scalars=2, other_scalars=0),
    "2026-03": Recipe(gate_channels=12, short_window=768, layer_scalars=2, other_scalars=0),
    "2026-07": Recipe(gate_channels=12, short_window=512, layer_scalars=2, other_scalars=26),
}
"""By the month in which the recipe was current (karpathy/nanochat history; leideng/nanochat-ascend forked in 2026-01)."""
