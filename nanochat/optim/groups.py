"""Which parameter is optimised how: upstream nanochat's groups and rates (karpathy/nanochat 92d63d4, ``gpt.py``)."""

from dataclasses import dataclass

import torch

from nanochat.distributed import Communicator
from nanochat.model import GPT
from nanochat.optim.kernels import AdamWRule, MuonRule
from nanochat.optim.optimizer import MuonAdamW
from nanochat.optim.units import Named, ReplicatedUnit, ShardedUnit, StackUnit, Unit

__all__ = ["LearningRates", "build_optimizer", "parameter_groups"]

REFERENCE_WIDTH = 768
"""Width at which the rates of embeddings were tuned; they fall with 1/sqrt(width)."""
SMALL_ELEMENTS = 1024
"""AdamW tensors below this are replicated: a collective of their own would cost more than their state."""
SMEAR_LR = 0.2
"""Fixed: not scaled by the batch."""


@dataclass(frozen=True)
class LearningRates:
    """Rates as the run config gives them, and the factor for the batch (`Horizon.batch_lr_scale`)."""

    embedding: float = 0.3
    unembedding: float = 0.008
    matrix: float = 0.02
    scalar: float = 0.5
    batch_scale: float = 1.0


def parameter_groups(model: GPT, rates: LearningRates) -> tuple[list[tuple[Named, AdamWRule]], list[tuple[list[Named], MuonRule]]]:
    """AdamW tensors each with its rule, and Muon stacks (matrices of one shape) each with its rule."""
    embed = rates.batch_scale * (model.shape.width / REFERENCE_WIDTH) ** -0.5
    scalar = rates.batch_scale * rates.scalar
    rules = {
        "lm_head.weight": AdamWRule(rates.unembedding * embed, 0.8, 0.96, weight_decay=0.01),
        "transformer.wte.weight": AdamWRule(rates.embedding * embed, 0.8, 0.995, weight_decay=0.001),
        "value_embeds": AdamWRule(0.5 * rates.embedding * embed, 0.8, 0.995, weight_decay=0.01),
        "resid_lambdas": AdamWRule(0.01 * scalar, 0.8, 0.95, weight_decay=0.05),
        "x0_lambdas": AdamWRule(scalar, 0.96, 0.95, weight_decay=0.0),
        "smear_gate.weight": AdamWRule(SMEAR_LR, 0.8, 0.95, weight_decay=0.0),
        "smear_lambda": AdamWRule(SMEAR_LR, 0.8, 0.95, weight_decay=0.0),
        "backout_lambda": AdamWRule(SMEAR_LR, 0.8, 0.95, weight_decay=0.0),
    }
    adamw: list[tuple[Named, AdamWRule]] = []
    stacks: dict[torch.Size, list[Named]] = {}
    for name, param in model.named_parameters():
        if name.startswith("transformer.h."):
            stacks.setdefault(param.shape, []).append((name, param))
        else:
            adamw.append(((name, param), rules["value_embeds" if name.startswith("value_embeds.") else name]))
    muon = MuonRule(rates.matrix * rates.batch_scale)
    return adamw, [(stacks[shape], muon) for shape in sorted(stacks)]


def build_optimizer(model: GPT, rates: LearningRates, comm: Communicator | None = None) -> MuonAdamW:
    """The optimizer of a model. Rates and weight decay of each update come from the schedule."""
    comm = comm or Communicator()
    adamw, muon = parameter_groups(model, rates)
    small = [(named, rule) for named, rule in adamw if named[1].numel() < SMALL_ELEMENTS]
    units: list[Unit] = [
        ShardedUnit(named, rule, comm) for named, rule in adamw if named[1].numel() >= SMALL_ELEMENTS
    ]
    units.append(ReplicatedUnit(small, comm))
    load = [0] * comm.size
    for params, rule in sorted(muon, key=lambda stack: -stack[0][0][1].numel()):
        shift = _least_loaded_shift(load, len(params), params[0][1].numel())
        units.append(StackUnit(params, rule, comm, dtype=model.dtype, shift=shift))
    return MuonAdamW(units, comm)


def _least_loaded_shift(load: list[int], matrices: int, numel: int) -> int:
    """By how many ranks to turn a stack so that the busiest rank stays as idle as possible; adds the stack to `load`."""
    size = len(load)
    per_rank = -(-matrices // size)
    counts = [max(0, min(per_rank, matrices - chunk * per_rank)) for chunk in range(size)]

    def after(shift: int) -> list[int]:
        return [load[rank] + numel * counts[(rank - shift) % size] for rank in range(size)]

    best = min(range(size), key=lambda shift: max(after(shift)))
    load[:] = after(best)
    return best
