"""Jobs side by side: facts in columns, and only the settings in which they differ."""

import xml.etree.ElementTree as ElementTree
from typing import Any

from nanochat_npu import tables
from nanochat_npu.backends import JobState, JobView
from nanochat_npu.comparing import compare, differing_settings
from nanochat_npu.comparing_page import curves_of, page, picture
from nanochat_npu.progress import Progress
from nanochat_npu.views import Snapshot


def shot(name: str, *events: dict[str, Any]) -> Snapshot:
    progress = Progress()
    progress.feed_all(events)
    return Snapshot(JobView(name, "local", JobState.SUCCEEDED, attempt=0, world_size=4), progress, 100.0)


def step(number: int, loss: float) -> dict[str, Any]:
    return {"event": "step", "stage": "pretrain", "step": number, "steps": 2, "loss": loss, "tokens": number * 100, "dt_s": 1.0, "tokens_per_s": 100.0}


def test_only_settings_that_differ_are_listed() -> None:
    old = {"model": {"depth": 12, "head_dim": 64}, "stages": ["pretrain"], "seed": 1}
    new = {"model": {"depth": 20, "head_dim": 64}, "stages": ["pretrain", "sft"]}
    assert differing_settings([old, new]) == {"model.depth": [12, 20], "stages": [["pretrain"], ["pretrain", "sft"]], "seed": [1, None]}


def test_what_jobs_reached_stands_side_by_side() -> None:
    sums = {"event": "eval", "stage": "eval", "name": "sums", "value": 0.9, "correct": 90, "total": 100}
    sections = compare([shot("a", step(1, 4.0), step(2, 2.0), sums), shot("b", step(1, 3.0))], [{"seed": 1}, {"seed": 2}])
    text = tables.to_text(sections)
    assert [line.split() for line in text.splitlines() if "pretrain: loss" in line] == [["pretrain:", "loss", "2.0000", "3.0000"]]
    assert [line.split() for line in text.splitlines() if line.strip().startswith("sums")] == [["sums", "90", "of", "100", "-"]]
    assert [line.split() for line in text.splitlines() if line.strip().startswith("seed")] == [["seed", "1", "2"]]
    assert "a  █▁" in text


def test_jobs_of_which_nothing_is_known_can_be_compared() -> None:
    answer = tables.to_json(compare([shot("a"), shot("b")], [{}, {}]))
    assert [job["job"] for job in answer["jobs"]] == ["a", "b"]
    assert answer["settings"] == {}


def test_curves_of_all_jobs_lie_over_each_other_in_one_picture() -> None:
    shots = [shot("a", step(1, 4.0), step(2, 2.0)), shot("b", step(1, 3.0), step(2, 1.0)), shot("quiet")]
    curves = curves_of(shots)
    assert curves == {"pretrain": {"a": [(1.0, 4.0), (2.0, 2.0)], "b": [(1.0, 3.0), (2.0, 1.0)]}}
    root = ElementTree.fromstring(picture(curves, ["a", "b", "quiet"]))
    lines = [element for element in root.iter() if element.tag.endswith("polyline")]
    assert len({line.get("stroke") for line in lines}) == 2
    assert lines[0].get("points", "").split()[0].endswith(",30.0")  # the highest loss is at the top


def test_a_page_escapes_what_jobs_are_called() -> None:
    shots = [shot("<a>", step(1, 4.0)), shot("b")]
    text = page(compare(shots, [{"note": "<script>"}, {}]), curves_of(shots), ["<a>", "b"])
    assert "<script>" not in text
    assert "&lt;a&gt;" in text


def test_jobs_without_curves_have_a_picture_that_says_so() -> None:
    assert "no curves yet" in picture(curves_of([shot("a")]), ["a"])


def test_long_curves_are_thinned_to_their_ends() -> None:
    points = curves_of([shot("a", *(step(i, 1.0 / i) for i in range(1, 5001)))])["pretrain"]["a"]
    assert len(points) <= 602
    assert points[0][0] == 1.0
    assert points[-1][0] == 5000.0
