"""Following one job: its objects by watches, the trainer's events from the output of the worker that has rank 0.

Nothing is asked again and again: two watches that the server keeps open for half an hour each, one open log. While the job
waits, its PodGroup (the scheduler's reason) is looked at every half minute.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from nanochat.contract import events
from nanochat_npu import partial
from nanochat_npu.backends import JobView
from nanochat_npu.cluster.read import job_events, podgroup_of, pods_of, selector
from nanochat_npu.errors import JobNotFound, NanochatNpuError
from nanochat_npu.i18n import _
from nanochat_npu.job_state import FINAL_PHASES, JobObjects, job_view, owned_pods
from nanochat_npu.kube import Kube, LogOptions, Stream
from nanochat_npu.resources import JOBS, PODS
from nanochat_npu.watch import Informer, Scope

__all__ = ["Follower", "LogReader", "worker_of_rank"]

FIRST_LOOK_S = 60.0
REASON_EVERY_S = 30.0
_KEPT = 100_000
"""Events kept until somebody polls: hours of a trainer that writes ten a second."""


def worker_of_rank(rank: int, ranks_per_worker: int) -> int:
    """Index of the worker that runs a rank."""
    return rank // max(1, ranks_per_worker)


class Follower:
    """One job, followed until `close`. Use it from one thread."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self._kube, self._namespace, self._name = kube, namespace, name
        self._changed = threading.Event()
        self._jobs = Informer(kube, Scope(JOBS, namespace, fields=f"metadata.name={name}"), self._changed.set).start()
        self._pods = Informer(kube, Scope(PODS, namespace, labels=selector(name)), self._changed.set).start()
        self._readers: dict[str, LogReader] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._ended: list[dict[str, Any]] | None = None
        self._reason: tuple[float, dict[str, Any] | None, list[dict[str, Any]]] = (float("-inf"), None, [])

    def view(self) -> JobView:
        """The job as it is now, from what the watches brought; once it is gone, as it was last seen.

        Raises:
            JobNotFound: It never existed.
            ClusterError: Following failed (rights, or half an hour without a server).
        """
        for informer in (self._jobs, self._pods):
            informer.ready(FIRST_LOOK_S)
            informer.check()
        job = self._jobs.get(self._name)
        gone = job is None
        job = job or self._jobs.last_seen(self._name)
        if job is None:
            raise JobNotFound(_("there is no job of this name in namespace {namespace}").format(namespace=self._namespace), where=self._name)
        podgroup, told = self._why(job) if not gone else (None, [])
        return job_view(JobObjects(job, podgroup, self._last_pods(job, gone=gone), told, time.time(), gone=gone))

    def _last_pods(self, job: dict[str, Any], *, gone: bool) -> list[dict[str, Any]]:
        """The pods; of a job that has just ended asked for once more, since the watch of the jobs may be ahead of theirs."""
        seen = self._pods.objects()
        if gone or partial.text(job, "status", "state", "phase") not in FINAL_PHASES:
            return seen
        if self._ended is None:
            try:
                self._ended = pods_of(self._kube, self._namespace, self._name)
            except NanochatNpuError:
                return seen
        return self._ended or seen

    def poll(self) -> list[dict[str, Any]]:
        """Events of the trainer since the last call; [] where there are none, or nobody may read the log."""
        self._attend()
        for reader in self._readers.values():
            for line in reader.take():
                event = events.parse_line(line)
                if event is not None:
                    self._events.append(event)
        found = list(self._events)
        self._events.clear()
        return found

    def close(self) -> None:
        """Let go of all connections; may be called twice."""
        for informer in (self._jobs, self._pods):
            informer.stop()
        for reader in self._readers.values():
            reader.close()

    def _why(self, job: dict[str, Any]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        phase = partial.text(job, "status", "state", "phase")
        if phase in ("Running", "Completing", "Completed", "Aborting"):
            return None, []
        looked, podgroup, told = self._reason
        if time.monotonic() - looked > REASON_EVERY_S or (phase in ("Terminated", "Failed") and not told):
            try:
                podgroup, told = podgroup_of(self._kube, job), job_events(self._kube, job)
            except NanochatNpuError:
                podgroup, told = None, []  # advice only; the watches tell when the server is really gone
            self._reason = (time.monotonic(), podgroup, told)
        return podgroup, told

    def _attend(self) -> None:
        """Listen to the worker with rank 0, in every attempt; a pod that has ended is read to its end."""
        job = self._jobs.get(self._name) or self._jobs.last_seen(self._name)
        pods = owned_pods(JobObjects(job, None, self._pods.objects()))
        for pod in pods[:1]:
            uid = partial.text(pod, "metadata", "uid")
            started = partial.text(pod, "status", "phase") in ("Running", "Succeeded", "Failed")
            if uid and started and uid not in self._readers:
                self._readers[uid] = LogReader(self._kube, self._namespace, partial.text(pod, "metadata", "name")).start()


class LogReader:
    """The output of one pod, read by a thread from its beginning to its end, through connections that break.

    Lines carry the kubelet's time stamps, so after a break only what is new is taken.
    """

    def __init__(self, kube: Kube, namespace: str, pod: str, options: LogOptions | None = None, wait: Callable[[float], bool] | None = None) -> None:
        self._kube, self._namespace, self._pod = kube, namespace, pod
        self._options = options or LogOptions()
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._lines: deque[str] = deque(maxlen=_KEPT)
        self._stream: Stream | None = None
        self._last, self._same = "", 0
        self._done = threading.Event()
        self.error: NanochatNpuError | None = None
        """Why reading ended, where that was not the end of the output."""
        self._thread = threading.Thread(target=self._run, name=f"log-{pod}", daemon=True)

    def start(self) -> "LogReader":
        """Begin; returns at once."""
        self._thread.start()
        return self

    def take(self) -> list[str]:
        """Lines since the last call, without their time stamps."""
        found = []
        while self._lines:
            found.append(self._lines.popleft())
        return found

    @property
    def ended(self) -> bool:
        """True once nothing more will come."""
        return self._done.is_set()

    def join(self, timeout_s: float) -> bool:
        """True if the output ended within this time."""
        return self._done.wait(timeout_s)

    def close(self) -> None:
        """Stop reading."""
        self._stopping.set()
        if self._stream is not None:
            self._stream.close()

    def _run(self) -> None:
        fruitless = 0
        try:
            while not self._stopping.is_set() and fruitless < 3:
                before = (self._last, self._same)
                try:
                    self._read()
                except NanochatNpuError as error:
                    self.error = error
                    fruitless += 1
                else:
                    # The server ends a log when the container ends, and also when it cuts a long connection: look once more.
                    fruitless = fruitless + 1 if (self._last, self._same) == before else 0
                if fruitless < 3 and self._wait(0.2 if not self.error else 1.0):
                    return
        finally:
            self._done.set()

    def _read(self) -> None:
        options = LogOptions(
            container=self._options.container, follow=True, timestamps=True, tail=self._options.tail if not self._last else None,
            since_s=self._options.since_s if not self._last else None, since_time=self._last,
        )
        self._stream = self._kube.log(self._namespace, self._pod, options)
        self.error = None
        resumed_at, seen = self._last, self._same
        for line in self._stream.lines():
            stamp, _blank, text = line.partition(" ")
            if resumed_at and stamp <= resumed_at:
                # The server counts in whole seconds, so after a break it repeats; lines of one moment are told apart by number.
                if stamp < resumed_at or seen > 0:
                    seen -= stamp == resumed_at
                    continue
            else:
                resumed_at = ""
            self._same = self._same + 1 if stamp == self._last else 1
            self._last = stamp
            self._lines.append(text)
            if self._stopping.is_set():
                return
