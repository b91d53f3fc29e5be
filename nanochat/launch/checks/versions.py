"""torch and torch_npu in this image fit each other; read from their metadata, nothing is imported."""

from importlib.metadata import PackageNotFoundError, version

from nanochat.contract import RunFile
from nanochat.errors import BadConfig
from nanochat.launch.settings import LaunchSettings

__all__ = ["check", "fits"]


def fits(torch: str, torch_npu: str) -> bool:
    """True if this torch_npu was built for this torch: the same three numbers (2.12.0+cpu and 2.12.0.post2 do)."""
    return torch.split("+")[0].split(".")[:3] == torch_npu.replace("rc", ".").split(".")[:3]


def check(settings: LaunchSettings, run: RunFile) -> None:
    """Compare what is installed.

    Raises:
        BadConfig: One is missing, they are for different versions, or torch is a CUDA build.
    """
    if run.world.device != "npu":
        return
    found = {name: _installed(name) for name in ("torch", "torch_npu")}
    missing = [name for name, installed in found.items() if installed is None]
    if missing:
        raise BadConfig(f"not installed: {', '.join(missing)}", where="image", hint="nanochat-npu image matrix shows what goes together")
    torch, torch_npu = str(found["torch"]), str(found["torch_npu"])
    if not fits(torch, torch_npu):
        raise BadConfig(
            f"torch_npu {torch_npu} does not load beside torch {torch}: it needs exactly its own version", where="image",
            hint="nanochat-npu image matrix shows what goes together",
        )
    if "+cu" in torch or _installed("nvidia-cuda-runtime") or _installed("nvidia-cuda-runtime-cu12"):
        raise BadConfig(f"torch {torch} is a CUDA build, beside which torch_npu refuses to load", where="image", hint="install the CPU build of torch")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
