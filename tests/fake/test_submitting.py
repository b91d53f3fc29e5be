"""Submitting where answers are lost, names are taken, and things fail half way: a whole job with a receipt, or nothing."""

import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from scripted import Answer, ScriptedServer, ok, status

from nanochat_npu import marks
from nanochat_npu.backends import Outcome
from nanochat_npu.cluster.submit import Order, Sender
from nanochat_npu.errors import ClusterError, ClusterRejected, ClusterUnreachable, JobExists

NOW = 1_764_500_000.0
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "d20-run", "labels": {marks.LABEL_JOB: "d20"}}, "data": {"run.json": '{"submission_id": "abc"}'}}
JOB = {
    "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "d20", "annotations": {marks.ANNOTATION_SUBMISSION: "abc"}},
    "spec": {"minAvailable": 1, "plugins": {"svc": []}, "tasks": [{"name": "worker", "replicas": 1, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}}}]},
}
ORDER = Order("d20", "train", "abc", [MAP, JOB])
MISSING = status(404, 'jobs.batch.volcano.sh "d20" not found', "NotFound", name="d20", kind="jobs")
NO_MAP = status(404, 'configmaps "d20-run" not found', "NotFound", name="d20-run", kind="configmaps")
EXISTS = status(409, 'jobs.batch.volcano.sh "d20" already exists', "AlreadyExists")


def stored(obj: dict[str, Any], uid: str = "u1", **more: Any) -> dict[str, Any]:
    """An object as the server keeps it."""
    return {**obj, "metadata": {**obj["metadata"], "uid": uid, **more}}


def healthy(server: ScriptedServer) -> ScriptedServer:
    """A server that accepts everything, and has nothing yet."""
    server.on("GET", "/jobs/d20", MISSING).on("GET", "/configmaps/d20-run", NO_MAP).on("GET", r"/pods\?", ok({"items": [], "metadata": {}}))
    server.on("POST", "/configmaps", ok(stored(MAP, "m1"))).on("POST", "/jobs", ok(stored(JOB)))
    server.on("PATCH", "/configmaps/d20-run", ok(stored(MAP, "m1")))
    server.on("DELETE", "/", ok({"kind": "Status", "status": "Success"}))
    return server


def standing(server: ScriptedServer, *jobs: Answer) -> ScriptedServer:
    """The same with a job of this name, read with these answers one after the other: a dry run meets it, too."""
    return healthy(server).on("GET", "/jobs/d20", *jobs).on("POST", r"/jobs\?.*dryRun", EXISTS)


