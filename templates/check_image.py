"""Checks a finished image from inside while it is built: python3 check_image.py TORCH TORCH_NPU PYTHON [--allow-cuda-torch].

Leaves with 1 and one line per finding. Part of nanochat-npu.
"""

import importlib.metadata
import pwd
import subprocess
import sys


def installed(name: str) -> str:
    """Version of a distribution, or what to say if it is missing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def findings(torch_wanted: str, npu_wanted: str, python_wanted: str, allow_cuda: bool) -> list[str]:
    """Everything that is wrong with this image."""
    found = []
    python = ".".join(map(str, sys.version_info[:2]))
    if python != python_wanted:
        found.append(f"Python is {python}, the spec says {python_wanted}")
    if installed("torch").split("+")[0] != torch_wanted:
        found.append(f"torch is {installed('torch')}, torch_npu {npu_wanted} needs exactly {torch_wanted}")
    if npu_wanted != "none" and installed("torch_npu") != npu_wanted:
        found.append(f"torch_npu is {installed('torch_npu')}, the spec says {npu_wanted}")
    try:
        import torch
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        found.append(f"import torch fails: {error}")
    else:
        if torch.version.cuda and not allow_cuda:
            found.append(f"torch {torch.__version__} is a CUDA build; torch_npu loads beside a CPU build only")
    try:
        pwd.getpwuid(1000)
    except KeyError:
        found.append("user 1000 has no passwd entry; NPUs cannot be opened by it")
    version = subprocess.run([sys.executable, "-m", "nanochat", "--version"], capture_output=True, text=True, check=False)
    if version.returncode != 0:
        found.append(f"python -m nanochat --version left with {version.returncode}: {version.stderr.strip()[-300:]}")
    else:
        print(version.stdout.strip())
    return found


if __name__ == "__main__":
    problems = findings(sys.argv[1], sys.argv[2], sys.argv[3], "--allow-cuda-torch" in sys.argv[4:])
    for problem in problems:
        print(f"image check: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)
