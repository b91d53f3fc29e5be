"""The stand-in against recordings of real Volcano: the same phases in the same order, and no event text that Volcano does not write.

With ``NANOCHAT_VOLCANO_BIN`` the same scenarios run on the real programs, and tell whether the recordings are still true.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import Cluster, unrepeated
from plane import Plane

from nanochat_npu.resources import JOBS
from nanochat_npu.watch import Informer, Scope

pytestmark = pytest.mark.cluster

RECORDINGS = Path(__file__).parents[1] / "recordings"
Lines = list[dict[str, Any]]


def recorded(scenario: str) -> Lines:
    """The lines of a recording."""
    return [json.loads(line) for line in (RECORDINGS / f"{scenario}.jsonl").read_text().splitlines()]


def phases(lines: Lines) -> list[str]:
    """Phases of the recorded job that is created first, without repeats."""
    uid = next(line["object"]["metadata"]["uid"] for line in lines if line["resource"] == "jobs")
    return unrepeated([
        line["object"].get("status", {}).get("state", {}).get("phase", "") for line in lines
        if line["resource"] == "jobs" and line["type"] != "DELETED" and line["object"]["metadata"]["uid"] == uid
    ])


def normal(text: str) -> str:
    """An event text without what differs from run to run: namespaces, node names, addresses, which of two workers came first."""
    text = re.sub(r"\(0x[0-9a-f]+\)", "(0x)", " ".join(text.split()))
    text = re.sub(r"train-worker-[01]", "WORKER", text)
    text = re.sub(r"npu-\d+", "NODE", text)
    text = re.sub(r"(assigned |PodGroup |account )[a-z0-9-]+(?=[/:])", r"\1NS", text)
    return re.sub(r"^\(combined from similar events\): ", "", text)


def texts(events: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """(kind, reason, normalised text) of events."""
    return {(event["involvedObject"]["kind"], event.get("reason", ""), normal(event.get("message", ""))) for event in events}


KNOWN = {
    entry for path in RECORDINGS.glob("*.jsonl") if path.stem != "verdicts"
    for entry in texts([line["object"] for line in recorded(path.stem) if line["resource"] == "events"])
}
"""Every event text that real Volcano was seen to write."""


@pytest.fixture
def watched(cluster: Cluster) -> Iterator[list[str]]:
    """Phases of the job ``train`` as a watch brings them."""
    seen: list[str] = []
    informer: list[Informer] = []
    lock = threading.Lock()

    def changed() -> None:
        job = informer[0].get("train") if informer else None
        if job is not None:
            with lock:
                seen.append(job.get("status", {}).get("state", {}).get("phase", ""))

    informer.append(Informer(cluster.backend.kube, Scope(JOBS, cluster.namespace), changed))
    informer[0].start()
    assert informer[0].ready(20)
    yield seen
    informer[0].stop()


def send(cluster: Cluster, scenario: str) -> None:
    """Create the job that was recorded, in this test's namespace and with kwok's faster stages."""
    first = next(line["object"] for line in recorded(scenario) if line["resource"] == "client" and line["type"].startswith("create"))
    job = {"apiVersion": first["apiVersion"], "kind": "Job", "metadata": {"name": "train"}, "spec": first["spec"]}
    cluster.plane.request("POST", f"/apis/batch.volcano.sh/v1alpha1/namespaces/{cluster.namespace}/jobs", job)


def command(cluster: Cluster, action: str) -> None:
    """Issue a Volcano Command."""
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "train", "uid": cluster.job()["metadata"]["uid"]}
    cluster.plane.request("POST", f"/apis/bus.volcano.sh/v1alpha1/namespaces/{cluster.namespace}/commands", {
        "apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "action": action, "target": target,
        "metadata": {"generateName": "train-", "ownerReferences": [target]},
    })


def suspend_and_resume(cluster: Cluster) -> None:
    """As it was recorded."""
    cluster.until_phase("Running")
    command(cluster, "AbortJob")
    cluster.until_phase("Aborted")
    command(cluster, "ResumeJob")


def delete_a_pod(cluster: Cluster) -> None:
    """As it was recorded."""
    cluster.until_phase("Running")
    cluster.plane.request("DELETE", f"/api/v1/namespaces/{cluster.namespace}/pods/train-worker-1")


def limit_the_namespace(cluster: Cluster) -> None:
    """A quota below the gang, before the job."""
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"requests.huawei.com/Ascend910": "8"}}}
    cluster.plane.request("POST", f"/api/v1/namespaces/{cluster.namespace}/resourcequotas", quota)
    cluster.plane.wait("quota", lambda: cluster.get("resourcequotas/q").get("status", {}).get("hard"))


def make_small_queue(cluster: Cluster) -> None:
    """The queue of the recording, if it is not there yet."""
    spec = {"weight": 1, "capability": {"huawei.com/Ascend910": "8", "cpu": "100", "memory": "1000Gi"}}
    cluster.plane.request("POST", "/apis/scheduling.volcano.sh/v1beta1/queues", {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "small"}, "spec": spec,
    })
    cluster.plane.wait("queue", lambda: cluster.plane.request("GET", "/apis/scheduling.volcano.sh/v1beta1/queues/small").get("status", {}).get("state") == "Open")


Act = Callable[[Cluster], None]


def nothing(cluster: Cluster) -> None:
    """Only watch."""


@pytest.mark.parametrize(("scenario", "before", "after"), [
    ("success", nothing, nothing), ("restart_once", nothing, nothing), ("fatal_exit", nothing, nothing), ("always_fails_1", nothing, nothing),
    ("always_fails_3", nothing, nothing), ("suspend_resume", nothing, suspend_and_resume), ("suspend_resume_maxretry_1", nothing, suspend_and_resume),
    ("pod_deleted", nothing, delete_a_pod),
])
def test_phases_are_those_that_were_recorded(cluster: Cluster, watched: list[str], scenario: str, before: Act, after: Act) -> None:
    expected = phases(recorded(scenario))
    before(cluster)
    send(cluster, scenario)
    after(cluster)
    def seen() -> list[str]:
        found = unrepeated(list(watched))
        # Real Volcano, busy, may look at a job between the end of a pod and the event about it: it makes the pod anew, calls the job Pending
        # for that moment, and restarts it then. The same restart by another way; the stand-in has one way only.
        return _without_moments(found) if cluster.plane.volcano is not None else found

    cluster.plane.wait("the last phase", lambda: seen()[-1:] == expected[-1:] and len(seen()) >= len(expected), 60)
    assert seen() == expected


def _without_moments(found: list[str]) -> list[str]:
    """Phases without a Pending that stands between Running and Restarting."""
    return [phase for index, phase in enumerate(found) if not (phase == "Pending" and found[index - 1:index] == ["Running"] and found[index + 1:index + 2] == ["Restarting"])]


@pytest.mark.parametrize(("scenario", "before", "wanted"), [
    ("too_big", nothing, "resource in cluster is overused"), ("wrong_selector", nothing, "didn't match Pod's node affinity/selector"),
    ("missing_claim", nothing, 'persistentvolumeclaim "nope" not found'), ("queue_capability", make_small_queue, "queue resource quota insufficient"),
    ("quota", limit_the_namespace, "exceeded quota: q"), ("bad_service_account", nothing, 'serviceaccount \\"nope\\" not found'),
    ("name_digit", nothing, "a DNS-1035 label must consist of"), ("success", nothing, "pod group is ready"), ("restart_once", nothing, "Start to execute action RestartJob"),
])
def test_event_texts_are_those_that_were_recorded(cluster: Cluster, scenario: str, before: Act, wanted: str) -> None:
    before(cluster)
    if scenario == "name_digit":
        first = next(line["object"] for line in recorded(scenario) if line["resource"] == "client")
        job = {"apiVersion": first["apiVersion"], "kind": "Job", "metadata": {"name": "2x8"}, "spec": first["spec"]}
        cluster.plane.request("POST", f"/apis/batch.volcano.sh/v1alpha1/namespaces/{cluster.namespace}/jobs", job)
    else:
        send(cluster, scenario)
    events = f"/api/v1/namespaces/{cluster.namespace}/events"
    cluster.plane.wait("the event", lambda: any(wanted in event.get("message", "") for event in cluster.plane.request("GET", events)["items"]), 30)
    found = texts([event for event in cluster.plane.request("GET", events)["items"] if event["source"].get("component") in ("volcano", "vc-controller-manager")])
    assert found
    strange = {entry for entry in found - KNOWN if not _varies(entry)}
    assert strange == set()


def _varies(entry: tuple[str, str, str]) -> bool:
    """Texts whose numbers depend on the moment at which a scheduler looks; of these the form is held, not the numbers."""
    _kind, reason, text = entry
    counted = re.compile(
        r"(PodGroup NS:train unschedulable, reason: )?(\d+/\d+ tasks in gang unschedulable: )?pod group is (not )?ready"
        r"(, \d+ (Binding|Failed|Pending|Releasing|Running|Succeeded|Bound|Pipelined|Allocated))*, \d+ minAvailable(; Pending: (\d+ \w+(, )?)+)?"
    )
    return reason in ("Unschedulable", "FailedScheduling", "PodGroupPending") and counted.fullmatch(text) is not None


def test_a_simulated_kubelet_deletes_a_pod_once_and_no_other_that_takes_its_name(cluster: Cluster) -> None:
    # The state in which a pod shows between its deletion and its absence, held here by a finalizer; see stages.yaml.
    pods = f"/api/v1/namespaces/{cluster.namespace}/pods"
    spec = {"nodeName": "npu-000", "containers": [{"name": "c", "image": "x"}], "tolerations": [{"operator": "Exists"}]}
    cluster.plane.request("POST", pods, {"metadata": {"name": "p", "finalizers": ["test.example.com/hold"]}, "spec": spec})
    cluster.plane.request("DELETE", f"{pods}/p", {"gracePeriodSeconds": 0})
    assert cluster.get("pods/p")["metadata"]["deletionGracePeriodSeconds"] == 0
    time.sleep(1.0)  # a stage takes 0.3 s
    assert cluster.pods() == ["p"]
    cluster.plane.request("PATCH", f"{pods}/p", {"metadata": {"finalizers": None}}, "application/merge-patch+json")
    cluster.plane.wait("gone", lambda: not cluster.pods())


def test_the_recordings_name_every_phase_that_a_job_can_have() -> None:
    seen = {phase for path in RECORDINGS.glob("*.jsonl") if path.stem != "verdicts" for phase in phases(recorded(path.stem))}
    assert seen == {"", "Pending", "Running", "Restarting", "Completing", "Completed", "Aborting", "Aborted", "Terminating", "Terminated", "Failed"}


def test_a_plane_has_all_of_volcanos_kinds(plane: Plane) -> None:
    names = {item["metadata"]["name"] for item in plane.request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]}
    assert {"jobs.batch.volcano.sh", "podgroups.scheduling.volcano.sh", "queues.scheduling.volcano.sh", "commands.bus.volcano.sh"} <= names
