"""A stand-in for a CANN base image: Debian with Python, this environment's torch, CANN's paths and an npu-smi that knows no NPU.

The package index has no CPU build of torch for x86, so torch comes from the environment that runs the tests, with the CUDA
libraries that it cannot be imported without; it is by far the largest layer. Nothing here is Huawei's.
"""

import hashlib
import importlib.metadata
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from nanochat_npu.image.reference import parse_reference
from nanochat_npu.image.registry import MANIFEST_TYPES, Manifest, Registry, sha256_of

SUITES = {(3, 11): "bookworm", (3, 13): "trixie"}
"""Debian releases by their Python, which must be the one that torch was installed for."""
PACKAGES = "python3,python3-pip,ca-certificates,libgomp1,libnuma1,procps"
SET_ENV = "export ASCEND_TOOLKIT_HOME=/usr/local/Ascend/cann\nexport LD_LIBRARY_PATH=$ASCEND_TOOLKIT_HOME/lib64:$LD_LIBRARY_PATH\n[ -d /nonexistent ] && true\n"
NPU_SMI = '#!/bin/sh\necho "npu-smi: stand-in, no NPU here" >&2\nexit 1\n'


def run(*command: str | Path, **options: object) -> str:
    """Output of a command that must succeed."""
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command[:4]))} … left with {result.returncode}: {(result.stdout + result.stderr)[-3000:]}")
    return str(result.stdout).strip()


def debian(cache: Path) -> Path:
    """A tar of a minimal Debian with Python; made once (it takes minutes) and kept."""
    suite = SUITES[sys.version_info[:2]]
    path = cache / f"{suite}.tar"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        # A name of its own: two runs of these tests share the cache.
        partial = cache / f"{suite}.{os.getpid()}.partial.tar"
        run("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}",
            '--customize-hook=rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',
            # The machine's own certificates: behind an inspecting proxy pip needs them.
            '--customize-hook=cp /etc/ssl/certs/ca-certificates.crt "$1"/etc/ssl/certs/ca-certificates.crt',
            suite, partial, env={**os.environ, "TMPDIR": str(cache)})
        partial.rename(path)
    return path


def torch_files() -> list[tuple[Path, str]]:
    """The files of torch and of the libraries that it loads, each with its place below site-packages."""
    wanted = [found for found in importlib.metadata.distributions() if found.name.lower() == "torch" or found.name.lower().startswith(("nvidia", "cuda"))]
    files = {str(file): Path(str(found.locate_file(file))) for found in wanted for file in found.files or [] if ".." not in file.parts and "__pycache__" not in file.parts}
    return [(path, name) for name, path in sorted(files.items()) if path.is_file()]


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))


def _write_root(target: Path, cache: Path) -> None:
    """The whole file system as one tar: Debian, then torch, then what CANN images have where ours looks."""
    shutil.copyfile(debian(cache), target)
    site = f"./usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}/dist-packages"
    with tarfile.open(target, "a") as archive:
        for path, name in torch_files():
            archive.add(path, f"{site}/{name}", recursive=False)
        for place in ("cann", "ascend-toolkit"):
            _add(archive, f"./usr/local/Ascend/{place}/set_env.sh", SET_ENV.encode())
        _add(archive, "./usr/local/bin/npu-smi", NPU_SMI.encode(), 0o755)


def make_base(reference: str, cache: Path, scratch: Path) -> str:
    """Put the stand-in into a registry by plain HTTP and give back the reference by digest. Not compressed: that would take minutes."""
    parsed = parse_reference(reference)
    registry = Registry(parsed, plain_http=True)
    root = scratch / "root.tar"
    _write_root(root, cache)
    with root.open("rb") as file:
        layer = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [layer]},
        "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "STANDIN=1"], "Entrypoint": ["/bin/bash"], "Labels": {"standin": "true"}},
        "history": [{"created_by": "stand-in"}],
    }).encode()
    registry.upload(layer, root)
    registry.upload(sha256_of(config), config)
    manifest = {
        "schemaVersion": 2, "mediaType": MANIFEST_TYPES[0],
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sha256_of(config), "size": len(config)},
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer, "size": root.stat().st_size}],
    }
    root.unlink()
    return parsed.at(registry.put_manifest(Manifest(json.dumps(manifest).encode(), MANIFEST_TYPES[0]), parsed.tag))
