"""The programs of the test control plane: built once from pinned Go modules, kept in a cache folder.

``python tests/cluster/programs.py`` builds and says where they are. The cache is keyed by the hash of the go.sum files, so a
change of versions builds anew and an old build stays usable on another branch. ``NANOCHAT_PLANE_CACHE`` names another folder.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "gomods"
KUBERNETES = "v1.35.4"
GO_NEEDED = (1, 26)
_VERSION_FLAGS = " ".join(
    f"-X k8s.io/component-base/version.{name}={value}"
    for name, value in (("gitVersion", KUBERNETES), ("gitMajor", "1"), ("gitMinor", KUBERNETES.split(".")[1]), ("gitCommit", "0"))
)
"""Without them the server reports v0.0.0, and clients that look at the version believe it."""
PROGRAMS = {
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3", ""),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok", ""),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", _VERSION_FLAGS),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", _VERSION_FLAGS),
}
"""Program → folder under gomods, package, linker flags."""


class CannotBuildError(Exception):
    """The programs are not there and cannot be built; the text says what is missing."""


@dataclass(frozen=True)
class Programs:
    """Where the programs and Volcano's CRDs are."""

    folder: Path

    @property
    def crds(self) -> Path:
        """Folder of Volcano's CustomResourceDefinitions."""
        return self.folder / "crds"

    def path(self, name: str) -> Path:
        """One program."""
        return self.folder / name


def cache_folder() -> Path:
    """Folder of the build that fits this checkout, whether or not it exists."""
    root = os.environ.get("NANOCHAT_PLANE_CACHE")
    base = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nanochat-npu-plane"
    digest = hashlib.sha256()
    for file in sorted(MODULES.glob("*/go.sum")):
        digest.update(file.parent.name.encode() + file.read_bytes())
    return base / digest.hexdigest()[:16]


def ready() -> Programs | None:
    """The programs, if they have been built."""
    folder = cache_folder()
    return Programs(folder) if (folder / "complete").exists() else None


def build(say: object = sys.stderr) -> Programs:
    """The programs, built now where they have not been yet (about 8 minutes and 2 GB of memory on two idle cores).

    Raises:
        CannotBuildError: Go is missing or too old, or the modules cannot be had.
    """
    found = ready()
    if found is not None:
        return found
    go = _go()
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for name, (module, package, flags) in PROGRAMS.items():
        if (folder / name).exists():
            continue
        started = time.monotonic()
        print(f"building {name} (once; into {folder}) ...", file=say, flush=True)  # type: ignore[call-overload]
        command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {flags}".strip(), "-o", str(folder / f".{name}"), package]
        _run(command, MODULES / module)
        (folder / f".{name}").rename(folder / name)
        print(f"  {name}: {time.monotonic() - started:.0f} s", file=say, flush=True)  # type: ignore[call-overload]
    _crds(go, folder)
    (folder / "complete").touch()
    return Programs(folder)


def _crds(go: str, folder: Path) -> None:
    downloaded = json.loads(_run([go, "mod", "download", "-json", "volcano.sh/volcano"], MODULES / "volcano"))
    bases = Path(downloaded["Dir"]) / "config" / "crd" / "volcano" / "bases"
    shutil.copytree(bases, folder / "crds", dirs_exist_ok=True, copy_function=shutil.copyfile)


def _run(command: list[str], where: Path) -> str:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuildError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def _go() -> str:
    go = shutil.which("go")
    needed = ".".join(map(str, GO_NEEDED))
    if go is None:
        raise CannotBuildError(
            f"the cluster tests build a control plane once and need Go {needed} or newer, which is not on PATH "
            f"(Debian: apt-get install golang). A finished build can be named with NANOCHAT_PLANE_CACHE."
        )
    words = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip().removeprefix("go").split(".")
    if tuple(int(word) for word in words[:2]) < GO_NEEDED and "auto" not in subprocess.run([go, "env", "GOTOOLCHAIN"], capture_output=True, text=True, check=True).stdout:
        raise CannotBuildError(f"the cluster tests need Go {needed} or newer; this one is {'.'.join(words)}")
    return go


if __name__ == "__main__":
    try:
        print(build().folder)
    except CannotBuildError as error:
        sys.exit(str(error))
