"""``python -m nanochat tracking sync``: upload the runs that a job's tracker wrote to files."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nanochat.contract import ExitCode, RunFile, layout
from nanochat.errors import TrainerError
from nanochat.trackers.sync import Target, run_id, sync

__all__ = ["main"]


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m nanochat tracking", description="Upload the runs that a tracker wrote to files.")
    actions = parser.add_subparsers(dest="action", required=True)
    action = actions.add_parser("sync", help="upload what has not been uploaded yet")
    action.add_argument("--job-dir", type=Path, required=True, help="folder of the job: run.json, and the runs in tracking/")
    action.add_argument("--workspace", help="SwanLab's workspace or W&B's entity; default: the spec's")
    action.add_argument("--project", help="default: the spec's")
    action.add_argument("--again", action="store_true", help="also runs that are noted as uploaded")
    action.add_argument("--timeout-s", type=float, default=1800.0, help="how long one run may take (default: %(default)s)")
    return parser.parse_args(argv)


def _target(arguments: argparse.Namespace) -> Target:
    """Ids and names as the run itself had them; without a run.json the trackers' own."""
    try:
        run_file = RunFile.model_validate_json(layout.run_file(arguments.job_dir).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Target("", arguments.workspace, arguments.project, arguments.timeout_s)
    tracking = run_file.run.tracking
    return Target(run_id(run_file), arguments.workspace or tracking.workspace, arguments.project or tracking.project, arguments.timeout_s)


def main(argv: Sequence[str] = ()) -> int:
    """Upload and say what was done; gives back the exit code."""
    arguments = _arguments(argv)
    try:
        outcome = sync(arguments.job_dir / "tracking", _target(arguments), again=arguments.again, say=lambda line: print(line, flush=True))
    except TrainerError as error:
        print(f"tracking sync: {error}", file=sys.stderr)
        return int(error.code)
    except OSError as error:  # the folder cannot be read, or what was sent cannot be noted there: it is sent again next time
        print(f"tracking sync: {error.filename2 or error.filename}: {error.strerror}", file=sys.stderr)
        return int(ExitCode.BAD_CONFIG)
    except KeyboardInterrupt:
        print("tracking sync: stopped; what was uploaded stays noted", file=sys.stderr)
        return 130
    print(_said(outcome.sent, outcome.kept, outcome.empty))
    return int(ExitCode.DONE)


def _said(sent: list[str], kept: list[str], empty: list[str]) -> str:
    if not sent and kept:
        return f"nothing to do: {len(kept)} of {len(kept) + len(empty)} uploaded before (--again sends them once more)"
    parts = [f"{len(sent)} uploaded", *([f"{len(kept)} uploaded before"] if kept else []), *([f"{len(empty)} without records"] if empty else [])]
    return ", ".join(parts)
