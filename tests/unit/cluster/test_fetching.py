"""Which files of an earlier fetch are taken for those on the volume."""

from pathlib import Path
from typing import cast

import pytest

from nanochat_npu.cluster.fetching import bring, for_report, for_tracking
from nanochat_npu.cluster.files import Entry, Remote


class Volume:
    """A job's folder whose files a test names, with their times."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, float]] = {}
        self.fetched: list[str] = []

    def entries(self, path: str, *, recursive: bool = False) -> list[Entry]:
        """Everything."""
        assert (path, recursive) == (".", True)
        return [Entry(name, "file", len(text), mtime_s) for name, (text, mtime_s) in self.files.items()]

    def fetch(self, path: str, target: Path) -> int:
        """As the real one, without a cluster."""
        self.fetched.append(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.write_text(self.files[path][0])


@pytest.fixture
def volume() -> Volume:
    return Volume()


def brought(volume: Volume, folder: Path) -> dict[str, str]:
    volume.fetched.clear()
    bring(cast("Remote", volume), folder, for_report)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_has_not_changed_is_not_sent_again(volume: Volume, tmp_path: Path) -> None:
    volume.files = {"run.json": ("{}", 1000.123456), "attempts/0/events.jsonl": ("one", 1001.0)}
    brought(volume, tmp_path)
    volume.files["attempts/0/events.jsonl"] = ("one two", 1002.0)
    assert brought(volume, tmp_path)["attempts/0/events.jsonl"] == "one two"
    assert volume.fetched == ["attempts/0/events.jsonl"]


@pytest.mark.parametrize("mtime_s", [900.0, 2000.0], ids=["older", "newer"])
def test_a_file_of_the_same_size_and_another_time_is_another_file(volume: Volume, tmp_path: Path, mtime_s: float) -> None:
    """Another cluster's job of this name; or a clock here that is ahead of the volume's."""
    volume.files = {"results/eval-sft.json": ("{1}", 1000.0)}
    brought(volume, tmp_path)
    volume.files = {"results/eval-sft.json": ("{2}", mtime_s)}
    assert brought(volume, tmp_path) == {"results/eval-sft.json": "{2}"}


def test_files_of_an_earlier_run_do_not_get_into_the_report_and_others_stay(volume: Volume, tmp_path: Path) -> None:
    volume.files = {f"attempts/{n}/events.jsonl": ("first run", 1000.0) for n in range(3)}
    brought(volume, tmp_path)
    (tmp_path / "report.html").write_text("ours")
    (tmp_path / "tracking").mkdir()
    (tmp_path / "tracking" / "synced.json").write_text("{}")
    volume.files = {"attempts/0/events.jsonl": ("second run", 2000.0)}
    assert brought(volume, tmp_path) == {"attempts/0/events.jsonl": "second run", "report.html": "ours", "tracking/synced.json": "{}"}
    assert sorted(path.name for path in (tmp_path / "attempts").iterdir()) == ["0"]
    bring(cast("Remote", volume), tmp_path, for_tracking)
    assert (tmp_path / "tracking" / "synced.json").exists()
