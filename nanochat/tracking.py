"""Experiment trackers: SwanLab or Weights & Biases get some of the events, from a thread of their own.

Training never waits for a tracker and never fails with it: events go into a bounded queue, the import, the login and
every call happen in the thread, and whatever goes wrong there becomes one warning event.
"""

import importlib.util
import os
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from nanochat.contract import RunFile
from nanochat.contract.events import EventKind, measured_in
from nanochat.errors import BadConfig
from nanochat.eventlog import EventLog
from nanochat.report.collect import STEP_METRICS
from nanochat.trackers.runs import Tracker as Kind
from nanochat.trackers.runs import find_runs, records
from nanochat.trackers.sync import run_id

__all__ = ["ENV_LOGGER", "Backend", "Tracker", "choose_backend"]

ENV_LOGGER = "NANOCHAT_LOGGER"
"""swanlab, wandb or none; goes before the spec, as users of the published recipes know it."""
QUEUE_LENGTH = 1000
CLOSE_WITHIN_S = 15.0
"""A tracker that has not sent everything by then is left behind; the events file has it all."""


class Backend(Protocol):
    """A tracker. Called from one thread."""

    def open(self) -> str | None:
        """Import, log in, begin a run; gives back what a person should know about how, if anything."""

    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Send values of one step."""

    def close(self) -> None:
        """Send the rest and end the run."""


LATER = "its numbers go to files, send them later: nanochat-npu tracking sync {job}"


class SwanLab:
    """swanlab.cn, its self-hosted server, its dashboard on this computer, or files that ``tracking sync`` sends later.

    SwanLab itself measures the machine (CPU, memory, and NPUs through npu-smi) while a run is begun online; in a run that it
    resumes it does not (swanlab 0.10, ``sdk/cmd/init.py``).
    """

    def __init__(self, run_file: RunFile, folder: Path) -> None:
        self._run_file, self._folder = run_file, folder
        self._module: Any = None

    def open(self) -> str | None:
        """Begin, or go on with, the run of this submission; in files where the cloud or the dashboard is missing."""
        import swanlab

        self._folder.mkdir(parents=True, exist_ok=True)
        mode, note = self._run_file.run.tracking.mode, None
        if mode == "cloud":
            try:
                self._begin(swanlab, "online", id=run_id(self._run_file), resume="allow")
            except Exception as error:  # no key, no network, refused: training goes on, and so does tracking
                note = f"{type(error).__name__}: {error}; {LATER.format(job=self._run_file.job)}"
        elif mode == "local" and importlib.util.find_spec("swanboard") is None:
            note = f"its dashboard is not installed (pip install 'swanlab[dashboard]'); {LATER.format(job=self._run_file.job)}"
        elif mode == "local":
            self._begin(swanlab, "local")
        if note or mode == "offline":
            self._begin(swanlab, "offline")
        self._module = swanlab
        return note

    def _begin(self, swanlab: Any, mode: str, **more: Any) -> None:
        tracking = self._run_file.run.tracking
        swanlab.init(
            mode=mode, project=tracking.project, name=self._run_file.job, workspace=tracking.workspace or os.environ.get("SWANLAB_WORKSPACE"),
            log_dir=str(self._folder), config=self._run_file.run.model_dump(mode="json"),
            # Our stdout carries the events, and nobody can answer a prompt here.
            settings=swanlab.Settings(interactive=False, terminal={"proxy_type": "none"}, probe={"requirements": False}), **more,
        )

    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Values under ``stage/name``."""
        self._module.log({f"{stage}/{name}": value for name, value in values.items()}, step=step)

    def close(self) -> None:
        """End the run."""
        self._module.finish()