class Receipts:
    """Receipts that were written."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.written: list[str] = []
        self._error = error

    def write(self, job: dict[str, Any]) -> None:
        """Write one, or fail."""
        if self._error:
            raise self._error
        self.written.append(job["metadata"]["uid"])


def sender(server: ScriptedServer, folder: Path, receipts: Receipts | None = None) -> Sender:
    """A sender to this server."""
    return Sender(server.client(folder), (receipts or Receipts()).write, NOW)


def real(server: ScriptedServer, method: str, path: str = "") -> list[str]:
    """Requests that were no dry run, without their query."""
    return [asked.partition("?")[0].rpartition("train/")[2] for asked in server.asked(method, path) if "dryRun" not in asked]


def test_everything_is_asked_about_before_anything_is_made(server: ScriptedServer, tmp_path: Path) -> None:
    receipts = Receipts()
    sent = sender(healthy(server), tmp_path, receipts).send(ORDER)
    posts = server.asked("POST")
    assert ["dryRun" in path for path in posts] == [True, True, False, False]
    assert sent.outcome is Outcome.STARTED
    assert receipts.written == ["u1"]
    owner = next(body for verb, _path, body in server.requests if verb == "PATCH")["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"]) == ("Job", "u1")
    assert len(server.requests) <= 12


def test_a_dry_run_that_is_refused_leaves_nothing(server: ScriptedServer, tmp_path: Path) -> None:
    healthy(server).on("POST", r"/jobs\?.*dryRun", status(400, 'admission webhook "validatejob.volcano.sh" denied the request: can not submit job to root queue;'))
    with pytest.raises(ClusterRejected) as caught:
        sender(server, tmp_path).send(ORDER)
    assert caught.value.where == "cluster.queue"
    assert real(server, "POST") == []


def test_a_field_that_an_old_server_drops_is_refused(server: ScriptedServer, tmp_path: Path) -> None:
    pruned = json.loads(json.dumps(JOB))
    del pruned["spec"]["tasks"][0]["template"]["spec"]["restartPolicy"]
    healthy(server).on("POST", r"/jobs\?.*dryRun", ok(stored(pruned)))
    with pytest.raises(ClusterRejected, match="restartPolicy"):
        sender(server, tmp_path).send(ORDER)
    assert real(server, "POST") == []


def test_a_job_whose_creation_fails_takes_its_config_map_away_again(server: ScriptedServer, tmp_path: Path) -> None:
    healthy(server).on("POST", r"/jobs\?(?!.*dryRun)", status(403, "exceeded quota: q", "Forbidden"))
    with pytest.raises(ClusterError):
        sender(server, tmp_path).send(ORDER)
    assert real(server, "DELETE") == ["configmaps/d20-run"]


def test_a_config_map_that_cannot_be_given_to_the_job_takes_everything_back(server: ScriptedServer, tmp_path: Path) -> None:
    healthy(server).on("PATCH", "/configmaps", status(422, "no"))
    with pytest.raises(ClusterRejected):
        sender(server, tmp_path).send(ORDER)
    assert real(server, "DELETE") == ["jobs/d20", "configmaps/d20-run"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_receipt_that_cannot_be_written_takes_everything_back(server: ScriptedServer, tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        sender(healthy(server), tmp_path, Receipts(error)).send(ORDER)
    assert real(server, "DELETE") == ["jobs/d20", "configmaps/d20-run"]


@pytest.mark.parametrize("where", ["/configmaps", "/jobs"])
def test_ctrl_c_while_something_is_being_made_leaves_nothing(server: ScriptedServer, tmp_path: Path, where: str) -> None:
    receipts = Receipts()
    healthy(server)
    answer = ok(stored(MAP, "m1")) if where == "/configmaps" else ok(stored(JOB))
    pressed = Answer(200, answer.body, then=_press)
    server.on("POST", where + r"\?(?!.*dryRun)", pressed)
    with pytest.raises(KeyboardInterrupt):
        sender(server, tmp_path, receipts).send(ORDER)
    assert receipts.written == []
    made = {"jobs/d20": "u1", "configmaps/d20-run": "m1"}
    assert set(real(server, "DELETE")) == (set(made) if where == "/jobs" else {"configmaps/d20-run"})


def _press() -> None:
    """Ctrl-C, as the terminal sends it: to the process, whose main thread takes it."""
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_is_given_back_to_whoever_had_it(server: ScriptedServer, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    sender(healthy(server), tmp_path).send(ORDER)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_lost_answer_whose_job_was_stored_is_a_success_and_not_a_second_job(server: ScriptedServer, tmp_path: Path) -> None:
    healthy(server)
    lost = Answer(reset=True, then=lambda: server.on("GET", "/jobs/d20", ok(stored(JOB, "u7"))) and None)
    server.on("POST", r"/jobs\?(?!.*dryRun)", lost)
    receipts = Receipts()
    sent = sender(server, tmp_path, receipts).send(ORDER)
    assert sent.job["metadata"]["uid"] == "u7"
    assert receipts.written == ["u7"]
    assert len(real(server, "POST", "/jobs")) == 1


def test_a_lost_answer_of_a_request_that_never_arrived_is_asked_again(server: ScriptedServer, tmp_path: Path) -> None:
    healthy(server).on("POST", r"/jobs\?(?!.*dryRun)", Answer(reset=True), ok(stored(JOB)))
    assert sender(server, tmp_path).send(ORDER).job["metadata"]["uid"] == "u1"
    assert len(real(server, "POST", "/jobs")) == 2


def test_a_job_that_another_submission_made_meanwhile_is_never_taken_for_ours(server: ScriptedServer, tmp_path: Path) -> None:
    healthy(server)
    other = stored({**JOB, "metadata": {**JOB["metadata"], "annotations": {marks.ANNOTATION_SUBMISSION: "zzz"}}}, "u9")
    race = Answer(EXISTS.code, EXISTS.body, then=lambda: server.on("GET", "/jobs/d20", ok(other)) and None)
    server.on("POST", r"/jobs\?(?!.*dryRun)", race)
    with pytest.raises(JobExists, match="another submission"):
        sender(server, tmp_path).send(ORDER)
    assert real(server, "DELETE") == ["configmaps/d20-run"]


def test_a_server_that_never_answers_is_an_error_that_says_what_is_unknown(server: ScriptedServer, tmp_path: Path) -> None:
    healthy(server).on("POST", r"/jobs\?(?!.*dryRun)", Answer(reset=True))
    with pytest.raises(ClusterUnreachable, match="broke before the answer came"):
        sender(server, tmp_path).send(ORDER)
    assert real(server, "DELETE") == ["configmaps/d20-run"]


def test_a_job_that_is_going_away_is_waited_for(server: ScriptedServer, tmp_path: Path) -> None:
    going = stored(JOB, "u0", deletionTimestamp="2026-11-30T00:00:00Z")
    standing(server, ok(going), ok(going), ok(going), MISSING)
    sent = sender(server, tmp_path).send(ORDER)
    assert (sent.outcome, sent.job["metadata"]["uid"]) == (Outcome.STARTED, "u1")
    assert len(server.asked("GET", "/jobs/d20")) == 4


def test_pods_of_the_old_job_are_waited_for_too(server: ScriptedServer, tmp_path: Path) -> None:
    pod = {"metadata": {"name": "d20-worker-0", "ownerReferences": [{"kind": "Job", "uid": "u0"}]}}
    standing(server, ok(stored(JOB, "u0", deletionTimestamp="2026-11-30T00:00:00Z")), MISSING)
    server.on("GET", r"/pods\?", ok({"items": [pod], "metadata": {}}), ok({"items": [pod], "metadata": {}}), ok({"items": [], "metadata": {}}))
    sender(server, tmp_path).send(ORDER)
    assert len(server.asked("GET", r"/pods\?")) == 3


def test_a_job_that_does_not_go_away_is_an_error_that_names_recover(server: ScriptedServer, tmp_path: Path) -> None:
    standing(server, ok(stored(JOB, "u0", deletionTimestamp="2026-11-30T00:00:00Z")))
    with pytest.raises(ClusterError, match="still being deleted") as caught:
        sender(server, tmp_path).send(ORDER)
    assert "recover" in str(caught.value.hint)
    assert real(server, "POST") == []


def test_a_queue_that_was_made_a_moment_ago_is_waited_for(server: ScriptedServer, tmp_path: Path) -> None:
    fresh = status(400, 'admission webhook "validatejob.volcano.sh" denied the request: can only submit job to queue with state `Open`, queue `q` status is ``;')
    healthy(server).on("POST", r"/jobs\?.*dryRun", fresh, fresh, ok(stored(JOB)))
    assert sender(server, tmp_path).send(ORDER).outcome is Outcome.STARTED


def test_a_queue_that_is_closed_is_not_waited_for(server: ScriptedServer, tmp_path: Path) -> None:
    closed = status(400, 'admission webhook "validatejob.volcano.sh" denied the request: can only submit job to queue with state `Open`, queue `q` status is `Closed`;')
    healthy(server).on("POST", r"/jobs\?.*dryRun", closed)
    with pytest.raises(ClusterRejected):
        sender(server, tmp_path).send(ORDER)
    assert len(server.asked("POST", "/jobs")) == 1


def test_a_parent_queue_is_refused_with_the_names_of_its_children(server: ScriptedServer, tmp_path: Path) -> None:
    refusal = status(400, 'admission webhook "validatejob.volcano.sh" denied the request: can only submit job to leaf queue, queue `team` has 2 child queues;')
    queues = [{"metadata": {"name": name}, "spec": {"parent": parent}} for name, parent in (("b", "team"), ("a", "team"), ("c", "root"))]
    healthy(server).on("POST", r"/jobs\?.*dryRun", refusal).on("GET", "/queues", ok({"items": queues, "metadata": {}}))
    job = json.loads(json.dumps(JOB))
    job["spec"]["queue"] = "team"
    with pytest.raises(ClusterRejected) as caught:
        sender(server, tmp_path).send(Order("d20", "train", "abc", [MAP, job]))
    assert caught.value.hint == "choose a queue below it: a, b (--set cluster.queue=NAME)"


def left_over(age_s: float, submission: str, owned: bool = False) -> dict[str, Any]:
    """A ConfigMap of the job's name that somebody made some time ago."""
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW - age_s))
    owners = [{"kind": "Job", "uid": "u0"}] if owned else []
    return {**stored(MAP, "m0", creationTimestamp=made, ownerReferences=owners), "data": {"run.json": json.dumps({"submission_id": submission, "old": True})}}


