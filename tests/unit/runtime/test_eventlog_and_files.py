"""Events reach file and stdout whatever happens to either; files are whole or not there."""

import io
import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanochat.contract.events import parse_lines
from nanochat.eventlog import EventLog
from nanochat.files import write_atomic, write_once


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow beyond 1,000 bytes: a real error of the operating system."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError("nobody reads")


def test_an_event_is_one_line_in_file_and_on_stdout(tmp_path, capsys):
    log = EventLog(tmp_path / "a" / "events.jsonl", rank=0, attempt=2)
    log.stage = "sft"
    log.emit("step", step=3, loss=1.5)
    log.close()
    line = (tmp_path / "a" / "events.jsonl").read_text()
    assert line == capsys.readouterr().out
    event = json.loads(line)
    assert (event["stage"], event["attempt"], event["step"], event["loss"]) == ("sft", 2, 3, 1.5)


def test_other_ranks_only_print(tmp_path, capsys):
    EventLog(None, rank=3).warn("slow", "a slow disk")
    assert json.loads(capsys.readouterr().out)["rank"] == 3


def test_a_reader_that_is_gone_does_not_stop_the_file(tmp_path):
    log = EventLog(tmp_path / "events.jsonl", stream=Broken())
    log.warn("x", "y")
    log.close()
    assert len(list(parse_lines((tmp_path / "events.jsonl").read_text().splitlines()))) == 1


def test_a_full_disk_costs_events_and_nothing_else(tmp_path, capsys, full_disk):
    log = EventLog(tmp_path / "events.jsonl")
    for step in range(100):
        log.emit("step", step=step)
    log.close()
    assert len(capsys.readouterr().out.splitlines()) == 100


def test_a_restart_appends(tmp_path):
    for _ in range(2):
        log = EventLog(tmp_path / "events.jsonl")
        log.warn("x", "y")
        log.close()
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2


def test_atomic_writing_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "deep" / "state.json"
    write_atomic(path, "old")
    write_atomic(path, "new")
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_atomic_writing_on_a_full_disk_keeps_the_old_text(tmp_path, full_disk):
    path = tmp_path / "state.json"
    write_atomic(path, "old")
    with pytest.raises(OSError, match="too large"):
        write_atomic(path, "x" * 5000)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_writing_once_keeps_the_first(tmp_path):
    path = tmp_path / "once"
    assert write_once(path, "a")
    assert not write_once(path, "b")
    assert path.read_text() == "a"
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_that_json_lacks_are_words(tmp_path):
    log = EventLog(tmp_path / "events.jsonl", stream=io.StringIO())
    log.emit("step", step=1, loss=float("nan"), deep={"x": [float("-inf")]})
    log.close()
    event = json.loads((Path(tmp_path) / "events.jsonl").read_text())
    assert (event["loss"], event["deep"]) == ("nan", {"x": ["-inf"]})
