"""A registry on loopback, a stand-in base image in it, and specs that are built from it."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from standin import SUITES, make_base

PROGRAMS = ("buildah", "skopeo", "mmdebstrap", "docker-registry")
CACHE = Path(__file__).parents[2] / ".cache" / "image"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session", autouse=True)
def programs() -> None:
    """What these tests need beside Python; where it is missing they fail and say how to get it."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.fail(f"needs root and {', '.join(missing or PROGRAMS)}: apt-get install buildah skopeo mmdebstrap docker-registry", pytrace=False)
    if sys.version_info[:2] not in SUITES:
        pytest.fail("needs Python 3.11 or 3.13: the stand-in takes torch from this environment and Python from Debian", pytrace=False)
    os.environ["BUILDAH_ISOLATION"] = "chroot"


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of a real registry (Debian's docker-registry) without TLS on loopback."""
    home, port = tmp_path_factory.mktemp("registry"), _free_port()
    config = home / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {home}/data}}, delete: {{enabled: true}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n"
    )
    with (home / "log").open("w") as log, subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=log) as process:
        try:
            for _ in range(200):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=2).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def base(registry: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The stand-in for a CANN image, by digest."""
    return make_base(f"{registry}/ascend/cann:standin", CACHE, tmp_path_factory.mktemp("standin"))
