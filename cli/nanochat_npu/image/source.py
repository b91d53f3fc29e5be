"""Which commit this installation was made from: for an image's labels, never for its tag."""

import subprocess
from pathlib import Path

import nanochat_npu

__all__ = ["UNKNOWN", "source_commit"]

UNKNOWN = "unknown"
BAKED = "source_commit"
"""File that `dev/hatch_build.py` puts into wheels and source archives, beside this package's modules."""
GIT_TIMEOUT_S = 10.0


def source_commit(package: Path | None = None) -> str:
    """The commit, as a wheel carries it or as git knows it in a checkout (with ``-dirty`` where files differ from it), or "unknown".

    Args:
        package: Folder of package ``nanochat_npu``; default: the one that runs.
    """
    folder = Path(nanochat_npu.__file__).parent if package is None else package
    checkout = folder.parents[1]
    # A checkout of ours, and not somebody's repository that a virtual environment happens to lie in.
    if (checkout / ".git").exists() and (checkout / "pyproject.toml").is_file() and folder == checkout / "cli" / "nanochat_npu":
        return _from_git(checkout)
    try:
        return (folder / BAKED).read_text("utf-8").strip() or UNKNOWN
    except (OSError, UnicodeDecodeError):
        return UNKNOWN


def _from_git(checkout: Path) -> str:
    try:
        commit = _git(checkout, "rev-parse", "--verify", "HEAD")
        changed = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, ValueError, subprocess.SubprocessError):  # no git, no commit yet, or a checkout that git does not trust
        return UNKNOWN
    return f"{commit}-dirty" if changed else commit


def _git(checkout: Path, *arguments: str) -> str:
    result = subprocess.run(["git", "--no-optional-locks", "-C", str(checkout), *arguments], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True)
    return result.stdout.strip()
