"""Uploads runs that a tracker wrote to files: each by the tracker's own program, in a process of its own.

What was uploaded is noted in ``synced.json`` beside the runs, with its size: a run that has grown since is sent again, which
both trackers take (SwanLab leaves out steps that it has, W&B lines). Nothing is ever deleted here.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanochat.contract import RunFile
from nanochat.errors import BadConfig, BadData, NotReady
from nanochat.files import write_atomic
from nanochat.trackers.read import library, require_key
from nanochat.trackers.runs import OfflineRun, Tracker, find_runs, records

__all__ = ["SYNCED", "Target", "pending", "run_id", "sync"]

SYNCED = "synced.json"
REACH_S = 10.0
HOSTS = {Tracker.SWANLAB: ("SWANLAB_API_HOST", "https://api.swanlab.cn"), Tracker.WANDB: ("WANDB_BASE_URL", "https://api.wandb.ai")}
"""Variable that names a server of one's own, and the public one (swanlab 0.10, wandb 0.31)."""
SWANLAB_SYNC = (
    "import json, os, sys, swanlab\n"
    "swanlab.sync(sys.argv[1], settings=swanlab.Settings.model_validate({'interactive': False, **json.loads(sys.argv[2])}))\n"
)
"""What ``swanlab sync`` does; as a call, since that command has no way to be told not to ask."""


@dataclass(frozen=True)
class Target:
    """Where runs go.

    Attributes:
        run_id: Same for all attempts of a submission, so that they are one curve; "" leaves it to the tracker.
        workspace: SwanLab's workspace, W&B's entity; None is the key's own.
        project: None leaves the one that the run was begun in.
        timeout_s: How long one run may take.
    """

    run_id: str = ""
    workspace: str | None = None
    project: str | None = None
    timeout_s: float = 1800.0


@dataclass
class Outcome:
    """What became of the runs, by folder name."""

    sent: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)


def run_id(run_file: RunFile) -> str:
    """The same for all attempts of a submission, so that a restart goes on in the same curve; at most 64 characters."""
    return f"{run_file.job}-{run_file.submission_id}"[:64]


def pending(folder: Path, *, again: bool = False) -> tuple[list[OfflineRun], Outcome]:
    """Runs that are to be sent, oldest first, and those that are not.

    Raises:
        BadData: The folder is missing, or holds no run.
    """
    if not folder.is_dir():
        raise BadData("nothing was tracked here", where=str(folder), hint="set run.tracking.logger and run.tracking.mode: offline in the spec")
    runs = find_runs(folder)
    if not runs:
        raise BadData("no run of SwanLab or Weights & Biases below it", where=str(folder), hint="run.tracking.mode: offline writes them")
    known, outcome, wanted = _noted(folder), Outcome(), []
    for run in runs:
        name = run.folder.name
        if not again and (_went_online(run) or known.get(name, {}).get("bytes") == run.size_bytes):
            outcome.kept.append(name)
        elif next(records(run), None) is None:
            outcome.empty.append(name)
        else:
            wanted.append(run)
    return wanted, outcome


def sync(folder: Path, target: Target, *, again: bool = False, say: Callable[[str], None] = print, environ: Mapping[str, str] | None = None) -> Outcome:
    """Upload what has not been uploaded yet.

    Raises:
        BadData: The folder is missing, or holds no run.
        BadConfig: The key is missing.
        UsageError: The tracker's library is missing.
        NotReady: The tracker cannot be reached, or did not take a run; those before it are noted and stay so.
    """
    wanted, outcome = pending(folder, again=again)
    env = dict(os.environ if environ is None else environ)
    for tracker in sorted({run.tracker for run in wanted}):
        library(tracker, str(tracker))
        require_key(tracker)
        _reach(tracker, env)
    for run in wanted:
        say(f"{run.folder.name} ({run.size_bytes:,} bytes)")
        size = run.size_bytes  # before: a run that is still being written is sent again next time
        _send(run, target, env)
        outcome.sent.append(run.folder.name)
        write_atomic(folder / SYNCED, json.dumps({**_noted(folder), run.folder.name: {"bytes": size, "at": round(time.time())}}, indent=1) + "\n")
    return outcome


def _went_online(run: OfflineRun) -> bool:
    """True for a run that W&B sent while it was written. SwanLab's folders do not tell, and it leaves out what it has."""
    return run.tracker is Tracker.WANDB and not run.folder.name.startswith("offline-")


def _noted(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / SYNCED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)} if isinstance(found, dict) else {}


def _reach(tracker: Tracker, env: Mapping[str, str]) -> None:
    """Ask for the server's first page, through the proxies that the environment names: their libraries would try for minutes."""
    variable, default = HOSTS[tracker]
    address = env.get(variable) or default
    address = address if "://" in address else f"https://{address}"
    if not address.startswith(("https://", "http://")):
        raise BadConfig("not an address of a web server", where=variable)
    try:
        urllib.request.urlopen(address, timeout=REACH_S).close()  # noqa: S310 - the scheme was checked above
    except urllib.error.HTTPError:
        return  # it answers
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise NotReady(
            f"{tracker} cannot be reached: {reason}", where=address,
            hint=f"nothing is lost, the runs stay here; try again later, or set {variable} to a server of your own",
        ) from error


def _send(run: OfflineRun, target: Target, env: dict[str, str]) -> None:
    command = _swanlab(run, target) if run.tracker is Tracker.SWANLAB else _wandb(run, target)
    try:
        with tempfile.TemporaryDirectory(prefix="nanochat-sync-") as scratch:  # W&B leaves a folder of logs where it runs
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, errors="replace", timeout=target.timeout_s, stdin=subprocess.DEVNULL, check=False, cwd=scratch,
            )
    except subprocess.TimeoutExpired as error:
        raise NotReady(f"not uploaded within {target.timeout_s:.0f} s", where=run.folder.name, hint="nothing is lost; try again later") from error
    printed = done.stdout + done.stderr
    # SwanLab ends with 0 even where its last word was a failure; W&B leaves a mark beside the file when all has arrived.
    marked = run.tracker is Tracker.SWANLAB or run.file.with_name(run.file.name + ".synced").exists()
    if done.returncode != 0 or not marked or "sync finish failed" in printed.lower():
        raise NotReady(f"{run.tracker} did not take it: {_last(printed)}", where=run.folder.name, hint="nothing is lost; the run stays here")


def _swanlab(run: OfflineRun, target: Target) -> list[str]:
    settings: dict[str, Any] = {"run": {"id": target.run_id}} if target.run_id else {}
    project = {key: value for key, value in (("workspace", target.workspace), ("name", target.project)) if value}
    return [sys.executable, "-P", "-c", SWANLAB_SYNC, str(run.folder.absolute()), json.dumps({**settings, **({"project": project} if project else {})})]


def _wandb(run: OfflineRun, target: Target) -> list[str]:
    # The id is in the file. A mark of an upload that is no longer whole would make W&B skip it.
    options: Sequence[str] = [*(["--entity", target.workspace] if target.workspace else []), *(["--project", target.project] if target.project else [])]
    return [sys.executable, "-P", "-m", "wandb", "sync", "--yes", "--include-online", "--include-synced", *options, str(run.folder.absolute())]


def _last(printed: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it gave no reason"
