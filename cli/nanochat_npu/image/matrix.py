"""Which torch_npu goes with which torch, CANN and Python, as data, and what is wrong with a set that cannot work.

The table is ``matrix.csv`` beside this file: one published build a row, with source and date. A spec or site file may add
sets that are known to work (``image.known_sets``). Pure but for reading that file.

Why this matters: the post suffix of torch_npu is its CANN pairing (2.7.1 is for 8.3.RC1 and fails on CANN 9 with an undefined
symbol, triton-ascend#328), torch must be exactly the one it was built for, and a wrong set shows only when the job runs.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Literal

from nanochat_npu.i18n import _

__all__ = ["KNOWN_CANN", "OUR_PYTHON", "OUR_TORCH", "Build", "Finding", "ImageSet", "Kind", "check", "nearest", "published", "valid_sets"]

TABLE = Path(__file__).parent / "matrix.csv"
OUR_TORCH = (2, 9)
"""Oldest torch that the trainer runs on."""
OUR_PYTHON = (3, 11)
"""Oldest Python that nanochat runs on."""
KNOWN_CANN: dict[str, tuple[str, ...]] = {
    "8.1.RC1": (), "8.2.RC1": (), "8.2.RC2": (), "8.3.RC1": (), "8.3.RC2": (),
    "8.5.0": ("3.10", "3.11"), "8.5.1": ("3.10", "3.11", "3.12"), "8.5.2": (),
    "9.0.0": ("3.10", "3.11", "3.12"), "9.0.1": ("3.10", "3.11", "3.12"), "9.1.0": ("3.12",),
}
"""CANN releases with an image, and the Pythons that are known to have one (Ascend/cann-container-image c5a67b3a; 9.1.0: in use by
hiyouga/LLaMA-Factory and vllm-project/vllm-ascend). Empty: an image exists, its Pythons were not read."""
CHIPS = frozenset({"910b", "a3"})
ARCHITECTURES = frozenset({"arm64", "amd64"})
"""torch_npu has wheels, and CANN images, for both."""


class Kind(StrEnum):
    """What a row of the table rests on."""

    OFFICIAL = "official"
    """In the vendor's compatibility table."""
    README = "readme"
    """Named in a wheel's README only, and not on the package index."""
    UNLISTED = "unlisted"
    """On the package index, but its CANN pairing is not published."""


@dataclass(frozen=True)
class Build:
    """One published torch_npu."""

    torch_npu: str
    torch: str
    cann: str
    also_cann: tuple[str, ...]
    release: str
    python: tuple[str, ...]
    kind: Kind
    driver_seen: str
    note: str
    source: str
    read_on: str


@dataclass(frozen=True, order=True)
class ImageSet:
    """The versions of one image."""

    torch_npu: str
    cann: str
    python: str
    chip: str = "910b"
    arch: str = "arm64"

    def __str__(self) -> str:
        return f"torch_npu {self.torch_npu}, CANN {self.cann}, Python {self.python}"


@dataclass(frozen=True)
class Finding:
    """One thing about a set: `refuse` cannot work, `warn` may."""

    level: Literal["refuse", "warn"]
    field: str
    message: str


