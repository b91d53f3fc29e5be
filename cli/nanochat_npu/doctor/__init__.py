"""Checks of what jobs need: this computer, the cluster, and what a spec names. Each gives a finding and a remedy."""

from nanochat_npu.doctor.checks import Check, Level, passed, worst
from nanochat_npu.doctor.cluster import check_cluster
from nanochat_npu.doctor.computer import check_computer

__all__ = ["Check", "Level", "check_cluster", "check_computer", "passed", "worst"]
