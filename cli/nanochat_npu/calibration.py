"""The store of calibrations: one JSON file for each measured run, under ``calibrations/`` in the state folder.

Files are data that people copy between computers, so they are read with suspicion: what is not a calibration is reported and
skipped, never used.
"""

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from nanochat_npu.errors import UsageError
from nanochat_npu.estimate import CHIPS, Calibration
from nanochat_npu.i18n import _
from nanochat_npu.jobs import write_json

__all__ = ["FOLDER", "load_all", "parse", "read_file", "save"]

FOLDER = "calibrations"
FORMAT = 1
_WHOLE = ("depth", "width", "device_batch", "tokens_per_step", "sequence_len", "vocab", "world_size", "nodes", "steps")
_POSITIVE = ("step_s", "mean_step_s")
_OPTIONAL = ("peak_bytes", "start_s", "eval_tokens_per_s", "save_bytes_per_s", "quick_step_s", "ended_s", "ran_s")
_FROM_ZERO = ("load_others", "end_s")
_TEXTS = ("chip", "stack", "window_pattern", "measured_on", "host")


def save(home: Path, record: Calibration) -> Path:
    """Keeps a calibration and returns its file; a newer one of the same shape replaces it."""
    # Tokens per second is for people who read the file; it follows from the steps and is not read back.
    value = {"format": FORMAT, **asdict(record), "tokens_per_s": record.tokens_per_s}
    identity = {key: value[key] for key in ("chip", "stack", "depth", "width", "device_batch", "tokens_per_step", "sequence_len", "vocab", "world_size", "nodes", "window_pattern", "host")}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    path = home / FOLDER / f"{record.chip}-d{record.depth}-{record.nodes}x{record.world_size // record.nodes}-{digest}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, value)
    return path


def parse(value: Mapping[str, Any], today: datetime.date) -> Calibration:
    """The calibration in a JSON object.

    Args:
        value: The object.
        today: What claims to be measured more than a day later is refused.

    Raises:
        ValueError: A field is missing, of another type, or impossible; the message names it.
    """
    if value.get("format") != FORMAT:
        raise ValueError(_("format {format} is not {known}").format(format=value.get("format"), known=FORMAT))
    clean: dict[str, Any] = {}
    for name in _WHOLE:
        clean[name] = _positive(value, name)
        if not isinstance(clean[name], int):
            raise ValueError(_("{field} is no whole number").format(field=name))
    for name in _POSITIVE:
        clean[name] = _positive(value, name)
    for name in _OPTIONAL:
        clean[name] = _positive(value, name) if value.get(name) is not None else None
    for name in _FROM_ZERO:
        clean[name] = None if value.get(name) is None else 0.0 if value[name] == 0 else _positive(value, name)
    for name in _TEXTS:
        if not isinstance(value.get(name), str):
            raise ValueError(_("{field} is missing or no text").format(field=name))
        clean[name] = value[name]
    if clean["chip"] not in CHIPS:
        raise ValueError(_("chip {chip} is not known").format(chip=clean["chip"]))
    if _date(clean["measured_on"]) > today + datetime.timedelta(days=1):  # tomorrow may have begun where it was measured
        raise ValueError(_("measured_on: {date} has not come yet; today is {today}").format(date=clean["measured_on"], today=today))
    versions = value.get("versions")
    clean["versions"] = {str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {}
    clean["cheap"] = value.get("cheap") is True
    drift = value.get("drift_ln_sd", 0.0)
    clean["drift_ln_sd"] = min(2.0, max(0.0, float(drift))) if isinstance(drift, (int, float)) else 0.0
    return Calibration(**{f.name: clean[f.name] for f in fields(Calibration)})


def _date(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise ValueError(_("measured_on is no date: {text}").format(text=text)) from None


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: It cannot be read, or is none; the message says which.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(error.strerror) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(_("it is not JSON")) from error
    if not isinstance(value, dict):
        raise ValueError(_("it is no JSON object"))
    return value


def _positive(value: Mapping[str, Any], name: str) -> float:
    number = value.get(name)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < 1e18:
        raise ValueError(_("{field} is missing or not above 0").format(field=name))
    return number


def read_file(path: Path) -> Calibration:
    """The calibration in a file that a person named.

    Raises:
        UsageError: It cannot be used.
    """
    try:
        return parse(_object(path), datetime.date.today())
    except ValueError as error:
        raise UsageError(_("not a calibration: {reason}").format(reason=error), where=str(path), hint=_("make one: nanochat-npu calibrate SPEC")) from error


def load_all(home: Path) -> tuple[list[Calibration], list[str]]:
    """All stored calibrations, and sentences about files that are none."""
    records, problems = [], []
    for path in sorted((home / FOLDER).glob("*.json")):
        try:
            records.append(parse(_object(path), datetime.date.today()))
        except ValueError as error:
            problems.append(_("{file} is not used: {reason}").format(file=path, reason=error))
    return records, problems
