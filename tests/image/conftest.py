"""A registry on loopback, a stand-in base image in it, builders with a storage of their own."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cutting_proxy import CuttingProxy
from loopback import free_port
from standin import SUITES, make_base, run

PROGRAMS = ("buildah", "skopeo", "mmdebstrap", "docker-registry", "openssl")
CACHE = Path(__file__).parents[2] / ".cache" / "image"


@pytest.fixture(scope="session", autouse=True)
def programs() -> Iterator[None]:
    """What these tests need beside Python; where it is missing they fail and say how to get it."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.fail(f"needs root and {', '.join(missing or PROGRAMS)}: apt-get install {' '.join(PROGRAMS)}", pytrace=False)
    if sys.version_info[:2] not in SUITES:
        pytest.fail("needs Python 3.11 or 3.13: the stand-in takes torch from this environment and Python from Debian", pytrace=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUILDAH_ISOLATION", "chroot")
        patch.setenv("XDG_CACHE_HOME", str(CACHE / "user"))  # kept between runs, like Debian; not the cache of whoever runs this
        yield


@pytest.fixture(scope="session", autouse=True)
def storage(programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Images and containers of buildah and podman in a folder of their own: nothing of the user's is seen, and nothing stays."""
    home = tmp_path_factory.mktemp("containers")
    conf, places = home / "storage.conf", f'graphroot = "{home}/storage"\nrunroot = "{home}/run"\n'
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(conf))
        conf.write_text(f"[storage]\n{places}")
        driver = run("buildah", "info", "--format", "{{.store.GraphDriverName}}")
        conf.write_text(f'[storage]\ndriver = "{driver}"\n{places}')  # podman does not choose by itself
        yield home
    subprocess.run(["umount", f"{home}/storage/overlay"], capture_output=True, check=False)  # which is mounted on itself
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of a real registry (Debian's docker-registry) without TLS on loopback."""
    home = tmp_path_factory.mktemp("registry")
    with serving_registry(home) as address:
        yield address
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def registry_with_tls(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A registry with a certificate that nobody knows, and that certificate."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", key, "-out", certificate)
    with serving_registry(tmp_path / "registry", f", tls: {{certificate: {certificate}, key: {key}}}") as address:
        yield address, certificate


@contextmanager
def serving_registry(home: Path, more: str = "") -> Iterator[str]:
    """A registry that runs as long as the block; `more` goes into its http section."""
    home.mkdir(exist_ok=True)
    port, config = free_port(), home / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {home}/data}}, delete: {{enabled: true}}}}\nhttp: {{addr: '127.0.0.1:{port}'{more}}}\n"
    )
    with (home / "log").open("w") as log, subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=log) as process:
        try:
            for _ in range(200):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture
def cutting_proxy(registry: str) -> Iterator[CuttingProxy]:
    """A way to the registry that is cut after some bytes."""
    with CuttingProxy(registry) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def base(registry: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The stand-in for a CANN image, by digest."""
    return make_base(f"{registry}/ascend/cann:standin", CACHE, tmp_path_factory.mktemp("standin"))
