"""Local jobs with a tiny launcher: real processes, real signals, no torch."""

import json
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from nanochat_npu import processes
from nanochat_npu.backends import ENDED, JobView, Submission
from nanochat_npu.backends.local import LocalBackend
from nanochat_npu.jobs import Store
from nanochat_npu.plan import make_plan
from nanochat_npu.spec import JobSpec

LAUNCHER = Path(__file__).with_name("tiny_launcher.py")
PATIENCE_S = 30.0


def wait_until(true: Callable[[], Any], what: str) -> Any:
    """The first true value of a condition that other processes bring about; fails with `what` if they never do."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := true()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)
    return value


class Bench:
    """A state folder and short words for what tests do with it."""

    def __init__(self, home: Path) -> None:
        self.store = Store(home)

    def backend(self, **play: Any) -> LocalBackend:
        command = [sys.executable, str(LAUNCHER), json.dumps(play)]
        return LocalBackend(self.store, command=command, restart_delay_s=0.01, peer_grace_s=0.5)

    def submission(self, name: str = "job", *, rerun: bool = False, **changes: Any) -> Submission:
        spec = JobSpec.model_validate({"name": name, **changes})
        return Submission(plan=make_plan(spec, date(2026, 11, 30)), spec_text=f"name: {name}\n", rerun=rerun)

    def start(self, name: str = "job", *, spec: dict[str, Any] | None = None, **play: Any) -> LocalBackend:
        backend = self.backend(**play)
        backend.submit(self.submission(name, **(spec or {})))
        return backend

    def end(self, backend: LocalBackend, name: str = "job") -> JobView:
        """The job once it has ended."""

        def ended() -> JobView | None:
            view = backend.get(name)
            return view if view.state in ENDED else None

        return wait_until(ended, f"{name} ends")

    def ready(self, name: str = "job", *, attempt: int = 0, nodes: int = 1) -> Path:
        """Folder of the job, once all launchers of an attempt are at work."""
        job = self.store.folder(name).path
        wait_until(lambda: all((job / "attempts" / str(attempt) / f"ready{node}").exists() for node in range(nodes)), "launchers start")
        return job

    def processes(self, name: str = "job") -> list[int]:
        return processes.job_processes(self.store.folder(name).path)
