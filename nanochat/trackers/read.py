"""Curves from what a tracker keeps: its files on this computer, or its cloud through its public interface."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from nanochat.errors import BadConfig, BadData, NotReady, UsageError
from nanochat.report.collect import Report, Series
from nanochat.trackers.runs import OfflineRun, Tracker, find_runs, records

__all__ = ["from_cloud", "from_files", "library", "require_key"]

Point = tuple[str, int, float]
"""Metric as the tracker names it (``stage/name``), step, value."""
KEYS = {Tracker.SWANLAB: "SWANLAB_API_KEY", Tracker.WANDB: "WANDB_API_KEY"}
EXTRAS = {Tracker.SWANLAB: "train", Tracker.WANDB: "wandb"}


def library(tracker: Tracker, module: str) -> Any:
    """A module of a tracker's own library.

    Raises:
        UsageError: It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(f"{tracker} is not installed ({error})", hint=f"pip install 'nanochat-npu[{EXTRAS[tracker]}]'") from error


def require_key(tracker: Tracker) -> str:
    """The tracker's key from the environment.

    Raises:
        BadConfig: It is not set.
    """
    key = os.environ.get(KEYS[tracker], "").strip()
    if not key:
        raise BadConfig(f"no key for {tracker}", where=KEYS[tracker], hint=f"export {KEYS[tracker]}=... (it is read from the environment only)")
    return key


def from_files(folder: Path, tracker: Tracker | None = None) -> Report:
    """Curves of all runs at or below a folder, later ones replacing what earlier ones had of the same step.

    Raises:
        BadData: There is no such folder, or nothing in it.
        UsageError: The tracker's library is missing.
    """
    if not folder.is_dir():
        raise BadData("there is no such folder", where=str(folder))
    runs = [run for run in find_runs(folder) if tracker in (None, run.tracker)]
    if not runs:
        what = f"runs of {tracker}" if tracker else "runs of SwanLab or Weights & Biases"
        raise BadData(f"no {what} below it", where=str(folder), hint="they are written with run.tracking.mode: offline (or local)")
    if len({run.tracker for run in runs}) > 1:
        raise BadData("it holds runs of both trackers", where=str(folder), hint="say which: --from swanlab or --from wandb, or a folder further down")
    readers = {Tracker.SWANLAB: _swanlab_file, Tracker.WANDB: _wandb_file}
    report = Report(folder.name, folder)
    for run in runs:
        _take(report, readers[run.tracker](run))
    return _checked(report, str(folder))


def from_cloud(address: str) -> Report:
    """Curves of a run in a tracker's cloud: ``swanlab:WORKSPACE/PROJECT/RUN`` or ``wandb:ENTITY/PROJECT/RUN``.

    Raises:
        BadConfig: Address or key are missing or refused.
        NotReady: The tracker does not answer.
        BadData: There is no such run, or nothing in it.
        UsageError: The tracker's library is missing.
    """
    name, _colon, path = address.partition(":")
    if name not in list(Tracker) or path.count("/") != 2 or not all(path.split("/")):
        raise BadConfig("not a run in a cloud", where=address, hint="swanlab:WORKSPACE/PROJECT/RUN or wandb:ENTITY/PROJECT/RUN")
    tracker = Tracker(name)
    key = require_key(tracker)
    report = Report(path.rpartition("/")[2], Path())
    readers = {Tracker.SWANLAB: _swanlab_cloud, Tracker.WANDB: _wandb_cloud}
    try:
        _take(report, readers[tracker](path, key))
    except (UsageError, BadData):
        raise
    except Exception as error:  # the boundary to other people's code, which raises many kinds
        raise NotReady(f"{tracker} gave no answer: {type(error).__name__}: {error}", where=address, hint="check the address, the key and the network") from error
    return _checked(report, address)


def _checked(report: Report, where: str) -> Report:
    if not report.series:
        raise BadData("the run has no numbers in it", where=where)
    return report


def _take(report: Report, points: Iterator[Point]) -> None:
    for key, step, value in points:
        stage, slash, metric = key.partition("/")
        if not slash:
            stage, metric = "run", key
        report.series.setdefault((stage, metric), Series(metric, stage)).points[step] = value


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value) else None


def _swanlab_file(run: OfflineRun) -> Iterator[Point]:
    record = library(Tracker.SWANLAB, "swanlab.proto.swanlab.record.v1.record_pb2").Record()
    for raw in records(run):
        record.ParseFromString(raw)
        if record.HasField("scalar") and not record.scalar.key.startswith("__swanlab__"):  # its hardware metrics
            yield record.scalar.key, record.scalar.step, record.scalar.value.number


def _wandb_file(run: OfflineRun) -> Iterator[Point]:
    record = library(Tracker.WANDB, "wandb.proto.wandb_internal_pb2").Record()
    for raw in records(run):
        record.ParseFromString(raw)
        if record.HasField("history"):
            yield from _wandb_row({".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item})


def _wandb_row(row: dict[str, Any]) -> Iterator[Point]:
    """Points of one row: our own ``step`` where there is one (each stage counts anew), else W&B's count of rows."""
    step = _number(row.get("step", row.get("_step")))
    for key, raw in row.items():
        value = _number(raw)
        if step is not None and value is not None and key != "step" and not key.startswith("_"):
            yield key, int(step), value


def _swanlab_cloud(path: str, key: str) -> Iterator[Point]:
    """``swanlab.Api``: names of all metrics, then each at full resolution."""
    run = library(Tracker.SWANLAB, "swanlab").Api(api_key=key, host=os.environ.get("SWANLAB_API_HOST")).run(path)
    experiment = getattr(run, "data", run)
    if experiment is None or not getattr(run, "ok", True):
        raise BadData(f"SwanLab has no such run: {getattr(run, 'errmsg', '')}".rstrip(": "), where=path)
    names: Sequence[str] = [entry.key for entry in experiment.series()]
    if not names:
        return
    for curve in experiment.metrics(keys=list(names), all=True)["list"]:
        for point in curve.get("metrics", ()):
            value = _number(point.get("value", point.get("data")))
            if value is not None:
                yield curve["key"], int(point.get("step", point.get("index", 0))), value


def _wandb_cloud(path: str, key: str) -> Iterator[Point]:
    """``wandb.Api``: every row of the run's history."""
    for row in library(Tracker.WANDB, "wandb").Api(api_key=key, timeout=30).run(path).scan_history():
        yield from _wandb_row(row)
