"""``report``, ``report --export --from`` and ``tracking sync`` as a person types them, on a job in a state folder of its own."""

import csv
import json
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from fake_trackers import services

from nanochat.contract import RunConfig, RunFile, events, layout
from nanochat.report import png
from nanochat.tracking import choose_backend
from nanochat_npu.main import main

PNG = b"\x89PNG\r\n\x1a\n"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return int(left.value.code or 0)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job with events and a SwanLab run of the same values."""
    monkeypatch.setenv("NANOCHAT_NPU_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "state" / "jobs" / "tiny"
    path = layout.events_file(folder, 0)
    path.parent.mkdir(parents=True)
    run_file = RunFile(job="tiny", submission_id="0123456789abcdef", run=RunConfig(tracking={"logger": "swanlab", "mode": "offline", "project": "demo"}))
    (folder / "run.json").write_text(run_file.model_dump_json())
    backend = choose_backend(run_file, folder, {})
    assert backend is not None
    backend.open()
    lines = []
    for step in range(1, 6):
        values = {"loss": 4.0 / step, "loss_ema": 5.0 / step, "lr_frac": 1.0, "tokens_per_s": 20000.0 + step}
        lines.append(events.encode("step", stage="pretrain", t=float(step), attempt=0, fields={"step": step, "steps": 5, **values}))
        backend.log("pretrain", step, values)
    backend.close()
    path.write_text("".join(lines))
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_events_and_tracker_give_the_same_files_with_the_same_names(job, tmp_path, capfd):
    assert run("report", "tiny", "--export", "--to", str(tmp_path / "a")) == 0
    assert run("report", "tiny", "--export", "--from", "swanlab", "--to", str(tmp_path / "b")) == 0
    assert run("report", "--export", "--from", str(job / "tracking"), "--to", str(tmp_path / "c")) == 0
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert {"pretrain.csv", "pretrain-loss.svg", "pretrain-loss.png", "pretrain-throughput.png"} <= set(names)
    for folder in "bc":
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == names
        assert rows(tmp_path / folder / "pretrain.csv") == rows(tmp_path / "a" / "pretrain.csv")
        for name in names:
            if name.endswith(".svg"):
                assert ElementTree.parse(tmp_path / folder / name).getroot().tag.endswith("svg")
                assert (tmp_path / folder / name).read_bytes() == (tmp_path / "a" / name).read_bytes()
            elif name.endswith(".png"):
                assert (tmp_path / folder / name).read_bytes().startswith(PNG)
    assert str(tmp_path / "b" / "pretrain.csv") in capfd.readouterr().out


def test_without_matplotlib_there_are_no_png_and_it_is_said(job, tmp_path, monkeypatch, capsys):
    from nanochat.report.command import main as export

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert png.drawer() is None
    assert export(["--job-dir", str(job), "--export", "--to", str(tmp_path / "a")]) == 0
    assert not list((tmp_path / "a").glob("*.png"))
    assert list((tmp_path / "a").glob("*.svg"))
    assert "nanochat-npu[plot]" in capsys.readouterr().err


def test_the_report_of_a_job_is_two_files_in_its_folder(job, capfd):
    assert run("report", "tiny") == 0
    assert (job / "report.html").read_text().startswith("<!doctype html>")
    assert "nanochat-npu" in (job / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("report",), 2, "a job is missing"),
        (("report", "tiny", "--from", "swanlab"), 2, "add --export"),
        (("report", "nobody"), 6, "nobody"),
        (("report", "tiny", "--export", "--from", "wandb"), 7, "no runs of wandb"),
        (("report", "--export", "--from", "/nowhere/at/all"), 7, "no such folder"),
        (("report", "--export", "--from", "swanlab:me/demo"), 7, "not a run in a cloud"),
        (("report", "--export", "--from", "swanlab:me/demo/r1"), 7, "SWANLAB_API_KEY"),
        (("tracking", "sync", "nobody"), 6, "nobody"),
        (("tracking", "sync", "tiny", "--timeout", "soon"), 2, "--timeout"),
        (("tracking", "sync", "tiny"), 7, "SWANLAB_API_KEY"),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_nothing(arguments, code, said, job, tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("SWANLAB_API_KEY", raising=False)
    before = sorted(tmp_path.rglob("*"))
    assert run(*arguments) == code
    err = capfd.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before


def test_tracking_sync_uploads_the_jobs_run(job, monkeypatch, capfd):
    with services() as (url, arrived):
        monkeypatch.setenv("SWANLAB_API_KEY", "swan-key")
        monkeypatch.setenv("SWANLAB_API_HOST", url)
        assert run("tracking", "sync", "tiny", "--workspace", "our-lab") == 0
    assert arrived.curve("swanlab", "tiny-0123456789abcdef", "pretrain/loss") == pytest.approx({step: 4.0 / step for step in range(1, 6)})
    assert arrived.workspaces == {"our-lab"}
    assert "1 uploaded" in capfd.readouterr().out
    assert json.loads((job / "tracking" / "synced.json").read_text())
    assert os.environ["SWANLAB_API_KEY"] not in (job / "tracking" / "synced.json").read_text()
