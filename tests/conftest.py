"""What all tests share: a state folder of their own, no way out but loopback, one thread per process."""

import os
import socket

import pytest

# Before torch is imported anywhere: several test processes share two cores, and OpenMP barriers make them crawl.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
for _name in (
    "NANOCHAT_LOGGER", "SWANLAB_API_KEY", "SWANLAB_API_HOST", "SWANLAB_WORKSPACE", "WANDB_API_KEY", "WANDB_BASE_URL", "KUBECONFIG", "NANOCHAT_NPU_LANG",
    "NANOCHAT_SERVE_TOKEN",
):
    os.environ.pop(_name, None)

_LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")
_connect = socket.socket.connect


def _guarded_connect(self: socket.socket, address: object) -> None:
    if self.family in (socket.AF_INET, socket.AF_INET6):
        host = str(address[0]) if isinstance(address, tuple) else str(address)
        if not host.startswith(_LOOPBACK):
            raise ConnectionRefusedError(f"tests talk to loopback only, not to {host}")
    _connect(self, address)  # type: ignore[arg-type]


socket.socket.connect = _guarded_connect  # type: ignore[method-assign,assignment]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has its own state, configuration and language."""
    monkeypatch.setenv("NANOCHAT_NPU_HOME", f"{tmp_path}/home")
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{tmp_path}/config")
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/state")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.delenv("NANOCHAT_NPU_SITE", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
