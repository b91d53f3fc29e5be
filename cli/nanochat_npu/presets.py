"""Presets: specs that come with the program, by name."""

from pathlib import Path

__all__ = ["preset_names", "preset_path", "preset_summary"]

_FOLDER = Path(__file__).parent / "templates" / "specs"
_ORDER = ("tiny", "laptop", "d12", "d20", "d26", "d32-2x8")


def preset_names() -> list[str]:
    """Names of all presets, from the smallest to the largest."""
    names = {path.stem for path in _FOLDER.glob("*.yaml")}
    return [*(name for name in _ORDER if name in names), *sorted(names.difference(_ORDER))]


def preset_path(name: str) -> Path | None:
    """File of a preset, or None where there is none of that name."""
    return _FOLDER / f"{name}.yaml" if name in preset_names() else None


def preset_summary(name: str) -> str:
    """First comment line of a preset: what it is, in a sentence."""
    path = preset_path(name)
    if path is None:
        return ""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ")