TAKEN = status(409, 'configmaps "d20-run" already exists', "AlreadyExists")


@pytest.mark.parametrize("found", [left_over(3600, "zzz"), left_over(5, "abc"), left_over(5, "zzz", owned=True)], ids=["old", "same submission", "of an earlier job"])
def test_a_config_map_that_was_left_behind_is_replaced(server: ScriptedServer, tmp_path: Path, found: dict[str, Any]) -> None:
    healthy(server).on("GET", "/configmaps/d20-run", ok(found))
    server.on("POST", r"/configmaps\?(?!.*dryRun)", TAKEN, ok(stored(MAP, "m1")))
    sender(server, tmp_path).send(ORDER)
    assert real(server, "DELETE") == ["configmaps/d20-run"]


def test_a_config_map_of_a_submit_that_is_under_way_is_left_alone(server: ScriptedServer, tmp_path: Path) -> None:
    healthy(server).on("GET", "/configmaps/d20-run", ok(left_over(5, "zzz")))
    server.on("POST", r"/configmaps\?(?!.*dryRun)", TAKEN)
    with pytest.raises(JobExists, match="does not belong to this job"):
        sender(server, tmp_path).send(ORDER)
    assert real(server, "DELETE") == []


def test_a_job_that_is_not_ours_is_never_replaced_without_being_told(server: ScriptedServer, tmp_path: Path) -> None:
    standing(server, ok({"metadata": {"name": "d20", "uid": "x"}}))
    with pytest.raises(JobExists, match="nanochat-npu did not make"):
        sender(server, tmp_path).send(ORDER)


