"""The state of a job, on what real Volcano was seen to do, and on objects of which any part is missing."""

import copy
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import SCENARIOS, moments

from nanochat_npu import marks, partial
from nanochat_npu.backends import JobState, JobView
from nanochat_npu.errors import JobUnschedulable
from nanochat_npu.follow import POLL_S, Options, PlainDisplay, follow
from nanochat_npu.job_state import PHASES, JobObjects, attempt_of, job_view, owned_pods, stuck_pods


def states(scenario: str, intent: str | None = None) -> list[JobState]:
    """The states that a watching client would print, without repeats."""
    seen = []
    for _t, objects in moments(scenario):
        if objects.job is None:
            continue
        if intent:
            objects.job.setdefault("metadata", {}).setdefault("annotations", {})[marks.ANNOTATION_INTENT] = intent
        seen.append(job_view(objects).state)
    return [state for state, _group in itertools.groupby(seen)]


def last(scenario: str) -> JobView:
    """The job at the end of a scenario."""
    return job_view([objects for _t, objects in moments(scenario) if objects.job is not None][-1])


P, R, RS, SUS, OK, BAD, GONE = (
    JobState.PENDING, JobState.RUNNING, JobState.RESTARTING, JobState.SUSPENDED, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED,
)


@pytest.mark.parametrize(("scenario", "expected"), [
    ("success", [P, R, OK]),
    ("restart_once", [P, R, RS, R, OK]),
    ("fatal_exit", [P, R, BAD]),
    ("always_fails_1", [P, R, RS, BAD]),
    ("always_fails_3", [P, R, RS, R, RS, R, RS, BAD]),
    ("pod_deleted", [P, R, RS, R]),
    ("node_not_ready", [P, R, RS, R]),
    ("dead_node_stuck", [P, R, RS, R]),
    ("suspend_resume", [P, R, SUS, RS, R]),
    ("suspend_resume_maxretry_1", [P, R, SUS, RS, BAD]),
    ("too_big", [P]),
    ("wrong_selector", [P]),
    ("missing_claim", [P]),
    ("queue_capability", [P]),
    ("image_pull", [P]),
    ("name_digit", [P]),
    ("ttl", [P, R, OK]),
])
def test_states_that_a_watcher_sees(scenario: str, expected: list[JobState]) -> None:
    assert states(scenario) == expected


def test_abort_that_we_asked_for_as_a_cancel_is_a_cancel() -> None:
    objects = next(o for _t, o in moments("suspend_resume") if o.job and o.job.get("status", {}).get("state", {}).get("phase") == "Aborted")
    objects.job["metadata"]["annotations"] = {marks.ANNOTATION_INTENT: "cancel", marks.ANNOTATION_INTENT_BY: "li at noon"}  # type: ignore[index]
    view = job_view(objects)
    assert (view.state, view.reason) == (GONE, "asked for by li at noon")


def test_terminated_by_our_cancel_is_not_a_failure_and_terminated_by_an_exit_code_is() -> None:
    assert states("fatal_exit", intent="cancel")[-1] is GONE
    assert last("fatal_exit").state is BAD


def test_the_first_failing_worker_gives_the_exit_code() -> None:
    view = last("fatal_exit")
    assert view.exit_code == 78
    assert "worker 0 left with exit code 78" in view.reason


def test_a_peer_that_was_stopped_is_never_named_as_the_first_to_fail() -> None:
    def pod(index: int, code: int, second: int) -> dict[str, Any]:
        ended = {"exitCode": code, "finishedAt": f"2026-11-30T01:00:{second:02d}Z"}
        return {
            "metadata": {"name": f"t-worker-{index}", "labels": {"volcano.sh/task-index": str(index)}},
            "status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]},
        }
    view = job_view(JobObjects({"status": {"state": {"phase": "Failed"}}}, None, [pod(0, 82, 1), pod(1, 65, 2), pod(2, 137, 0)]))
    assert view.exit_code == 65