class WandB:
    """wandb.ai, a server of one's own, or files that ``tracking sync`` sends later."""

    def __init__(self, run_file: RunFile, folder: Path) -> None:
        self._run_file, self._folder = run_file, folder
        self._run: Any = None
        self._row: int | None = None

    def open(self) -> str | None:
        """Begin, or go on with, the run of this submission; in files where the cloud is missing."""
        import wandb

        self._folder.mkdir(parents=True, exist_ok=True)
        note = None
        online = self._run_file.run.tracking.mode == "cloud"
        if online:
            try:
                self._begin(wandb, "online")
            except Exception as error:  # as above
                online, note = False, f"{type(error).__name__}: {error}; {LATER.format(job=self._run_file.job)}"
                wandb.teardown()  # its service still holds the run's id
        if not online:
            self._row = self._rows_so_far()
            self._begin(wandb, "offline")
        self._run.define_metric("*", step_metric="step")  # each stage counts its steps anew
        return note

    def _begin(self, wandb: Any, mode: str) -> None:
        tracking = self._run_file.run.tracking
        self._run = wandb.init(
            mode=mode, project=tracking.project, entity=tracking.workspace, name=self._run_file.job, id=run_id(self._run_file), resume="allow",
            dir=str(self._folder), config=self._run_file.run.model_dump(mode="json"), settings=wandb.Settings(console="off", silent=True),
        )

    def _rows_so_far(self) -> int:
        """Rows of earlier attempts in files: W&B counts a run's rows, and would put a later attempt's over an earlier one's."""
        from wandb.proto.wandb_internal_pb2 import Record

        return sum(
            Record.FromString(raw).HasField("history")
            for run in find_runs(self._folder) if run.tracker is Kind.WANDB and run.file.stem == f"run-{run_id(self._run_file)}"
            for raw in records(run)
        )

    def log(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Values under ``stage/name``."""
        row = {"step": step, **{f"{stage}/{name}": value for name, value in values.items()}}
        if self._row is None:
            self._run.log(row)
        else:
            self._run.log(row, step=self._row)
            self._row += 1

    def close(self) -> None:
        """End the run."""
        self._run.finish()


def choose_backend(run_file: RunFile, job_dir: Path, env: Mapping[str, str] = os.environ) -> Backend | None:
    """The tracker that environment or run config name; None for none.

    Raises:
        BadConfig: The name is not known.
    """
    name = env.get(ENV_LOGGER) or run_file.run.tracking.logger
    known: dict[str, type[SwanLab] | type[WandB]] = {"swanlab": SwanLab, "wandb": WandB}
    if name == "none":
        return None
    if name not in known:
        raise BadConfig(f"no tracker {name!r}", where=ENV_LOGGER, hint="one of swanlab, wandb, none")
    return known[name](run_file, job_dir / "tracking")


class Tracker:
    """Feeds a backend from the events of a run.

    Args:
        backend: Where to.
        events: Where from, and where a warning goes.
        every_steps: Steps between points.
    """

    def __init__(self, backend: Backend, events: EventLog, every_steps: int = 10) -> None:
        self._backend, self._events, self._every = backend, events, every_steps
        self._queue: queue.Queue[tuple[str, int, dict[str, float]] | None] = queue.Queue(QUEUE_LENGTH)
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._warned = False
        events.listen(self._on_event)
        self._thread.start()

    def close(self) -> None:
        """Send what is left, for a limited time."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(CLOSE_WITHIN_S)
        if self._thread.is_alive():
            self._warn("did not finish in time; the events file has everything")

    def _on_event(self, kind: EventKind, stage: str, fields: dict[str, Any]) -> None:
        values: dict[str, float] = {}
        if kind == "step" and (fields["step"] % self._every == 0 or fields["step"] == fields["steps"]):
            values = {name: float(fields[name]) for name in (*STEP_METRICS, "tokens") if fields.get(name) is not None}
        elif kind == "eval":
            values, stage = {str(fields["name"]): float(fields["value"])}, measured_in(stage, fields)
        if values:
            self._put(stage, int(fields["step"]), values)

    def _put(self, stage: str, step: int, values: dict[str, float]) -> None:
        try:
            self._queue.put_nowait((stage, step, values))
        except queue.Full:
            self._warn("does not keep up; points are left out")

    def _work(self) -> None:
        try:
            if note := self._backend.open():
                self._warn(note)
            while (item := self._queue.get()) is not None:
                self._backend.log(*item)
            self._backend.close()
        except Exception as error:  # the boundary to other people's code: nothing in it may stop training
            self._warn(f"{type(error).__name__}: {error}")
            self._drain()

    def _drain(self) -> None:
        while self._queue.get() is not None:
            continue

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            self._events.warn("tracker_failed", f"{type(self._backend).__name__}: {message}; training goes on")