@cache
def published() -> tuple[Build, ...]:
    """The built-in table, newest first."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple(
        Build(
            row["torch_npu"], row["torch"], row["cann"], _split(row["also_cann"]), row["release"], _split(row["python"]), Kind(row["kind"]),
            row["driver_seen"], row["note"], row["source"], row["read_on"],
        )
        for row in rows
    )


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(";") if part)


def _version(text: str) -> tuple[int, ...]:
    """Numbers of a dotted version, for comparing; RC and post count as numbers too."""
    cleaned = text.upper().replace("RC", "").replace("POST", "")
    return tuple(int(part) for part in cleaned.split(".") if part.isdigit())


def _fits(build: Build, cann: str) -> bool:
    """True if the vendor says that this build works with this CANN: its own pairing, or a line that the release notes name."""
    if build.cann and build.cann.upper() == cann.upper():
        return True
    return any(cann.upper().startswith(line.upper().removesuffix("X")) and "RC" not in cann.upper() for line in build.also_cann)


def check(wanted: ImageSet, known: Iterable[ImageSet] = (), *, own_base: bool = False) -> list[Finding]:
    """Everything to be said about a set; an empty list where the vendor's table has it.

    Args:
        wanted: The set.
        known: Further sets that somebody knows to work; they are not held against the table.
        own_base: True if the base image is not the official one, so that its existence is not our business.
    """
    findings = list(_ours(wanted))
    if not any(replace(entry, chip=wanted.chip, arch=wanted.arch) == wanted for entry in known):
        build = next((row for row in published() if row.torch_npu == wanted.torch_npu), None)
        findings += _against_build(wanted, build) if build else [Finding("refuse", "torch_npu", _("torch_npu {version} is not known").format(version=wanted.torch_npu))]
    if not own_base:
        findings += _against_base(wanted)
    return findings


def _ours(wanted: ImageSet) -> Iterator[Finding]:
    torch = _version(wanted.torch_npu)[:2]
    if torch < OUR_TORCH:
        yield Finding("refuse", "torch_npu", _("nanochat needs torch {minimum} or newer, torch_npu {version} is for {torch}").format(
            minimum=".".join(map(str, OUR_TORCH)), version=wanted.torch_npu, torch=".".join(map(str, torch))))
    if _version(wanted.python) < OUR_PYTHON:
        yield Finding("refuse", "python", _("nanochat needs Python {minimum} or newer").format(minimum=".".join(map(str, OUR_PYTHON))))
    if wanted.chip not in CHIPS:
        yield Finding("refuse", "chip", _("there is no torch_npu training image for chip {chip}").format(chip=wanted.chip))
    if wanted.arch not in ARCHITECTURES:
        yield Finding("refuse", "arch", _("torch_npu has no wheels for {arch}").format(arch=wanted.arch))


def _against_build(wanted: ImageSet, build: Build) -> Iterator[Finding]:
    if build.kind is Kind.README:
        yield Finding("refuse", "torch_npu", _("torch_npu {version} was announced, but is not on the package index").format(version=build.torch_npu))
    elif build.kind is Kind.UNLISTED:
        yield Finding("warn", "torch_npu", _("torch_npu {version}: {note}").format(version=build.torch_npu, note=build.note))
    elif not _fits(build, wanted.cann):
        yield Finding("refuse", "cann", _("torch_npu {version} is built for CANN {cann}, not {wanted}").format(version=build.torch_npu, cann=build.cann, wanted=wanted.cann))
    if build.python and wanted.python not in build.python:
        yield Finding("refuse", "python", _("torch_npu {version} has wheels for Python {found}, not {wanted}").format(
            version=build.torch_npu, found=", ".join(build.python), wanted=wanted.python))
    elif wanted.python == "3.14":
        yield Finding("warn", "python", _("the vendor's documents disagree about Python 3.14"))


def _against_base(wanted: ImageSet) -> Iterator[Finding]:
    pythons = next((found for cann, found in KNOWN_CANN.items() if cann.upper() == wanted.cann.upper()), None)
    if pythons is None:
        yield Finding("refuse", "cann", _("there is no official image of CANN {cann} that we know of").format(cann=wanted.cann))
    elif pythons and wanted.python not in pythons:
        yield Finding("warn", "python", _("the official image of CANN {cann} is known with Python {found}, not with {wanted}").format(
            cann=wanted.cann, found=", ".join(pythons), wanted=wanted.python))


@cache
def valid_sets() -> tuple[ImageSet, ...]:
    """Every set of official builds and known images that needs neither refusal nor warning, best first (newest torch_npu, its own CANN)."""
    found = [
        ImageSet(build.torch_npu, cann, python)
        for build in published() if build.kind is Kind.OFFICIAL
        for cann, pythons in KNOWN_CANN.items()
        for python in pythons or build.python
    ]
    good = [entry for entry in found if not check(entry)]
    pairing = {build.torch_npu: build.cann for build in published()}
    return tuple(sorted(good, key=lambda entry: (_version(entry.torch_npu), entry.cann == pairing[entry.torch_npu], _version(entry.cann), _version(entry.python)), reverse=True))


def nearest(wanted: ImageSet, count: int = 3) -> Sequence[ImageSet]:
    """Valid sets that differ least from the one that was wanted: fewest fields first, then the closest versions."""

    def distance(entry: ImageSet) -> tuple[int, int, int, int]:
        changed = sum((entry.torch_npu != wanted.torch_npu, entry.cann.upper() != wanted.cann.upper(), entry.python != wanted.python))
        return changed, _gap(entry.torch_npu, wanted.torch_npu), _gap(entry.cann, wanted.cann), _gap(entry.python, wanted.python)

    best = sorted(valid_sets(), key=distance)[:count]
    return [replace(entry, chip=wanted.chip if wanted.chip in CHIPS else "910b", arch=wanted.arch if wanted.arch in ARCHITECTURES else "arm64") for entry in best]


def _gap(one: str, other: str) -> int:
    """How far two versions are apart: the first numbers weigh most."""
    left, right = _version(one), _version(other)
    width = max(len(left), len(right))
    pairs = zip(left + (0,) * (width - len(left)), right + (0,) * (width - len(right)), strict=True)
    return sum(abs(a - b) * 100 ** (width - place) for place, (a, b) in enumerate(pairs))
