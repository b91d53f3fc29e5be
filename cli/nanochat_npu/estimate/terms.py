"""What the time is made of: seconds of a step, of a checkpoint, of an evaluation. The stages put them together."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from nanochat_npu.estimate.hardware import StackClass, accelerator, link_bytes_per_s
from nanochat_npu.estimate.inputs import Inputs

__all__ = [
    "CORE_TASKS", "EVAL_SPEEDUP", "FULL_CORE_EXAMPLES", "Group", "Rates", "Term", "checkpoint_bytes", "core_s", "evaluations", "exchanged_bytes", "overhead_s", "rates", "save_count",
    "save_interval_s",
]

Group = Literal["speed", "network", "overhead"]
"""What a term's error is made of: the speed of the device, the links, or everything around."""

EVAL_SPEEDUP = 3.0
"""A forward pass alone is a third of a training step."""
CORE_EXAMPLE_S = 0.034
"""Host time of one CORE example (44 s and 84 s of CORE on A3 at d20 and d32, 500 per task: two equations)."""
CORE_EXAMPLE_TOKENS = 1670
CORE_TASKS = 22
FULL_CORE_EXAMPLES = 55_000
"""All examples of CORE: six full evaluations of about 270 s on eight H100 (karpathy/nanochat PR 492)."""


@dataclass(frozen=True)
class Term:
    """One line of the time table.

    Attributes:
        key: ``stage.what``, for ``--explain-estimate`` and JSON.
        seconds: Likely wall-clock seconds.
        group: Which uncertainty it shares.
        values: What the formula was filled with.
    """

    key: str
    seconds: float
    group: Group
    values: dict[str, float]


@dataclass(frozen=True)
class Rates:
    """Seconds of one optimiser update, by what they are spent on.

    `eval_speedup` is how much faster validation goes through tokens than training.
    """

    matmul_s: float
    vector_s: float
    vocab_s: float
    optimizer_s: float
    communication_s: float
    tokens_per_step: int
    eval_speedup: float = EVAL_SPEEDUP

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.matmul_s + self.vector_s + self.vocab_s + self.optimizer_s + self.communication_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second over all ranks."""
        return self.tokens_per_step / self.step_s

    def scaled(self, factor: float) -> "Rates":
        """Every part multiplied, as a calibration asks for."""
        return replace(
            self, matmul_s=self.matmul_s * factor, vector_s=self.vector_s * factor, vocab_s=self.vocab_s * factor, optimizer_s=self.optimizer_s * factor,
            communication_s=self.communication_s * factor,
        )


def _muon_flops(inputs: Inputs) -> float:
    """FLOPs of orthogonalising every matrix once: 5 iterations of 4 m^2 n + 2 m^3, m <= n, on the rank that has the most."""
    width, depth = inputs.shape.width, inputs.shape.depth
    square = 5 * 6.0 * width**3
    wide = 5 * (4.0 * width * width * (4 * width) + 2.0 * width**3)
    world = inputs.world_size
    return math.ceil(4 * depth / world) * square + math.ceil(2 * depth / world) * wide


def rates(inputs: Inputs, stack: StackClass) -> Rates:
    """Time of one step from counts, chip and stack: t = work / speed, plus bytes / bandwidth, nothing overlapped.

    Attention counts as full and causal (half the work): whether a windowed kernel gains anything on NPUs is not measured.
    Gradients are reduced after the backward pass and parameters gathered after the update, so both are exposed.
    """
    chip, shape = accelerator(inputs.chip), inputs.shape
    cores = inputs.cores_per_rank if inputs.chip == "cpu" else 1.0
    flops_per_s = chip.cube_peak_flops * stack.matmul_frac * cores
    rank_tokens = inputs.horizon.tokens_per_step / inputs.world_size
    attention = 12.0 * shape.width * shape.depth * shape.sequence_len / 2
    params = shape.parameters
    world = inputs.world_size
    link = link_bytes_per_s(inputs.chip, inputs.nodes, inputs.ranks_per_node)
    return Rates(
        matmul_s=rank_tokens * (6.0 * params.scaling + attention) / flops_per_s,
        vector_s=rank_tokens * stack.layer_bytes * shape.depth * shape.width / chip.stream_bytes_per_s,
        vocab_s=rank_tokens * stack.vocab_bytes * shape.padded_vocab / chip.stream_bytes_per_s,
        optimizer_s=_muon_flops(inputs) / flops_per_s,
        communication_s=2.0 * exchanged_bytes(inputs) * (world - 1) / world / link if world > 1 else 0.0,
        tokens_per_step=inputs.horizon.tokens_per_step,
    )


def exchanged_bytes(inputs: Inputs) -> float:
    """Bytes that are reduced, and gathered again, in each step: gradients in their parameters' own types."""
    params = inputs.shape.parameters
    return 4.0 * params.scaling + 2.0 * (params.wte + params.value_embeds)


def checkpoint_bytes(inputs: Inputs) -> float:
    """Size of one checkpoint with the optimizer's state."""
    params = inputs.shape.parameters
    tables = params.wte + params.value_embeds
    weights = 4.0 * params.scaling + 2 * tables
    return weights + 4.0 * params.matrices + 8 * params.lm_head + 4 * tables


def evaluations(steps: int, every: int) -> int:
    """Validation runs of a training: before the first step, every so many, after the last."""
    return 2 if every == 0 else steps // every + 2


def save_interval_s(inputs: Inputs, train_s: float, step_s: float) -> float:
    """Seconds of training between two checkpoints; all of it if only the end is saved."""
    checkpoint = inputs.run.checkpoint
    candidates = [train_s]
    if checkpoint.every_steps:
        candidates.append(checkpoint.every_steps * step_s)
    if checkpoint.every_minutes:
        candidates.append(checkpoint.every_minutes * 60)
    return max(step_s, min(candidates))


def save_count(train_s: float, interval_s: float) -> int:
    """Checkpoints of a stage, the last one included; one that would fall on the end is not written twice."""
    return max(1, math.ceil(train_s / interval_s - 1e-9)) if interval_s > 0 else 1


def core_s(examples: float, world_size: int, tokens_per_s: float) -> float:
    """One CORE evaluation: every example costs host time and a forward pass over its few-shot prompts."""
    return math.ceil(examples / world_size) * (CORE_EXAMPLE_S + CORE_EXAMPLE_TOKENS * world_size / (EVAL_SPEEDUP * tokens_per_s))


def overhead_s(
    *, tokens_per_s: float, evals: int, eval_tokens: int, cores: int = 0, core_each_s: float = 0.0, saves: int = 0, save_each_s: float = 0.0, start_s: float = 0.0
) -> float:
    """Wall clock of a pretraining beyond its logged training time: start-up, validation, CORE and saves.

    Args:
        tokens_per_s: Training speed over all ranks.
        evals: Validation runs.
        eval_tokens: Tokens of one validation run.
        cores: CORE evaluations.
        core_each_s: Seconds of one of them.
        saves: Checkpoints.
        save_each_s: Seconds of one of them.
        start_s: Process start until the first step.
    """
    return start_s + evals * eval_tokens / (EVAL_SPEEDUP * tokens_per_s) + cores * core_each_s + saves * save_each_s
