"""MuonAdamW: Muon for the matrices, AdamW for the rest, with the state sharded over any number of ranks."""

from nanochat.optim.groups import LearningRates, build_optimizer, parameter_groups
from nanochat.optim.optimizer import MuonAdamW
from nanochat.optim.units import Fetch, StateShard

__all__ = ["Fetch", "LearningRates", "MuonAdamW", "StateShard", "build_optimizer", "parameter_groups"]
