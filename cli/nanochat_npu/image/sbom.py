"""A software bill of materials (CycloneDX 1.5, JSON) of an image: what we put in, with versions, hashes and where it came from."""

import json
import re
from typing import Any

from nanochat_npu.image.context import BuildInput
from nanochat_npu.image.describe import ImagePlan, requirements_lock

__all__ = ["bill_of_materials"]

_LOCKED = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+?))? *\\?$")


def bill_of_materials(source: BuildInput) -> str:
    """The bill as JSON text; the same input gives the same text, so it has no time and no random serial number."""
    image = source.image
    components = [_container(image), *_torch(image), *_packages(image.python), _ours(source)]
    content = source.labels["nanochat-npu/content"]
    bill = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {
            "component": {"type": "container", "bom-ref": "image", "name": source.reference.name, "version": source.reference.tag},
            "tools": {"components": [{"type": "application", "name": "nanochat-npu", "version": image.version}]},
            "properties": [{"name": "nanochat-npu:content", "value": content}, {"name": "nanochat-npu:platform", "value": image.platform}],
        },
        "components": components,
        "dependencies": [{"ref": "image", "dependsOn": [component["bom-ref"] for component in components]}],
    }
    return json.dumps(bill, indent=2, ensure_ascii=False) + "\n"


def _container(image: ImagePlan) -> dict[str, Any]:
    return {"type": "container", "bom-ref": "base", "name": image.base, "description": f"CANN {image.cann}, {image.os}"}


def _torch(image: ImagePlan) -> list[dict[str, Any]]:
    return [_package(name, version) for name, version in (text.split("==") for text in image.torch_requirements)]


def _ours(source: BuildInput) -> dict[str, Any]:
    digest = source.labels["nanochat-npu/trainer"]
    return {**_package("nanochat-npu-trainer", source.image.version), "licenses": [{"license": {"id": "MIT"}}], "properties": [{"name": "nanochat-npu:trainer", "value": digest}]}


def _package(name: str, version: str, hashes: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "library", "bom-ref": f"pkg:pypi/{name}@{version}", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
    if hashes:
        # One of these is the wheel that was installed; which one depends on architecture and Python.
        found["properties"] = [{"name": "nanochat-npu:accepted-sha256", "value": value} for value in hashes]
    return found


def _packages(python: str) -> list[dict[str, Any]]:
    """The locked packages that this Python gets."""
    found: list[dict[str, Any]] = []
    entries = re.split(r"\n(?=[A-Za-z0-9])", requirements_lock().strip())
    for entry in entries:
        head, *rest = entry.split("\n")
        locked = _LOCKED.match(head)
        if locked and _applies(locked["marker"], python):
            found.append(_package(locked["name"], locked["version"], tuple(re.findall(r"sha256:([0-9a-f]{64})", "\n".join(rest)))))
    return found


def _applies(marker: str | None, python: str) -> bool:
    """True if a lock's marker holds for this Python; markers compare python_full_version, others are about PyPy."""
    bounds = re.findall(r"python_full_version (>=|<) '([0-9.]+)'", marker or "")
    minor = tuple(map(int, python.split(".")))
    return all((minor >= tuple(map(int, value.split(".")[:2]))) == (operator == ">=") for operator, value in bounds)
