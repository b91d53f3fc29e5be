"""Reports of whole, half and hostile job folders."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from nanochat.contract import events, layout
from nanochat.report import collect
from nanochat.report.charts import Chart, nice_ticks, render_chart, standalone, thin
from nanochat.report.command import export, main, write, write_quietly
from nanochat.report.content import headline
from nanochat.report.formats import to_csv, to_html, to_markdown


def write_events(folder: Path, attempt: int, *records: tuple[str, str, dict[str, Any]]) -> None:
    path = layout.events_file(folder, attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(events.encode(kind, stage=stage, t=1.0, attempt=attempt, fields=fields) for kind, stage, fields in records))


def step(number: int, loss: float, **more: Any) -> tuple[str, str, dict[str, Any]]:
    return "step", "pretrain", {"step": number, "loss": loss, "loss_ema": loss, "lr_frac": 1.0, "tokens_per_s": 100.0, "tokens": number * 10, **more}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "d4"
    write_events(
        folder, 0, ("eval", "pretrain", {"step": 0, "name": "bpb", "value": 3.0}), step(1, 5.0), step(2, 4.0), step(3, 99.0),
        ("warning", "pretrain", {"code": "slow", "message": "host stalls"}), ("warning", "pretrain", {"code": "slow", "message": "host stalls"}),
    )
    write_events(
        folder, 1, step(3, 3.0), step(4, 2.0), ("eval", "pretrain", {"step": 4, "name": "bpb", "value": 1.5}),
        ("eval", "eval", {"step": 4, "name": "sums", "value": 0.9, "correct": 90, "total": 100}),
        ("sample", "pretrain", {"step": 4, "prompt": "<b>", "text": "```\n<script>alert(1)</script> | x"}),
        ("stage", "pretrain", {"status": "end", "index": 0, "of": 1, "took_s": 75.0}), ("done", "eval", {"reason": "finished", "resumable": False, "step": 4}),
    )
    (folder / "run.json").write_text(json.dumps({"job": "d4", "run": {"model": {"depth": 4, "sequence_len": 512}}, "world": {"nodes": 2, "ranks_per_node": 8}}))
    (folder / "ledger.json").write_text(json.dumps({"v": 1, "attempts": [{"attempt": 0, "started": 0.0, "ended": 50.0, "code": 69, "message": "link"}, {"attempt": 1, "started": 60.0, "ended": 110.0, "code": 0}]}))
    (folder / "receipt.json").write_text(json.dumps({"origin": ["submit", "d4"], "versions": {"nanochat-npu": "0.1.0"}, "owner": "li"}))
    return folder


def test_a_step_that_was_done_again_counts_once_with_its_last_value(job: Path) -> None:
    report = collect(job)
    assert report.curve("pretrain", "loss") == [(1, 5.0), (2, 4.0), (3, 3.0), (4, 2.0)]
    assert report.tokens == 40
    assert report.wall_s == 100.0
    assert report.warnings == [("slow", "host stalls", 2)]


def test_evaluations_of_two_models_are_two_curves(tmp_path: Path) -> None:
    write_events(
        tmp_path, 0, ("eval", "eval", {"step": 150, "name": "bpb", "value": 1.5, "model": "pretrain"}),
        ("eval", "eval", {"step": 70, "name": "bpb", "value": 1.75, "model": "sft"}),
    )
    report = collect(tmp_path)
    assert (report.curve("eval-pretrain", "bpb"), report.curve("eval-sft", "bpb")) == ([(150, 1.5)], [(70, 1.75)])


class Finder(HTMLParser):
    """Tags of a page, and addresses that it would load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_is_self_contained_and_safe(job: Path) -> None:
    page = to_html(collect(job), "1.2.3")
    found = Finder(page)
    assert found.loads == []
    assert "script" not in found.tags
    assert "&lt;script&gt;alert(1)" in page
    for words in ("90 of 100", "1 min 15 s", "2 nodes × 8 ranks", "nanochat-npu submit d4", "host stalls", "69"):
        assert words in page


def test_markdown_keeps_hostile_text_in_fences_and_tables_whole(job: Path) -> None:
    text = to_markdown(collect(job), "1.2.3")
    assert "````\n```\n<script>" in text
    tables = [line for line in text.splitlines() if line.startswith("| bpb")]
    assert tables == ["| bpb | 3.0000 | 1.5000 | pretrain 4 |"]


def test_csv_has_a_line_for_each_step(job: Path) -> None:
    lines = to_csv(collect(job), "pretrain").splitlines()
    assert lines[0].split(",")[:2] == ["step", "bpb"] or "loss" in lines[0]
    assert len(lines) == 1 + 5  # steps 0 (bpb only) to 4


