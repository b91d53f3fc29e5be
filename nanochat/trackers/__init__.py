"""What trackers left on disk or keep in their clouds: found, read back into curves, and uploaded later."""

from nanochat.trackers.runs import OfflineRun, Tracker, find_runs

__all__ = ["OfflineRun", "Tracker", "find_runs"]
