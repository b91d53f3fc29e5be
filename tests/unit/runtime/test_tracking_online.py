"""A run that is tracked online, by the real SwanLab library and a loopback stand-in of its service; and one that cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from fake_trackers import services

from nanochat.contract import RunConfig, RunFile
from nanochat.contract.events import parse_lines
from nanochat.eventlog import EventLog
from nanochat.trackers.read import from_files
from nanochat.tracking import Tracker, choose_backend

ATTEMPT = """
import sys
from pathlib import Path
from nanochat.contract import RunConfig, RunFile
from nanochat.eventlog import EventLog
from nanochat.tracking import Tracker, choose_backend
folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
run_file = RunFile(job="tiny", submission_id="0123456789abcdef", run=RunConfig(tracking={"logger": "none", "project": "demo"}))
events = EventLog(folder / "events.jsonl")
events.stage = "pretrain"
tracker = Tracker(choose_backend(run_file, folder), events, 1)
for step in range(first, last + 1):
    events.emit("step", step=step, steps=5, loss=1.0 / step)
tracker.close()
events.close()
"""


def attempt(folder: Path, first: int, last: int, env: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    ended = subprocess.run([sys.executable, "-c", ATTEMPT, str(folder), str(first), str(last)], env={**os.environ, **env}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def warnings(folder: Path) -> list[str]:
    return [event["message"] for event in parse_lines((folder / "events.jsonl").read_text().splitlines()) if event["event"] == "warning"]


def test_a_restart_goes_on_in_the_same_run_with_the_variables_that_users_know(tmp_path):
    with services() as (url, arrived):
        env = {
            "HOME": str(tmp_path), "NANOCHAT_LOGGER": "swanlab", "SWANLAB_API_KEY": "swan-key", "SWANLAB_WORKSPACE": "our-lab", "SWANLAB_API_HOST": url,
        }
        attempt(tmp_path / "job", 1, 3, env)
        attempt(tmp_path / "job", 4, 5, env)
        run = "tiny-0123456789abcdef"
        assert arrived.runs == {("swanlab", run): 2}
        assert arrived.curve("swanlab", run, "pretrain/loss") == pytest.approx({step: 1.0 / step for step in range(1, 6)})
        assert arrived.keys == {"swan-key"}
        assert arrived.workspaces == {"our-lab"}
        assert warnings(tmp_path / "job") == []
        assert [line for line in arrived.log if "/profile" in line], "what SwanLab knows about the machine"


@pytest.mark.parametrize("mode", ["cloud", "local"])
def test_without_key_or_dashboard_the_numbers_go_to_files_and_the_warning_says_how_to_send_them(mode, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SWANLAB_API_KEY", raising=False)
    monkeypatch.setitem(sys.modules, "swanboard", None)
    events = EventLog(tmp_path / "events.jsonl")
    events.stage = "pretrain"
    run_file = RunFile(job="tiny", submission_id="0123456789abcdef", run=RunConfig(tracking={"logger": "swanlab", "mode": mode}))
    tracker = Tracker(choose_backend(run_file, tmp_path, {}), events, every_steps=1)
    for step in range(1, 6):
        events.emit("step", step=step, steps=5, loss=1.0 / step)
    tracker.close()
    events.close()
    said = warnings(tmp_path)
    assert len(said) == 1
    assert "nanochat-npu tracking sync tiny" in said[0]
    assert from_files(tmp_path / "tracking").curve("pretrain", "loss") == [(step, 1.0 / step) for step in range(1, 6)]
