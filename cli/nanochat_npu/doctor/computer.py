"""Checks of this computer: the installation, the trainer, the state folder, an image builder. Imports nothing heavy."""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from nanochat_npu import __version__
from nanochat_npu.doctor.checks import Check, Level
from nanochat_npu.i18n import _
from nanochat_npu.jobs import home_dir

__all__ = ["check_computer"]

MIN_FREE_BYTES = 2 * 10**9
BUILDERS = ("docker", "buildah", "podman", "nerdctl")
TRAIN_MODULES = ("torch", "numpy", "tiktoken", "rustbpe", "pyarrow")


def check_computer() -> list[Check]:
    """All checks of this computer."""
    return [_python(), _trainer_package(), _extra(), _home(), _space(), _builder(), _npus()]


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", _("Python"), Level.OK, _("{version}, nanochat-npu {ours}").format(version=version, ours=__version__))


def _trainer_package() -> Check:
    """The import name ``nanochat`` is upstream's too; a checkout of it on the path would be run instead of ours."""
    title = _("import package nanochat")
    spec = importlib.util.find_spec("nanochat")
    ours = importlib.util.find_spec("nanochat_npu")
    if spec is None or spec.origin is None or ours is None:
        return Check("nanochat", title, Level.FAILED, _("is not installed"), _("install nanochat-npu again"))
    folder = Path(spec.origin).parent
    if not (folder / "contract" / "__init__.py").exists():
        return Check("nanochat", title, Level.FAILED, _("{folder} is another project of that name").format(folder=folder), _("take it off PYTHONPATH, or use an environment of its own"))
    owners = importlib.metadata.packages_distributions().get("nanochat", [])
    others = [name for name in owners if name != "nanochat-npu"]
    if others:
        return Check("nanochat", title, Level.WARNING, _("also installed by {names}").format(names=", ".join(others)), _("use an environment of its own"))
    return Check("nanochat", title, Level.OK, str(folder))


def _extra() -> Check:
    title = _("trainer (extra train)")
    missing = [name for name in TRAIN_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        return Check("train", title, Level.WARNING, _("missing: {names}; jobs cannot run on this computer").format(names=", ".join(missing)), "pip install 'nanochat-npu[train]'")
    return Check("train", title, Level.OK, _("torch {version}").format(version=importlib.metadata.version("torch")))


def _home() -> Check:
    title, home = _("state folder"), home_dir()
    probe = home
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    if not os.access(probe, os.W_OK | os.X_OK):
        return Check("home", title, Level.FAILED, _("{folder} cannot be written").format(folder=home), _("set NANOCHAT_NPU_HOME to a folder of yours"))
    return Check("home", title, Level.OK, str(home))


def _space() -> Check:
    title, probe = _("free disk"), home_dir()
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    free = shutil.disk_usage(probe).free
    level = Level.OK if free >= MIN_FREE_BYTES else Level.WARNING
    return Check("disk", title, level, _("{gb:.1f} GB at {folder}").format(gb=free / 1e9, folder=probe), "" if level is Level.OK else _("make room: checkpoints need it"))


def _builder() -> Check:
    title = _("image builder")
    found = [name for name in BUILDERS if shutil.which(name)]
    if found:
        return Check("builder", title, Level.OK, ", ".join(found))
    return Check("builder", title, Level.WARNING, _("none of {names} is installed").format(names=", ".join(BUILDERS)), _("build --builder layers needs none; or use image.ref, or image.code: configmap"))


def _npus() -> Check:
    title = _("NPUs of this computer")
    devices = sorted(Path("/dev").glob("davinci[0-9]*"))
    if devices:
        return Check("npus", title, Level.OK, _("{n} NPUs; backend local uses them").format(n=len(devices)))
    return Check("npus", title, Level.OK, _("none; backend local runs on CPU"))
