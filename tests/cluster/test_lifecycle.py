"""Jobs from submit to their end on a real API server (P2 to P5, P9, P10, P16 of the plan of cases)."""

import pytest
from cases import SUCCEED, Cluster, Seen, fails

from nanochat_npu.backends import ENDED, JobState, Outcome
from nanochat_npu.errors import JobError, JobExists, JobNotFound

pytestmark = pytest.mark.cluster


def ended(view: object) -> bool:
    """True once a job has ended."""
    return getattr(view, "state", None) in ENDED


def test_two_workers_of_eight_run_to_success(cluster: Cluster) -> None:
    sent = cluster.submit(SUCCEED)
    assert sent.outcome is Outcome.STARTED
    seen = Seen(cluster.backend).run_until(ended)
    assert seen.states[-2:] == ["RUNNING", "SUCCEEDED"]
    assert seen.states[0] in ("PENDING", "RUNNING")
    assert seen.last is not None
    assert (seen.last.phase, seen.last.exit_code, seen.last.world_size) == ("Completed", 0, 16)


def test_config_maps_belong_to_the_job_and_go_with_it(cluster: Cluster) -> None:
    cluster.submit(SUCCEED)
    uid = cluster.job()["metadata"]["uid"]
    assert [owner["uid"] for owner in cluster.get("configmaps/train-run")["metadata"]["ownerReferences"]] == [uid]
    cluster.backend.delete("train")
    assert cluster.pods() == []
    cluster.plane.wait("config map gone", lambda: "train-run" not in [m["metadata"]["name"] for m in cluster.get("configmaps")["items"]])
    with pytest.raises(JobNotFound):
        cluster.backend.get("train")


def test_a_failure_that_may_heal_starts_a_second_attempt(cluster: Cluster) -> None:
    cluster.submit(fails(69, worker=1, attempt="0"))
    seen = Seen(cluster.backend).run_until(ended)
    assert seen.states[-3:] == ["RESTARTING", "RUNNING", "SUCCEEDED"]
    assert seen.last is not None
    assert seen.last.attempt == 1
    assert cluster.job()["status"]["retryCount"] == 1


def test_a_final_exit_code_ends_the_job_without_a_retry(cluster: Cluster) -> None:
    cluster.submit(fails(78))
    seen = Seen(cluster.backend).run_until(ended)
    assert "RESTARTING" not in seen.states
    assert seen.last is not None
    assert (seen.last.state, seen.last.phase, seen.last.exit_code) == (JobState.FAILED, "Terminated", 78)
    assert "retryCount" not in cluster.job()["status"]


@pytest.mark.parametrize(("failures", "attempts"), [(0, 1), (1, 2)])
def test_always_failing_takes_exactly_the_allowed_attempts(cluster: Cluster, failures: int, attempts: int) -> None:
    cluster.submit(fails(1), retries={"failures": failures, "preemptions": 0})
    seen = Seen(cluster.backend).run_until(ended)
    assert seen.last is not None
    assert (seen.last.state, seen.last.exit_code, seen.last.attempt) == (JobState.FAILED, 1, attempts - 1)


def test_the_first_matching_policy_wins(cluster: Cluster) -> None:
    swapped = [{"event": "PodFailed", "action": "RestartJob"}, {"exitCode": 78, "action": "TerminateJob"}]
    submission = cluster.submission(fails(78, attempt="0"))
    job = dict(cluster.backend.preview(submission))
    assert job["volcano-job.yaml"].index("exitCode: 78") < job["volcano-job.yaml"].index("PodFailed")
    # The other order is refused by our rule; sent past it, real Volcano swallows the code: the job is restarted.
    body = {
        "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "swapped"},
        "spec": {
            "schedulerName": "volcano", "queue": "default", "minAvailable": 1, "maxRetry": 3, "policies": swapped, "plugins": {"env": [], "svc": []},
            "tasks": [{"name": "worker", "replicas": 1, "minAvailable": 1, "template": {
                "metadata": {"annotations": fails(78, attempt="0")},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]},
            }}],
        },
    }
    cluster.plane.request("POST", f"/apis/batch.volcano.sh/v1alpha1/namespaces/{cluster.namespace}/jobs", body)
    cluster.plane.wait("restart", lambda: cluster.job("swapped").get("status", {}).get("retryCount") == 1)


def test_the_same_submission_twice_is_one_job(cluster: Cluster) -> None:
    first = cluster.submit(SUCCEED)
    again = cluster.submit(SUCCEED)
    assert (first.outcome, again.outcome) == (Outcome.STARTED, Outcome.ATTACHED)
    assert again.job.extra["uid"] == first.job.extra["uid"]
    Seen(cluster.backend).run_until(ended)
    assert cluster.submit(SUCCEED).outcome is Outcome.ATTACHED  # it has succeeded: nothing to do


def test_another_submission_under_the_same_name_is_refused(cluster: Cluster) -> None:
    cluster.submit()
    with pytest.raises(JobExists, match="another submission has this name"):
        cluster.submit(resources={"nodes": 1})