def test_the_same_submission_is_attached_to_also_where_its_queue_takes_no_more_jobs(server: ScriptedServer, tmp_path: Path) -> None:
    closed = status(400, 'admission webhook "validatejob.volcano.sh" denied the request: can only submit job to queue with state `Open`, queue `q` status is `Closed`;')
    running = {**stored(JOB), "status": {"state": {"phase": "Running"}}}
    healthy(server).on("POST", r"/jobs\?.*dryRun", closed).on("GET", "/jobs/d20", ok(running))
    assert sender(server, tmp_path).send(ORDER).outcome is Outcome.ATTACHED


# ---- several ConfigMaps -----------------------------------------------------------------------------------------------------

TABLE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rings-config-d20", "labels": {marks.LABEL_JOB: "d20"}}, "data": {"hccl.json": "{}"}}
TWO_MAPS = Order("d20", "train", "abc", [MAP, TABLE, JOB])


def two_maps(server: ScriptedServer) -> ScriptedServer:
    """A server that accepts both."""
    return healthy(server).on("POST", "/configmaps", Answer(uid="m1")).on("GET", "/configmaps/rings-config-d20", NO_MAP)


def test_a_second_config_map_belongs_to_the_first_and_the_first_to_the_job(server: ScriptedServer, tmp_path: Path) -> None:
    sender(two_maps(server), tmp_path).send(TWO_MAPS)
    made = [body for verb, path, body in server.requests if verb == "POST" and "/configmaps" in path and "dryRun" not in path]
    assert [owner["uid"] for owner in made[1]["metadata"]["ownerReferences"]] == ["m1"]
    assert "ownerReferences" not in made[0]["metadata"]
    assert len(server.asked("PATCH")) == 1


def owned(obj: dict[str, Any], kind: str, uid: str) -> dict[str, Any]:
    """A stored object that belongs to another one."""
    return stored(obj, "m0", ownerReferences=[{"kind": kind, "uid": uid}])


@pytest.mark.parametrize(("kind", "uid"), [("ConfigMap", "m-of-an-earlier-job"), ("Job", "an-earlier-job")])
def test_a_config_map_of_the_same_content_whose_owner_is_gone_is_replaced_before_the_collector_takes_it(
    server: ScriptedServer, tmp_path: Path, kind: str, uid: str
) -> None:
    taken = status(409, 'configmaps "rings-config-d20" already exists', "AlreadyExists")
    two_maps(server).on("POST", r"/configmaps\?(?!.*dryRun)", Answer(uid="m1"), taken, Answer(uid="m2"))
    server.on("GET", "/configmaps/rings-config-d20", ok(owned(TABLE, kind, uid)))
    sender(server, tmp_path).send(TWO_MAPS)
    assert real(server, "DELETE") == ["configmaps/rings-config-d20"]


def test_a_config_map_of_the_same_submission_that_was_faster_is_left_to_it(server: ScriptedServer, tmp_path: Path) -> None:
    taken = status(409, 'configmaps "d20-run" already exists', "AlreadyExists")
    healthy(server).on("POST", r"/configmaps\?(?!.*dryRun)", taken).on("GET", "/configmaps/d20-run", ok(owned(MAP, "Job", "u5")))
    server.on("POST", r"/jobs\?(?!.*dryRun)", EXISTS).on("GET", "/jobs/d20", ok(stored(JOB, "u5")))
    assert sender(server, tmp_path).send(ORDER).job["metadata"]["uid"] == "u5"
    assert real(server, "DELETE") == []


