"""Fill the virtual environment that runs this from requirements.lock, then add the project itself (editable).

With TORCH_INDEX set, torch comes from that index (one package, without a hash) and what only its CUDA build needs is left out.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CUDA_ONLY = re.compile(r"^(torch|triton|nvidia-|cuda-)")


def entries(lock: str) -> list[str]:
    """The requirements of a lock file, each with its hash lines."""
    return re.findall(r"^(?![#\s]).*?(?=^(?![#\s])|\Z)", lock, re.MULTILINE | re.DOTALL)


def pip(command: str, *args: str) -> None:
    """Run pip of this environment, and end with its exit code if it fails; it shows its progress to a person."""
    quiet = [] if sys.stdout.isatty() else ["-q"]
    done = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", command, *quiet, *args], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    """Install everything."""
    lock = (ROOT / "requirements.lock").read_text()
    index = os.environ.get("TORCH_INDEX")
    wanted = [entry for entry in entries(lock) if not (index and CUDA_ONLY.match(entry))]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(wanted))
        file.flush()
        size = "0.5 GB" if index else "2.6 GB, most of it PyTorch's CUDA build"
        print(f"installing {len(wanted)} packages from requirements.lock: about {size} to download", flush=True)
        # The lock is complete, so nothing has to be resolved: --no-deps also keeps pip from looking.
        pip("install", "--no-deps", "--require-hashes", "-r", file.name)
    if index:
        pin = (ROOT / "constraints.txt").read_text().strip()
        pip("install", "--no-deps", "--index-url", index, pin)
    pip("install", "--no-deps", "--no-build-isolation", "-e", str(ROOT))


if __name__ == "__main__":
    main()