def test_in_operator_mode_the_rank_plugin_is_added_if_this_volcano_knows_it_and_its_map_goes_with_the_job(cluster: Cluster) -> None:
    sent = cluster.submit(SUCCEED, cluster={"platform": "mindcluster"}, rank_table={"mode": "operator"})
    assert cluster.job()["spec"]["plugins"]["hcclrank"] == []
    assert any("hcclrank was added" in note for note in sent.notes)
    assert cluster.get("configmaps/rings-config-train")["data"] == {"hccl.json": '{"status":"initializing"}'}
    cluster.until_phase("Completed")
    cluster.backend.delete("train")
    cluster.plane.wait("both maps gone", lambda: not {"train-run", "rings-config-train"} & {m["metadata"]["name"] for m in cluster.get("configmaps")["items"]})


@pytest.mark.parametrize("change", [
    {}, {"rank_table": {"mode": "static", "servers": [{"node": f"npu-00{n}", "device_ips": [f"10.0.{n}.{i + 1}" for i in range(8)]} for n in range(2)]}},
    {"cluster": {"platform": "mindcluster"}, "rank_table": {"mode": "operator"}},
    {"image": {"code": "configmap", "packages": "/data/packages"}, "cluster": {"platform": "mindcluster"}, "rank_table": {"mode": "operator"}},
], ids=["negotiate", "static", "operator", "operator and the trainer by ConfigMap"])
def test_a_submit_takes_at_most_twelve_requests(cluster: Cluster, change: dict[str, object]) -> None:
    cluster.backend.kube.requests.clear()
    cluster.submit(**change)
    assert sum(cluster.backend.kube.requests.values()) <= 12, cluster.backend.kube.requests


def test_the_same_spec_after_a_failure_goes_on(cluster: Cluster) -> None:
    first = cluster.submit(fails(78))
    cluster.until_phase("Terminated")
    again = cluster.submit(fails(78))
    assert again.outcome is Outcome.CONTINUED
    assert again.job.extra["uid"] != first.job.extra["uid"]


def test_rerun_replaces_a_running_job_and_waits_for_its_pods(cluster: Cluster) -> None:
    first = cluster.submit()
    cluster.until_phase("Running")
    again = cluster.submit(rerun=True, resources={"nodes": 1})
    assert again.outcome is Outcome.STARTED
    assert again.job.extra["uid"] != first.job.extra["uid"]
    cluster.until_phase("Running")
    assert cluster.pods() == ["train-worker-0"]


def test_submitting_while_the_old_job_is_being_deleted_waits_and_is_no_false_success(cluster: Cluster) -> None:
    first = cluster.submit()
    cluster.until_phase("Running")
    cluster.plane.request("DELETE", f"/apis/batch.volcano.sh/v1alpha1/namespaces/{cluster.namespace}/jobs/train", {"propagationPolicy": "Foreground"})
    again = cluster.submit()
    assert again.outcome is Outcome.STARTED
    assert again.job.extra["uid"] != first.job.extra["uid"]
    cluster.until_phase("Running")


def test_a_job_that_its_time_to_live_removes_keeps_its_result_for_who_follows(cluster: Cluster) -> None:
    cluster.submit(SUCCEED, lifecycle={"ttl_s": 1})
    source = cluster.backend.events("train")
    try:
        assert cluster.until("end", ended).state is JobState.SUCCEEDED
        cluster.plane.wait("removed", lambda: cluster.namespace_has_no_jobs())
        assert cluster.backend.get("train").state is JobState.SUCCEEDED
    finally:
        source.close()


def test_suspend_frees_the_nodes_and_resume_goes_on(cluster: Cluster) -> None:
    cluster.submit()
    cluster.until_phase("Running")
    cluster.backend.control.suspend("train")
    view = cluster.until_phase("Aborted")
    assert view.state is JobState.SUSPENDED
    assert cluster.pods() == []
    cluster.backend.control.resume("train")
    view = cluster.until_phase("Running")
    assert (view.state, view.attempt) == (JobState.RUNNING, 1)


def test_suspend_is_refused_where_resuming_would_find_no_attempt(cluster: Cluster) -> None:
    cluster.submit(retries={"failures": 0, "preemptions": 0})
    cluster.until_phase("Running")
    with pytest.raises(JobError, match="none is left"):
        cluster.backend.control.suspend("train")
    assert cluster.backend.get("train").phase == "Running"


def test_cancel_keeps_the_object_and_is_no_failure(cluster: Cluster) -> None:
    cluster.submit()
    cluster.until_phase("Running")
    cluster.backend.cancel("train")
    view = cluster.until_phase("Terminated")
    assert view.state is JobState.CANCELLED
    assert "asked for by" in view.reason


def test_cancel_of_a_job_that_waits_in_the_queue_works(cluster: Cluster) -> None:
    cluster.submit(resources={"nodes": 5})
    cluster.until("waiting", lambda view: "overused" in view.reason)
    cluster.backend.cancel("train")
    assert cluster.until_phase("Terminated").state is JobState.CANCELLED


def test_cancel_now_does_not_wait_for_the_grace_period(cluster: Cluster) -> None:
    cluster.submit(lifecycle={"grace_period_s": 3600})
    cluster.until_phase("Running")
    cluster.backend.cancel("train", now=True)
    assert cluster.until_phase("Terminated").state is JobState.CANCELLED


def test_a_suspended_job_can_be_cancelled(cluster: Cluster) -> None:
    cluster.submit()
    cluster.until_phase("Running")
    cluster.backend.control.suspend("train")
    cluster.until_phase("Aborted")
    assert cluster.backend.cancel("train").state is JobState.CANCELLED
