"""P1: the same 82 jobs that real Volcano once judged, judged again by this plane's dry run, and by our own rules."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from plane import Plane, PlaneError

from nanochat_npu.volcano_rules import check_job, read_refusal

pytestmark = pytest.mark.cluster

VERDICTS = [json.loads(line) for line in (Path(__file__).parents[1] / "recordings" / "verdicts.jsonl").read_text().splitlines()]
QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"


@pytest.fixture(scope="module")
def queues(plane: Plane) -> None:
    """A closed queue, and one with a child."""
    for name, spec in {"closed": {"weight": 1}, "parent": {"weight": 1}, "child": {"weight": 1, "parent": "parent"}}.items():
        plane.request("POST", QUEUES, {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": spec})
        plane.wait("queue", lambda name=name: plane.request("GET", f"{QUEUES}/{name}").get("status", {}).get("state") == "Open")
    plane.request("PATCH", f"{QUEUES}/closed/status", {"status": {"state": "Closed"}}, "application/merge-patch+json")


def ask(plane: Plane, job: dict[str, Any], *, strict: bool) -> str:
    """The text of the refusal, "" where the job is accepted."""
    query = "?dryRun=All" + ("&fieldValidation=Strict" if strict else "")
    try:
        plane.request("POST", f"/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs{query}", job)
    except PlaneError as error:
        match = re.search(r": \d+ (\{.*)", str(error), re.DOTALL)
        body = match[1] if match else ""
        try:
            return str(json.loads(body)["message"])
        except ValueError:
            found = re.search(r'"message":"((?:[^"\\]|\\.)*)', body)
            return found[1] if found else body
    return ""


@pytest.mark.parametrize("row", [row for row in VERDICTS if isinstance(row["job"], dict)], ids=lambda row: row["id"])
@pytest.mark.usefixtures("queues")
def test_dry_run_says_what_real_volcano_said(plane: Plane, row: dict[str, Any]) -> None:
    text = ask(plane, row["job"], strict=row["strict"])
    assert (text == "") is row["accepted"], text
    if not row["accepted"]:
        assert {problem.rule for problem in read_refusal(text)} == {problem.rule for problem in read_refusal(row["message"])}


def test_annotations_of_300_kb_are_refused(plane: Plane) -> None:
    """The one job (V35) that the recording does not hold, for its size."""
    job = json.loads(json.dumps(VERDICTS[0]["job"]))
    job["metadata"]["annotations"] = {"a": "x" * 300_000}
    assert [problem.rule for problem in read_refusal(ask(plane, job, strict=True))] == ["V35"]


def test_a_name_that_only_the_controller_would_stumble_over_is_refused_by_us_and_accepted_by_the_server(plane: Plane) -> None:
    row = next(row for row in VERDICTS if row["id"] == "V03")
    assert ask(plane, row["job"], strict=True) == ""
    assert [problem.rule for problem in check_job(row["job"])] == ["V03"]
