"""All ranks run the same software and agree on the time, found out through the control store before the first collective.

Mixed versions of torch, torch_npu or CANN do not fail where they are: HCCL negotiates until its connect timeout, or one rank dies of an
undefined symbol and the others wait for it. A node gets there by a tag that moved between two pulls, or by an image that one node kept.
Clocks that are apart make budgets, logs and stalls of one node look like another's.
"""

import importlib.metadata
import os
import platform
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nanochat import __version__
from nanochat.errors import BadConfig
from nanochat.peers import Peers, name_ranks

__all__ = ["CLOCK_MAX_S", "agree", "software"]

NOT_THERE = "none"
CLOCK_MAX_S = 60.0
_INSTALL_INFO = "*-linux/ascend_toolkit_install.info"
"""Where a toolkit keeps its own version, below ASCEND_HOME_PATH."""


def software(env: Mapping[str, str] = os.environ, root: Path = Path("/")) -> dict[str, str]:
    """What this process would bring into a collective: name to version, `none` for what is not installed. Imports nothing but torch."""
    return {
        "torch": torch.__version__, "torch_npu": _installed("torch_npu"), "CANN": _cann(env, root),
        "Python": ".".join(platform.python_version_tuple()[:2]), "nanochat": __version__,
    }


def agree(peers: Peers, own: Mapping[str, str] | None = None) -> None:
    """Compare what all ranks run, and their clocks. Every rank must call it when all have started, and before it opens its device.

    Args:
        peers: All ranks.
        own: This rank's software; default: what is installed here.

    Raises:
        BadConfig: On every rank, with the same message: which ranks (and nodes) have which version, or whose clock is off.
    """
    mine: dict[str, Any] = {"software": dict(software() if own is None else own), "clock": time.time()}
    told = peers.gather(mine)
    _compare_software([one["software"] for one in told], peers.per_node)
    _compare_clocks([one["clock"] for one in told], peers.per_node)


def _compare_software(told: list[dict[str, str]], per_node: int) -> None:
    names = list(dict.fromkeys(name for versions in told for name in versions))
    found = [problem for name in names if (problem := _differences(name, [versions.get(name, NOT_THERE) for versions in told], per_node))]
    if found:
        raise BadConfig(
            f"the ranks run different software: {'; '.join(found)}", where="image",
            hint="all workers need one image: name it by digest (image.ref: ...@sha256:...), and look which image those nodes have",
        )


def _compare_clocks(told: list[float], per_node: int) -> None:
    """All ranks said the time within the second or two in which they saw that all had started."""
    usual = sorted(told)[(len(told) - 1) // 2]
    wrong = [rank for rank, clock in enumerate(told) if abs(clock - usual) > CLOCK_MAX_S]
    if wrong:
        worst = max(wrong, key=lambda rank: abs(told[rank] - usual))
        raise BadConfig(
            f"clocks are {abs(told[worst] - usual):.0f} s apart: {_on(wrong, per_node)}", where="clock",
            hint="synchronise the time of these nodes (chrony, ntp)",
        )


def _differences(name: str, versions: list[str], per_node: int) -> str:
    """Which ranks have another version than most (than rank 0, where two are equally frequent); "" where all have the same."""
    if len(set(versions)) == 1:
        return ""
    usual = max(dict.fromkeys(versions), key=versions.count)
    others = []
    for version in dict.fromkeys(versions):
        if version != usual:
            ranks = [rank for rank, value in enumerate(versions) if value == version]
            others.append(f"{version} on {_on(ranks, per_node)}")
    return f"{name} {', '.join(others)}, {usual} on the other{'s' if len(versions) > 2 else ''}"


def _on(ranks: list[int], per_node: int) -> str:
    nodes = sorted({rank // per_node for rank in ranks})
    return f"{name_ranks(ranks)} (node {', '.join(map(str, nodes[:16]))}{', …' if len(nodes) > 16 else ''})"


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return NOT_THERE


def _cann(env: Mapping[str, str], root: Path) -> str:
    """Version of the toolkit that set_env.sh named, or else the name of its folder (``cann-9.1.0``)."""
    home = env.get("ASCEND_HOME_PATH") or env.get("ASCEND_TOOLKIT_HOME")
    if not home:
        return NOT_THERE
    folder = root / home.lstrip("/")
    for info in sorted(folder.glob(_INSTALL_INFO)):
        try:
            found = re.search(r"^version=(\S+)", info.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        except OSError:
            continue
        if found:
            return found[1]
    return folder.resolve().name
