"""Helpers of other folders that end-to-end tests use too."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "unit" / part) for part in ("core", "tasks")]
