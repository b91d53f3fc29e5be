"""Build hook (hatchling): puts the commit that a wheel or a source archive is made from into it, as nanochat_npu/source_commit.

A wheel that is made from a source archive has no git; it takes the file that the archive has. Images carry the commit as a
label (cli/nanochat_npu/image/source.py); nothing else depends on it.
"""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SourceCommit(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the file; leaves editable installations alone, which ask git themselves."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the files."""
        root = Path(self.root)
        if version == "editable" or not (root / ".git").exists():
            return
        commit = _commit(root)
        if commit:
            self.folder = tempfile.TemporaryDirectory(prefix="nanochat-npu-")
            file = Path(self.folder.name) / "source_commit"
            file.write_text(f"{commit}\n", "utf-8")
            build_data["force_include"][str(file)] = "nanochat_npu/source_commit" if self.target_name == "wheel" else "cli/nanochat_npu/source_commit"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called when the archive is written."""
        if hasattr(self, "folder"):
            self.folder.cleanup()


def _commit(root: Path) -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "--no-optional-locks", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--verify", "HEAD") + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""
