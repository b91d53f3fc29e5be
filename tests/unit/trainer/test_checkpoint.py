"""Checkpoints on one rank: what is kept, what is taken, and that nothing good is ever given up for something worse."""

import io
import json
import shutil
from pathlib import Path

import pytest
import torch

from nanochat.checkpoint import Checkpoints, Snapshot
from nanochat.checkpoint_files import Torn, load_weights, read_manifest, steps_of
from nanochat.contract import CheckpointConfig, ModelConfig, ModelShape, layout
from nanochat.errors import Diverged
from nanochat.eventlog import EventLog
from nanochat.files import sha256_of
from nanochat.model import GPT
from nanochat.optim import LearningRates, MuonAdamW, build_optimizer
from nanochat.peers import Peers

SHAPE = ModelShape.of(ModelConfig(depth=2, aspect_ratio=16, head_dim=16, sequence_len=8, window_pattern="L"), 70)


class Job:
    """A model with its checkpoints in a folder."""

    def __init__(self, folder: Path, keep_last: int = 2) -> None:
        self.folder, self.told = folder, io.StringIO()
        self.model = GPT(SHAPE)
        self.model.init_weights(1)
        self.optimizer: MuonAdamW = build_optimizer(self.model, LearningRates())
        config = CheckpointConfig(keep_last=keep_last, every_minutes=None)
        self.checkpoints = Checkpoints(folder, "pretrain", Peers(), EventLog(None, stream=self.told), config)

    def save(self, *steps: int) -> None:
        for step in steps:
            with torch.no_grad():
                self.model.smear_lambda.fill_(step)
            self.checkpoints.save(Snapshot(step, self.model.state_dict(), self.optimizer, {"step": step}, {}))

    def restore(self, step: int | None = None) -> int | None:
        manifest = self.checkpoints.restore(self.optimizer, self.model.load_state_dict, step=step)
        return None if manifest is None else manifest.step

    def steps(self) -> list[int]:
        return steps_of(self.folder, "pretrain")

    def damage(self, *steps: int, name: str = "model.pt") -> None:
        for step in steps:
            path = layout.checkpoint_dir(self.folder, "pretrain", step) / name
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 0xFF
            path.write_bytes(content)


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.save(1, 2, 3, 4)
    assert job.steps() == [4, 3]


@pytest.mark.parametrize("keep_last", [1, 2])
def test_a_torn_checkpoint_of_a_later_step_does_not_crowd_out_the_good_ones(tmp_path: Path, keep_last: int) -> None:
    """After a damaged one the run goes on from an earlier step: what it then writes is the newest, whatever the number says."""
    job = Job(tmp_path, keep_last)
    job.save(4, 8)
    if keep_last == 1:
        job.save(4)
    job.damage(8)
    assert job.restore() == 4
    job.save(5, 6, 7)
    assert job.steps() == [8, 7, 6][: keep_last + 1]
    assert Job(tmp_path).restore() == 7


def test_the_best_is_kept_and_a_mark_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for step, value in ((1, 2.0), (2, 3.0), (3, 4.0), (4, 5.0)):
        job.save(step)
        job.checkpoints.mark_best(step, value)
    assert job.steps() == [4, 3, 1] and job.checkpoints.best() == (1, 2.0)
    mark = job.checkpoints.folder / "best.json"
    mark.unlink()
    mark.mkdir()
    job.save(5)
    job.checkpoints.mark_best(5, 1.0)
    assert "best_not_marked" in job.told.getvalue()
    assert job.restore() == 5


def test_a_run_that_starts_anew_does_not_lose_its_checkpoints_to_those_of_the_run_before(tmp_path: Path) -> None:
    Job(tmp_path).save(50, 100)
    job = Job(tmp_path)
    job.save(1, 2, 3)
    assert job.steps() == [100, 50, 3, 2]


