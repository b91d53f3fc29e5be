"""A job's output from its pods, line by line, each with who wrote it.

A pod's output is its launcher's: lines of its first rank as they are, lines of its other ranks after ``[rank N]`` (only on the
first worker rank 0 is bare, elsewhere every line names its rank). Pods of earlier attempts are gone; their logs are on the
output volume and are fetched from there.
"""

import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nanochat_npu import local_logs, partial
from nanochat_npu.backends import LogLine, LogQuery
from nanochat_npu.cluster.files import Remote
from nanochat_npu.cluster.follow import FIRST_LOOK_S, LogReader, worker_of_rank
from nanochat_npu.cluster.helper import mounted_of, opened
from nanochat_npu.cluster.read import pods_of, read_job, selector
from nanochat_npu.errors import ClusterError
from nanochat_npu.i18n import _
from nanochat_npu.job_state import FINAL_PHASES, JobObjects, attempt_of, owned_pods, plan_of, pod_state
from nanochat_npu.jobs import JobFolder
from nanochat_npu.kube import Kube, LogOptions
from nanochat_npu.kube_errors import NotFoundError
from nanochat_npu.resources import JOBS, PODS
from nanochat_npu.watch import Informer, Scope

__all__ = ["fetch_attempts", "read_logs"]

_RANK = re.compile(r"\[rank (\d+)\] ")
SILENCE_S = 5.0
POLL_S = 0.3
"""Between two looks at what the readers have brought; nothing is asked of the server."""


def read_logs(kube: Kube, namespace: str, name: str, query: LogQuery) -> Iterator[LogLine]:
    """Lines of the job's output; with ``follow`` through restarts until the job has ended.

    Attempts whose pods are gone, and the question which rank failed first, are answered from the output volume.

    Raises:
        JobNotFound: There is no such job.
        ClusterError: The volume has no such attempt either.
    """
    job = read_job(kube, namespace, name)
    if query.first_failure or query.attempt not in (None, attempt_of(job)):
        yield from _from_volume(kube, namespace, name, job, query)
    elif query.follow:
        yield from _follow(kube, namespace, name, query)
    else:
        for pod in _wanted(job, pods_of(kube, namespace, name), query):
            yield from _one_pod(kube, namespace, pod, query)


def _from_volume(kube: Kube, namespace: str, name: str, job: dict[str, Any], query: LogQuery) -> Iterator[LogLine]:
    """Fetch the attempt's logs through a helper pod and read them as those of a local job: the folder is the same tree."""
    mounted = mounted_of(job)
    with tempfile.TemporaryDirectory(prefix="nanochat-npu-") as scratch:
        folder = JobFolder(Path(scratch) / name)
        with opened(kube, namespace, mounted) as pod:
            fetch_attempts(Remote(kube, namespace, pod, mounted.root), folder.path, query.attempt)
        yield from local_logs.read(folder, query, still_running=lambda: False)


def fetch_attempts(remote: Remote, to: Path, attempt: int | None) -> None:
    """Bring the logs and verdicts of one attempt (None: of all) to a folder of the same layout.

    Raises:
        ClusterError: The volume has no such attempt.
    """
    try:
        found = remote.entries("attempts" if attempt is None else f"attempts/{attempt}", recursive=True)
    except ClusterError as error:
        raise ClusterError(
            _("attempt {attempt} has left no files on the output volume").format(attempt="-" if attempt is None else attempt), where=remote.root,
            hint=_("see what there is with: nanochat-npu files ls {name}:attempts").format(name=to.name),
        ) from error
    for entry in found:
        if entry.kind == "file" and entry.path.endswith((".log", "verdict.json")):
            remote.fetch(entry.path, to / entry.path)


def _wanted(job: dict[str, Any], pods: list[dict[str, Any]], query: LogQuery) -> list[dict[str, Any]]:
    mine = owned_pods(JobObjects(job, None, pods))
    if query.rank is None:
        return mine
    worker = worker_of_rank(query.rank, _ranks_per_worker(job))
    return mine[worker : worker + 1]


def _ranks_per_worker(job: dict[str, Any]) -> int:
    return partial.integer(plan_of(job), "npus_per_node") or 1


def _options(query: LogQuery) -> LogOptions:
    return LogOptions(since_s=query.since_s, tail=query.tail)


def _one_pod(kube: Kube, namespace: str, pod: dict[str, Any], query: LogQuery) -> Iterator[LogLine]:
    name = partial.text(pod, "metadata", "name")
    state = pod_state(pod)
    if partial.text(pod, "status", "phase") in ("", "Pending"):
        yield LogLine(name, _("(no output yet: {state})").format(state=state))
        return
    try:
        stream = kube.log(namespace, name, _options(query))
    except NotFoundError:
        return  # it went while we looked
    for line in stream.lines():
        found = _as_line(name, line, query.rank)
        if found is not None:
            yield found


def _as_line(pod: str, line: str, only: int | None) -> LogLine | None:
    """The line with its writer; None if another rank's output was not asked for."""
    worker = int(pod.rpartition("-")[2]) if pod.rpartition("-")[2].isdigit() else 0
    match = _RANK.match(line)
    rank = int(match[1]) if match else (0 if worker == 0 else None)
    if only is not None and rank != only:
        return None
    text = line[match.end():] if match else line
    return LogLine(f"rank {rank}" if rank is not None else f"worker {worker}", text)


def _follow(kube: Kube, namespace: str, name: str, query: LogQuery) -> Iterator[LogLine]:
    """Read all wanted pods at once, and those of later attempts as watches bring them."""
    readers: dict[str, tuple[str, LogReader]] = {}
    jobs = Informer(kube, Scope(JOBS, namespace, fields=f"metadata.name={name}")).start()
    pods = Informer(kube, Scope(PODS, namespace, labels=selector(name))).start()
    try:
        ended, heard_s = False, time.monotonic()
        # A log ends with its container; that of a pod on a dead node never does, so silence after the job's end is enough.
        while not (ended and (all(reader.ended for _pod, reader in readers.values()) or time.monotonic() - heard_s > SILENCE_S)):
            for informer in (jobs, pods):
                informer.ready(FIRST_LOOK_S)
                informer.check()
            job = jobs.get(name)
            ended = job is None or partial.text(job, "status", "state", "phase") in FINAL_PHASES | {"Aborted"}
            for pod in _wanted(job or jobs.last_seen(name) or {}, pods.objects(), query):
                uid, pod_name = partial.text(pod, "metadata", "uid"), partial.text(pod, "metadata", "name")
                if uid not in readers and partial.text(pod, "status", "phase") in ("Running", "Succeeded", "Failed"):
                    readers[uid] = (pod_name, LogReader(kube, namespace, pod_name, _options(query)).start())
            for line in _drain(readers, query):
                heard_s = time.monotonic()
                yield line
            heard_s = heard_s if ended else time.monotonic()
            time.sleep(POLL_S)
        yield from _drain(readers, query)
    finally:
        for watcher in (jobs, pods):
            watcher.stop()
        for _pod, reader in readers.values():
            reader.close()


def _drain(readers: dict[str, tuple[str, LogReader]], query: LogQuery) -> Iterator[LogLine]:
    """Lines that have come in since the last call."""
    for pod, reader in readers.values():
        for line in reader.take():
            found = _as_line(pod, line, query.rank)
            if found is not None:
                yield found