def test_a_wheel_of_another_version_is_not_taken_for_ours(server: ScriptedServer, tmp_path: Path) -> None:
    taken = status(409, 'configmaps "d20-run" already exists', "AlreadyExists")
    old = {**stored(MAP, "m0"), "binaryData": {"nanochat.whl": "b2xk"}}
    order = Order("d20", "train", "abc", [{**MAP, "binaryData": {"nanochat.whl": "bmV3"}}, JOB])
    healthy(server).on("GET", "/configmaps/d20-run", ok(old)).on("POST", r"/configmaps\?(?!.*dryRun)", taken, Answer(uid="m1"))
    server.on("POST", r"/configmaps\?.*dryRun", Answer(uid="m1"))
    sender(server, tmp_path).send(order)
    assert real(server, "DELETE") == ["configmaps/d20-run"]


# ---- plugins that not every Volcano has -------------------------------------------------------------------------------------

RANKED = Order("d20", "train", "abc", [MAP, JOB], optional_plugins={"hcclrank": []})
UNKNOWN = status(400, 'admission webhook "validatejob.volcano.sh" denied the request:  unable to find job plugin: hcclrank;')


def sent_jobs(server: ScriptedServer) -> list[tuple[bool, list[str]]]:
    """Of each job that was sent: was it a dry run, and its plugins."""
    return [("dryRun" in path, sorted(body["spec"]["plugins"])) for verb, path, body in server.requests if verb == "POST" and "/jobs" in path]


def test_a_plugin_that_the_server_knows_is_added_and_told(server: ScriptedServer, tmp_path: Path) -> None:
    healthy(server).on("POST", "/jobs", Answer(uid="u1"))
    sent = sender(server, tmp_path).send(RANKED)
    assert sent_jobs(server) == [(True, ["hcclrank", "svc"]), (False, ["hcclrank", "svc"])]
    assert "hcclrank was added" in sent.notes[0]


def test_a_plugin_that_the_server_does_not_know_is_left_out_and_told(server: ScriptedServer, tmp_path: Path) -> None:
    healthy(server).on("POST", r"/jobs\?.*dryRun", UNKNOWN, Answer(uid="u1"))
    sent = sender(server, tmp_path).send(RANKED)
    assert sent_jobs(server) == [(True, ["hcclrank", "svc"]), (True, ["svc"]), (False, ["svc"])]
    assert "hcclrank was left out" in sent.notes[0]


def test_a_job_that_is_refused_for_something_else_is_not_asked_about_twice(server: ScriptedServer, tmp_path: Path) -> None:
    healthy(server).on("POST", r"/jobs\?.*dryRun", status(400, 'admission webhook "validatejob.volcano.sh" denied the request: can not submit job to root queue;'))
    with pytest.raises(ClusterRejected):
        sender(server, tmp_path).send(RANKED)
    assert len(server.asked("POST", "/jobs")) == 1


@pytest.mark.parametrize("old", [False, True], ids=["any Volcano", "a Volcano without hcclrank"])
def test_a_job_that_replaces_another_gets_the_plugin_like_a_first_one(server: ScriptedServer, tmp_path: Path, old: bool) -> None:
    before = stored({**JOB, "metadata": {**JOB["metadata"], "annotations": {marks.ANNOTATION_SUBMISSION: "other"}}}, "old")
    standing(server, ok(before), MISSING)
    if old:
        server.on("POST", r"/jobs\?.*dryRun", UNKNOWN, EXISTS)
    sent = sender(server, tmp_path).send(dataclasses.replace(RANKED, rerun=True))
    assert sent_jobs(server)[-1] == (False, ["svc"] if old else ["hcclrank", "svc"])
    assert ("hcclrank was left out" if old else "hcclrank was added") in sent.notes[0]


def test_a_plugin_of_the_specs_own_patch_keeps_its_arguments(server: ScriptedServer, tmp_path: Path) -> None:
    job = json.loads(json.dumps(JOB))
    job["spec"]["plugins"]["hcclrank"] = ["--worker=worker"]
    healthy(server).on("POST", "/jobs", Answer(uid="u1"))
    sender(server, tmp_path).send(Order("d20", "train", "abc", [MAP, job], optional_plugins={"hcclrank": []}))
    assert [body["spec"]["plugins"]["hcclrank"] for verb, path, body in server.requests if verb == "POST" and "/jobs" in path] == [["--worker=worker"]] * 2
