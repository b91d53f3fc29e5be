"""What a job will take and cost: memory, time, money and how sure, from plain values. Pure: no clock, disk or network."""

from nanochat_npu.estimate.draws import DRAWS, Quantiles
from nanochat_npu.estimate.hardware import CHIPS, STACKS, Source, Stack, accelerator
from nanochat_npu.estimate.inputs import Budget, Electricity, Inputs, Price, Site, Storage
from nanochat_npu.estimate.measured import Calibration, History, Match, Tier, history, match
from nanochat_npu.estimate.memory import Memory
from nanochat_npu.estimate.model import Estimate, Knowledge, estimate, likely_hours
from nanochat_npu.estimate.money import Cost, CostLine
from nanochat_npu.estimate.terms import Rates, Term, overhead_s

__all__ = [
    "CHIPS", "DRAWS", "STACKS", "Budget", "Calibration", "Cost", "CostLine", "Electricity", "Estimate", "History", "Inputs", "Knowledge",
    "Match", "Memory", "Price", "Quantiles", "Rates", "Site", "Source", "Stack", "Storage", "Term", "Tier", "accelerator", "estimate", "history",
    "likely_hours", "match", "overhead_s",
]