def test_completed_with_a_failed_worker_is_not_called_a_success() -> None:
    pod = {"metadata": {"name": "t-worker-1"}, "status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 65}}}]}}
    assert job_view(JobObjects({"status": {"state": {"phase": "Completed"}}}, None, [pod])).state is BAD


def test_an_evicted_pod_has_no_exit_code_of_our_invention() -> None:
    pod = {"metadata": {"name": "t-worker-1"}, "status": {"phase": "Failed", "reason": "Evicted"}}
    view = job_view(JobObjects({"status": {"state": {"phase": "Failed"}}}, None, [pod]))
    assert (view.exit_code, view.reason) == (None, "worker 1 was lost: Evicted")


@pytest.mark.parametrize(("scenario", "attempt"), [("success", 0), ("restart_once", 1), ("always_fails_1", 0), ("always_fails_3", 2)])
def test_attempt_counts_starts_and_not_decisions_to_restart(scenario: str, attempt: int) -> None:
    assert last(scenario).attempt == attempt


@pytest.mark.parametrize(("scenario", "words"), [
    ("too_big", "resource in cluster is overused: overused huawei.com/Ascend910"),
    ("queue_capability", "queue resource quota insufficient: insufficient huawei.com/Ascend910"),
    ("wrong_selector", "4 node(s) didn't match Pod's node affinity/selector"),
    ("missing_claim", 'persistentvolumeclaim "nope" not found'),
    ("image_pull", "containers are being started"),
])
def test_the_reason_for_waiting_is_the_cause_and_not_the_gang(scenario: str, words: str) -> None:
    reason = last(scenario).reason
    assert words in reason
    assert "gang" not in reason


@pytest.mark.parametrize("where", ["initContainerStatuses", "containerStatuses"])
def test_a_container_that_cannot_start_is_named_with_its_reason(where: str) -> None:
    pod = {"metadata": {"name": "t-worker-3"}, "spec": {"nodeName": "n"}, "status": {"phase": "Pending", where: [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}}
    view = job_view(JobObjects({"status": {"state": {"phase": "Pending"}}}, None, [pod]))
    assert view.reason == "t-worker-3 cannot start: ImagePullBackOff"


def test_pods_of_an_earlier_job_of_the_same_name_do_not_count() -> None:
    old = {"metadata": {"name": "t-worker-0", "ownerReferences": [{"kind": "Job", "uid": "old"}]}}
    new = {"metadata": {"name": "t-worker-1", "ownerReferences": [{"kind": "Job", "uid": "new"}]}}
    job = {"metadata": {"uid": "new"}}
    assert owned_pods(JobObjects(job, None, [old, new])) == [new]


def test_a_dead_node_is_named_once_its_pod_is_a_minute_over_its_grace_period() -> None:
    found = next(o for _t, o in moments("dead_node_stuck") if any("deletionTimestamp" in p["metadata"] for p in o.pods))
    pod = next(p for p in found.pods if "deletionTimestamp" in p["metadata"])
    due = partial.when(pod, "metadata", "deletionTimestamp").timestamp()  # type: ignore[union-attr]
    early = JobObjects(found.job, found.podgroup, found.pods, found.events, due + 59)
    late = JobObjects(found.job, found.podgroup, found.pods, found.events, due + 61)
    assert stuck_pods(early) == []
    assert "npu-000" in job_view(late).reason
    assert job_view(late).state is R


def test_every_phase_has_a_state_and_an_unknown_one_is_shown_raw() -> None:
    for phase in ("", *PHASES):
        assert job_view(JobObjects({"status": {"state": {"phase": phase}}})).state is not JobState.UNKNOWN
    view = job_view(JobObjects({"status": {"state": {"phase": "Dreaming"}}}))
    assert (view.state, view.phase) == (JobState.UNKNOWN, "Dreaming")
    assert "Dreaming" in view.reason


def test_a_job_that_is_gone_is_unknown() -> None:
    assert job_view(JobObjects(None)).state is JobState.UNKNOWN


def test_a_job_that_was_deleted_is_cancelled_unless_it_had_ended() -> None:
    job = {"metadata": {"deletionTimestamp": "2026-11-30T00:00:00Z"}, "status": {"state": {"phase": "Running"}}}
    assert job_view(JobObjects(job)).state is R
    assert job_view(JobObjects(job, gone=True)).state is GONE
    job["status"]["state"]["phase"] = "Completed"
    assert job_view(JobObjects(job, gone=True)).state is OK


@pytest.mark.parametrize("phase", ["Aborting", "Terminating"])
def test_a_job_that_writes_its_last_checkpoint_has_not_ended_yet(phase: str) -> None:
    job = {"metadata": {"annotations": {marks.ANNOTATION_INTENT: "cancel"}}, "status": {"state": {"phase": phase}}}
    view = job_view(JobObjects(job))
    assert (view.state, view.reason) == (R, "the workers are writing a checkpoint and stopping")


_ALL = [objects for scenario in SCENARIOS for _t, objects in list(moments(scenario))[::7]]


def _mutilate(value: Any, choose: Any) -> Any:
    """The same object with keys dropped, lists cut and values of another type in random places."""
    fate = choose(0, 40)
    if fate == 0:
        return choose.junk()
    if isinstance(value, dict):
        return {key: _mutilate(inner, choose) for key, inner in value.items() if choose(0, 12)}
    if isinstance(value, list):
        return [_mutilate(inner, choose) for inner in value if choose(0, 12)]
    return value


class _Choose:
    def __init__(self, data: st.DataObject) -> None:
        self.random = data.draw(st.randoms(use_true_random=False))

    def __call__(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def junk(self) -> Any:
        return self.random.choice([None, "", "x", 0, -1, True, [], {}, [None], [[]], {"": None}, 3.5, "2026-13-99T99:99:99Z", "9" * 400])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_missing_or_wrong_part_ever_raises(data: st.DataObject) -> None:
    objects = data.draw(st.sampled_from(_ALL))
    broken = _mutilate(copy.deepcopy([objects.job, objects.podgroup, objects.pods, objects.events]), _Choose(data))
    job, podgroup, pods, events = (list(broken) + [None] * 4)[:4] if isinstance(broken, list) else (None, None, None, None)
    as_list = [entry for entry in pods if isinstance(entry, dict)] if isinstance(pods, list) else []
    seen = [entry for entry in events if isinstance(entry, dict)] if isinstance(events, list) else []
    view = job_view(JobObjects(
        job if isinstance(job, dict) else None, podgroup if isinstance(podgroup, dict) else None, as_list, seen, 1.8e9,
    ))
    assert view.state in JobState
    json.dumps(view.extra)


def test_attempt_of_nothing_is_zero() -> None:
    assert attempt_of(None) == 0
    assert attempt_of({"status": {"retryCount": "2"}, "spec": {}}) == 2


def test_what_does_not_heal_is_told_to_whoever_follows() -> None:
    pod = {"metadata": {"name": "t-worker-0"}, "status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "InvalidImageName"}}}]}}
    assert job_view(JobObjects({"status": {"state": {"phase": "Pending"}}}, None, [pod])).extra["blocked"] == "t-worker-0 cannot start: InvalidImageName"
    assert "DNS-1035" in last("name_digit").extra["blocked"]
    assert last("too_big").extra["blocked"] == ""  # a full cluster heals


class Stuck:
    """A backend whose one job cannot start."""

    name, interrupt = "volcano", "detach"

    def get(self, name: str) -> JobView:
        """The job, still stuck."""
        return JobView(name, "volcano", JobState.PENDING, extra={"blocked": "t-worker-0 cannot start: ErrImagePull"})

    def events(self, name: str) -> "Stuck":
        """No events."""
        return self

    def poll(self) -> list[dict[str, Any]]:
        """None."""
        return []

    def close(self) -> None:
        """Nothing to let go of."""


def test_following_ends_where_waiting_helps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLL_S, "volcano", 0.0)
    with pytest.raises(JobUnschedulable, match="ErrImagePull"):
        follow(Stuck(), "t", PlainDisplay(), Options(blocked_after_s=0.0))  # type: ignore[arg-type]