def test_a_torn_checkpoint_of_an_earlier_step_is_not_counted_among_those_that_are_kept(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.save(1, 2)
    (layout.checkpoint_dir(tmp_path, "pretrain", 2) / "manifest.json").unlink()
    job.save(3)
    assert [step for step in job.steps() if step != 2] == [3, 1], "two whole ones"


@pytest.mark.parametrize("name", ["model.pt", "rank00000.pt"])
def test_the_newest_complete_one_is_taken(tmp_path: Path, name: str) -> None:
    job = Job(tmp_path)
    job.save(1, 2)
    job.damage(2, name=name)
    assert job.restore() == 1
    assert "step_000002 is not used" in job.told.getvalue() and name in job.told.getvalue()
    assert job.model.smear_lambda.item() == 1.0


def test_when_none_can_be_used_the_run_does_not_quietly_begin_anew(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.save(1, 2)
    job.damage(1, 2)
    with pytest.raises(Torn, match=r"none of the 2 checkpoints.*step_000002: model\.pt is damaged.*run\.resume: never"):
        job.restore()
    assert job.steps() == [2, 1]


def test_the_one_that_was_asked_for_is_refused_by_name(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.save(1, 2)
    job.damage(1)
    with pytest.raises(Torn, match=r"step_000001: model\.pt is damaged"):
        job.restore(step=1)
    assert job.restore(step=7) is None
    assert Job(tmp_path / "empty").restore() is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", '{"files": []}', '"text"', '{"v": "x"}', "\udcff"])
def test_a_manifest_that_is_none_is_a_torn_checkpoint(tmp_path: Path, content: str) -> None:
    job = Job(tmp_path)
    job.save(1, 2)
    path = layout.checkpoint_dir(tmp_path, "pretrain", 2) / "manifest.json"
    whole = json.loads(path.read_text())
    text = json.dumps({**whole, **json.loads(content)}) if content.startswith('{"') else content
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert job.restore() == 1


def test_a_checkpoint_of_unknown_origin_runs_nothing(tmp_path: Path) -> None:
    """Its manifest fits its files, and its weights are a pickle that would write a file."""
    job = Job(tmp_path)
    job.save(1)
    folder = layout.checkpoint_dir(tmp_path, "pretrain", 1)
    planted = tmp_path / "planted"
    torch.save({"w": _Runs(planted)}, folder / "model.pt")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["model.pt"] = {"bytes": (folder / "model.pt").stat().st_size, "sha256": sha256_of(folder / "model.pt")}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(Torn, match=r"model\.pt holds more than tensors"):
        load_weights(read_manifest(folder))
    with pytest.raises(Torn, match=r"model\.pt holds more than tensors"):
        job.restore()
    assert not planted.exists()


class _Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def test_a_folder_that_lacks_a_file_is_torn(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.save(1, 2)
    (layout.checkpoint_dir(tmp_path, "pretrain", 2) / "rank00000.pt").unlink()
    assert job.restore() == 1


def test_what_is_left_of_a_killed_save_is_neither_taken_nor_in_the_way(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.save(1)
    whole = layout.checkpoint_dir(tmp_path, "pretrain", 1)
    shutil.copytree(whole, whole.with_name("step_000002.partial"))
    assert job.restore() == 1
    job.save(2)
    assert job.restore() == 2
    assert sorted(path.name for path in whole.parent.iterdir()) == ["step_000001", "step_000002"]


def test_what_killed_saves_of_other_steps_left_goes_with_the_next_one(tmp_path: Path) -> None:
    """Saving by the clock hardly ever meets the same step again: each kill would cost the room of a checkpoint for ever."""
    job = Job(tmp_path)
    job.save(1)
    whole = layout.checkpoint_dir(tmp_path, "pretrain", 1)
    for left in ("step_000002.partial", "step_000003.partial", "step_000001.stale"):
        shutil.copytree(whole, whole.with_name(left))
    job.save(4)
    assert sorted(path.name for path in whole.parent.iterdir()) == ["step_000001", "step_000004"]


@pytest.mark.parametrize("pieces", [None, [], {"rank00000.pt": None}, {"rank00000.pt": {"x": 5}}, {"rank00000.pt": {"x": [1, 2, 3]}}])
def test_a_manifest_with_unreadable_pieces_is_a_torn_checkpoint(tmp_path: Path, pieces: object) -> None:
    job = Job(tmp_path)
    job.save(1, 2)
    path = layout.checkpoint_dir(tmp_path, "pretrain", 2) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pieces": pieces}))
    assert job.restore() == 1
    assert "step_000002 is not used" in job.told.getvalue()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_never_saved_over_good_ones(tmp_path: Path, value: float) -> None:
    job = Job(tmp_path, keep_last=1)
    job.save(1)
    with torch.no_grad():
        job.model.lm_head.weight[3, 2] = value
    with pytest.raises(Diverged, match=r"lm_head\.weight.*step 2"):
        job.checkpoints.save(Snapshot(2, job.model.state_dict(), job.optimizer, {"step": 2}, {}))
    assert job.steps() == [1]
    assert job.restore() == 1
