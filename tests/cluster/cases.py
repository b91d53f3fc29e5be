"""What the cluster tests share: a namespace with a backend, specs whose simulated pods behave as told, and a record of what was seen."""

import contextlib
import datetime
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from plane import Plane, PlaneError

from nanochat_npu.backends import JobView, Submission, Submitted
from nanochat_npu.backends.volcano import VolcanoBackend
from nanochat_npu.jobs import Store
from nanochat_npu.kube import Kube
from nanochat_npu.kubeconfig import Target
from nanochat_npu.load import load_text
from nanochat_npu.plan import Plan, make_plan

SPEC = {
    "spec_version": 1, "name": "train", "owner": "li", "backend": "volcano",
    "run": {"stages": ["pretrain"], "model": {"depth": 12}, "pretrain": {"device_batch": 8}},
    "resources": {"nodes": 2, "npus_per_node": 8, "npu": "910B3", "cpu": 8, "memory": "64Gi", "shm": "16Gi"},
    "image": {"ref": "registry.example.com/train/nanochat:1"},
    "cluster": {"platform": "volcano", "queue": "default"},
    "storage": {"output": {"host_path": "/srv/output", "path": "/output"}},
    "retries": {"failures": 1, "preemptions": 1}, "lifecycle": {"grace_period_s": 30, "ttl_s": None},
}
"""Two workers of eight NPUs; three attempts."""
SUCCEED = {"t/end": "succeed"}


def fails(code: int, *, worker: int = 0, attempt: str = "any") -> dict[str, str]:
    """Pod annotations: this worker leaves with this code in this attempt, the others go on to succeed."""
    return {"t/end": "succeed", "t/fail-index": str(worker), "t/fail-attempt": attempt, "t/exit-code": str(code)}


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Base with a change merged in, maps into maps."""
    result = dict(base)
    for key, value in change.items():
        result[key] = merged(result[key], value) if isinstance(value, dict) and isinstance(result.get(key), dict) else value
    return result


def plan_of(spec: dict[str, Any]) -> Plan:
    """The plan of a spec given as data."""
    return make_plan(load_text(yaml.safe_dump(spec).encode(), "case.yaml", environ={}).spec, datetime.date(2026, 11, 30))


@dataclass
class Cluster:
    """A namespace of its own on the plane."""

    plane: Plane
    namespace: str
    backend: VolcanoBackend

    @classmethod
    def make(cls, plane: Plane, namespace: str, user: str = "admin") -> "Cluster":
        """Make the namespace and wait for its service account, without which no pod is admitted."""
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        plane.wait("service account", lambda: plane.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default"))
        return cls(plane, namespace, cls.backend_of(plane, namespace, user))

    @staticmethod
    def backend_of(plane: Plane, namespace: str, user: str = "admin") -> VolcanoBackend:
        """A backend as this user."""
        target = Target.choose(environ={"KUBECONFIG": str(plane.kubeconfig(user))})
        return VolcanoBackend(Kube(target), namespace, Store.default())

    def clean(self) -> None:
        """Let the namespace go; its pods free their nodes at once."""
        self.plane.request("DELETE", f"/apis/batch.volcano.sh/v1alpha1/namespaces/{self.namespace}/jobs", {"propagationPolicy": "Background"})
        for pod in self.pods():
            with contextlib.suppress(PlaneError):  # it may be gone by now
                self.plane.request("PATCH", f"/api/v1/namespaces/{self.namespace}/pods/{pod}", {"metadata": {"annotations": {"t/stuck": None}}}, "application/merge-patch+json")
        self.plane.request("DELETE", f"/api/v1/namespaces/{self.namespace}")
        self.plane.wait("pods gone", lambda: not self.pods())

    # ---- sending ---------------------------------------------------------------------------------------------------

    def submission(self, behaviour: dict[str, str] | None = None, *, rerun: bool = False, **change: Any) -> Submission:
        """A submission whose pods behave so; `change` is merged into the spec."""
        spec = merged(merged(SPEC, {"cluster": {"namespace": self.namespace, "annotations": behaviour or {}}}), change)
        return Submission(plan_of(spec), yaml.safe_dump(spec), rerun=rerun)

    def submit(self, behaviour: dict[str, str] | None = None, **change: Any) -> Submitted:
        """Submit such a job."""
        return self.backend.submit(self.submission(behaviour, **change))

    # ---- looking ---------------------------------------------------------------------------------------------------

    def get(self, path: str) -> dict[str, Any]:
        """An object of the namespace by path below it (``pods/x``)."""
        found: dict[str, Any] = self.plane.request("GET", f"/api/v1/namespaces/{self.namespace}/{path}")
        return found

    def job(self, name: str = "train") -> dict[str, Any]:
        """The Volcano Job."""
        found: dict[str, Any] = self.plane.request("GET", f"/apis/batch.volcano.sh/v1alpha1/namespaces/{self.namespace}/jobs/{name}")
        return found

    def pods(self) -> list[str]:
        """Names of the pods."""
        return [pod["metadata"]["name"] for pod in self.get("pods")["items"]]

    def namespace_has_no_jobs(self) -> bool:
        """True once all jobs are gone."""
        return not self.plane.request("GET", f"/apis/batch.volcano.sh/v1alpha1/namespaces/{self.namespace}/jobs")["items"]

    def until(self, what: str, done: Callable[[JobView], Any], name: str = "train", seconds: float = 40.0) -> JobView:
        """The view for which this first holds."""
        found: list[JobView] = []

        def look() -> bool:
            found[:] = [self.backend.get(name)]
            return bool(done(found[0]))

        try:
            self.plane.wait(what, look, seconds)
        except PlaneError as error:
            raise AssertionError(f"{error}; last seen: {found[0] if found else None}") from error
        return found[0]

    def until_phase(self, phase: str, name: str = "train") -> JobView:
        """The view once Volcano reports this phase."""
        return self.until(phase, lambda view: view.phase == phase, name)


@dataclass
class Seen:
    """Follows a job in the background as ``submit --follow`` does, and keeps every state without repeats."""

    backend: VolcanoBackend
    name: str = "train"
    states: list[str] = field(default_factory=list)
    last: JobView | None = None
    error: Exception | None = None

    def run_until(self, done: Callable[[JobView], bool], seconds: float = 60.0) -> "Seen":
        """Follow until this holds."""
        source = self.backend.events(self.name)
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self.last = self.backend.get(self.name)
                if not self.states or self.states[-1] != self.last.state:
                    self.states.append(self.last.state.value)
                if done(self.last):
                    return self
                time.sleep(0.05)
            raise AssertionError(f"not within {seconds} s: {self.states} {self.last}")
        finally:
            source.close()

    def in_background(self, done: Callable[[JobView], bool], seconds: float = 60.0) -> threading.Thread:
        """The same in a thread of its own; `error` is set where it fails."""
        def run() -> None:
            try:
                self.run_until(done, seconds)
            except Exception as error:
                self.error = error

        thread = threading.Thread(target=run)
        thread.start()
        return thread


def unrepeated(values: Iterator[str] | list[str]) -> list[str]:
    """Values without immediate repeats."""
    return [value for value, _group in itertools.groupby(values)]