def test_files_are_written_and_svgs_are_well_formed(job: Path, tmp_path: Path) -> None:
    report = collect(job)
    assert [path.name for path in write(report, tmp_path / "out")] == ["report.html", "report.md"]
    written = export(report, tmp_path / "charts")
    svgs = [path for path in written if path.suffix == ".svg"]
    assert len(svgs) >= 3
    for path in svgs:
        assert ElementTree.fromstring(path.read_text()).tag.endswith("svg")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{", b"[1]", b"null", b'{"attempts": 3}', b'{"attempts": [3, null]}'])
def test_broken_files_are_passed_over(job: Path, content: bytes) -> None:
    for name in ("receipt.json", "run.json", "ledger.json"):
        (job / name).write_bytes(content)
    with layout.events_file(job, 1).open("ab") as file:
        file.write(b'{"v":1,"event":"step","st')
    page = to_html(collect(job), "1")
    assert "90 of 100" in page


def test_infinite_losses_do_not_break_the_charts(job: Path) -> None:
    write_events(job, 2, step(5, float("nan")), step(6, float("inf")), step(7, 1e308))
    assert "<svg" in to_html(collect(job), "1")


def test_an_empty_or_missing_folder_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["--job-dir", str(tmp_path / "empty")]) == 65
    assert "has not left any events" in capsys.readouterr().err
    assert main(["--job-dir", str(tmp_path / "none")]) == 65


def test_thinning_keeps_spikes_and_order() -> None:
    points = [(i, 0.0) for i in range(10_000)]
    points[5_003] = (5_003, 9.0)
    kept = thin(points)
    assert len(kept) <= 1600
    assert (5_003, 9.0) in kept
    assert kept == sorted(kept)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-5, 5), (1e-9, 2e-9), (0, 1e12), (3, 3), (float("nan"), 1)])
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert 1 <= len(ticks) <= 12
    assert all(not (low == low and high > low) or low - 1e-9 <= t <= high + abs(high) * 1e-9 for t in ticks)


def test_a_chart_without_points_is_nothing() -> None:
    assert render_chart(Chart("x", "", {"a": []})) == ""
    assert standalone(Chart("x", "", {})) == ""
    assert re.search(r"<circle", render_chart(Chart("x", "", {"a": [(1, 2.0)]})))


def test_the_report_needs_no_torch(job: Path) -> None:
    code = f"import sys; sys.modules['torch'] = None; from nanochat.__main__ import main; sys.exit(main(['report', '--job-dir', {str(job)!r}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (job / "report.html").exists()


ACCOUNTS = {
    "hours_p10": 0.02, "hours_p50": 0.025, "hours_p90": 0.05, "billed_npus": 8, "price": 3.0, "currency": "CNY", "cost_p50": 0.6,
    "estimated": {"pretrain": 50.0, "start": 5.0, "rl": 0.0}, "actual": {"pretrain": 43.3, "waiting": 7.0},
}


def test_estimate_stands_beside_what_it_came_to(job: Path) -> None:
    report = collect(job)
    report.accounts = ACCOUNTS
    text = to_markdown(report, "1")
    assert "- **estimated**: 1 min 30 s (1 min 12 s to 3 min 0 s, P10 to P90)" in text
    assert "- **actual**: 1 min 40 s, 1.11 of the estimate, inside the band" in text
    assert "- **cost**: 0.67 CNY, estimated 0.60 (8 NPUs × 1 min 40 s × 3 CNY per NPU-hour)" in text
    assert [line for line in text.splitlines() if line.startswith(("| pretrain |", "| start |", "| waiting |", "| rl |"))][-3:] == [
        "| pretrain | 50 s | 43 s |", "| start | 5.0 s | - |", "| waiting | - | 7.0 s |",
    ]
    report.accounts = {**ACCOUNTS, "hours": 1.0, "price": None}
    assert "outside the band" in to_markdown(report, "1")
    assert "**cost**" not in to_markdown(report, "1")


@pytest.mark.parametrize("broken", [{}, {"hours_p10": "soon", "estimated": [], "actual": 3, "price": True}, {"hours_p10": -1, "hours_p90": None}])
def test_accounts_that_are_missing_or_damaged_leave_the_section_out(job: Path, broken: dict[str, Any]) -> None:
    report = collect(job)
    report.accounts = broken
    assert "Time and cost" not in to_html(report, "1")


def test_versions_and_device_come_from_what_the_first_rank_wrote(job: Path) -> None:
    (job / "results").mkdir(exist_ok=True)
    (job / "results" / "runtime.json").write_text(json.dumps({"device": "Ascend 910B3", "host": "node-1", "versions": {"torch": "2.12.0", "torch_npu": "2.12.0"}}))
    text = to_markdown(collect(job), "1")
    assert "- **ran with**: torch 2.12.0, torch_npu 2.12.0" in text
    assert "- **device**: Ascend 910B3" in text


def test_the_head_of_the_page_says_how_it_ended(job: Path, tmp_path: Path) -> None:
    found = {name: (value, bad) for name, value, bad in headline(collect(job))}
    assert found["state"] == ("finished", False)
    assert found["took"] == ("1 min 40 s", False)
    assert found["last loss, pretrain"] == ("2", False)
    assert found["bits per byte, pretrain"] == ("1.5", False)
    assert found["warnings"] == ("2", True)
    failed = tmp_path / "bad"
    write_events(failed, 0, step(1, 5.0), ("error", "pretrain", {"code": 80, "message": "<i>NaN</i>", "step": 1}))
    page = to_html(collect(failed), "1")
    assert '<div class="tile bad"><b>failed (80)</b>' in page
    assert "<i>" not in page


def test_a_report_that_cannot_be_written_is_told_and_raises_nothing(job: Path) -> None:
    assert write_quietly(job) == ""
    assert (job / "report.html").exists()
    (job / "report.html").unlink()
    (job / "report.html").mkdir()
    assert "report.html" in write_quietly(job)
    assert not list(job.glob(".report*"))
