"""Measurements of the cluster side for dev/LOG.md: ``python tests/cluster/measure.py [submit] [explain] [follow MINUTES] [list]``.

Not a test: figures, not verdicts. Runs its own control plane with the stand-in (or real Volcano, see `plane`).
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import programs

sys.path.insert(0, str(Path(__file__).parents[1] / "fake"))

from cases import SPEC, Cluster, merged, plan_of
from plane import Plane, PlaneError
from scripted import Answer, ScriptedServer

from nanochat_npu.backends.volcano import _objects
from nanochat_npu.cluster.read import read_jobs
from nanochat_npu.render import render


def rendered_job(name: str, nodes: int) -> dict[str, Any]:
    """A Volcano Job as we render it, with the status of a running one."""
    spec = merged(SPEC, {"name": name, "resources": {"nodes": nodes}, "cluster": {"namespace": "train"}})
    job = _objects(dict(render(plan_of(spec)).files), "train")[-1]
    job["metadata"].update(uid=name, creationTimestamp="2026-11-30T00:00:00Z", resourceVersion="5")
    job["status"] = {"state": {"phase": "Running", "lastTransitionTime": "2026-11-30T00:01:00Z"}, "running": nodes, "retryCount": 0}
    return job


def measure_list(count: int) -> None:
    """`list` of many jobs against a server that answers at once, beside the bare transfer of the same bytes."""
    pages = [
        json.dumps({"metadata": {"resourceVersion": "9", "continue": mark}, "items": [rendered_job(f"job-{n}", 2) for n in part]}).encode()
        for part, mark in ((range(count // 2), "more"), (range(count // 2, count), ""))
    ]
    server = ScriptedServer()
    server.on("GET", "/jobs", *(Answer(200, page) for _round in range(8) for page in pages))
    kube = server.client(Path(tempfile.mkdtemp()))
    kube.raw("/apis/batch.volcano.sh/v1alpha1/namespaces/train/jobs?limit=500")  # connects; takes the first page
    kube.raw("/apis/batch.volcano.sh/v1alpha1/namespaces/train/jobs?limit=500")
    begun = time.perf_counter()
    for _page in pages:
        kube._open(kube._call("list", _JOBS, "train"), "GET", _JOBS.path("train"), {}).read()
    bare = time.perf_counter() - begun
    begun = time.perf_counter()
    views = read_jobs(kube, "train")
    whole = time.perf_counter() - begun
    server.close()
    size = sum(map(len, pages)) / 1e6
    print(f"list of {len(views)} jobs ({size:.1f} MB): {whole:.2f} s, of which transfer {bare:.2f} s; ours {whole - bare:.2f} s", flush=True)


def measure_submit(cluster: Cluster) -> None:
    """Client-side time and requests of a submit, by number of workers."""
    for workers in (1, 16, 512):
        kube = cluster.backend.kube
        kube.requests.clear()
        submission = cluster.submission(name=f"s{workers}", resources={"nodes": workers, "npus_per_node": 8})
        begun, cpu = time.perf_counter(), time.process_time()
        cluster.backend.submit(submission)
        took, cpu = time.perf_counter() - begun, time.process_time() - cpu
        print(f"submit of {workers} workers: {took:.2f} s wall, {cpu:.2f} s CPU, {sum(kube.requests.values())} requests {kube.requests}", flush=True)
        cluster.backend.control.delete(f"s{workers}")


def measure_explain(cluster: Cluster, nodes: int) -> None:
    """`explain` of a job that waits, with so many nodes."""
    from nanochat_npu.cluster.gather import gather
    from nanochat_npu.explain import explain

    cluster.submit(name="wide", resources={"nodes": 2}, cluster={"node_selector": {"accelerator-type": "card-910b-2"}})
    cluster.until("waiting", lambda view: bool(view.reason), "wide")
    kube = cluster.backend.kube
    kube.requests.clear()
    begun, cpu = time.perf_counter(), time.process_time()
    facts = gather(kube, cluster.namespace, "wide").facts
    read = time.perf_counter() - begun
    answer = explain(facts)
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(f"explain with {nodes} nodes: {took:.2f} s, of which reading {read:.2f} s ({cpu:.2f} s CPU, {sum(kube.requests.values())} requests): {answer.rule} {answer.cause}", flush=True)


def measure_follow(cluster: Cluster, minutes: float) -> None:
    """CPU, memory and requests of following a 512-worker job whose pods change all the time."""
    cluster.submit(name="big", resources={"nodes": 512})
    print("512 workers:", cluster.until("running", lambda view: view.phase == "Running", "big", 600).state, flush=True)
    home = Path(tempfile.mkdtemp())
    counter = home / "requests"
    code = (
        "import json,sys,time,pathlib;"
        "from nanochat_npu.backends.volcano import connect;"
        f"b=connect(namespace={cluster.namespace!r});s=b.events('big');end=time.monotonic()+{minutes * 60};n=0\n"
        "while time.monotonic()<end:\n    v=b.get('big');s.poll();n+=1;time.sleep(1)\n"
        f"pathlib.Path({str(counter)!r}).write_text(json.dumps([b.kube.requests,len(v.workers),n]))\n"
        "s.close()"
    )
    environ = {**os.environ, "KUBECONFIG": str(cluster.plane.kubeconfig()), "NANOCHAT_NPU_HOME": str(home)}
    process = subprocess.Popen([sys.executable, "-c", code], env=environ)
    done = threading.Event()
    changes = [0]

    def churn() -> None:
        while not done.is_set():
            for index in range(512):
                if done.wait(0.05):
                    return
                try:
                    path = f"/api/v1/namespaces/{cluster.namespace}/pods/big-worker-{index}"
                    cluster.plane.request("PATCH", path, {"metadata": {"annotations": {"t/beat": str(time.time())}}}, "application/merge-patch+json")
                    changes[0] += 1
                except PlaneError:
                    continue

    thread = threading.Thread(target=churn)
    thread.start()
    peak = 0
    while process.poll() is None:
        time.sleep(0.5)
        peak = max(peak, _rss_bytes(process.pid))
    usage = os.times()
    done.set()
    thread.join()
    requests, workers, looks = json.loads(counter.read_text())
    hourly = {verb: round(count * 60 / minutes, 1) for verb, count in requests.items()}
    print(
        f"follow of {workers} workers for {minutes:g} min, {changes[0]} changes of pods, {looks} looks: peak {peak / 1e6:.0f} MB, "
        f"{usage.children_user + usage.children_system:.1f} s CPU, requests {requests} (per hour {hourly})", flush=True,
    )


def _rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def main(words: list[str]) -> None:
    """Run what was asked for, all without arguments."""
    if not words or "list" in words:
        measure_list(1000)
    if words == ["list"]:
        return
    built = programs.build()
    volcano = os.environ.get("NANOCHAT_VOLCANO_BIN")
    plane = Plane(Path(tempfile.mkdtemp()) / "p", built, Path(volcano) if volcano else None)
    os.environ["NANOCHAT_NPU_HOME"] = tempfile.mkdtemp()
    try:
        plane.up(nodes=4)
        print({name: round(seconds, 1) for name, seconds in plane.times.items()}, flush=True)
        cluster = Cluster.make(plane, "measure")
        if not words or "submit" in words:
            measure_submit(cluster)
        if not words or "explain" in words:
            for number in range(4, 1000):
                plane.add_node(f"npu-{number:03d}")
            measure_explain(cluster, 1000)
        if not words or "follow" in words:
            for number in range(4, 520) if words else ():
                plane.add_node(f"npu-{number:03d}")
            minutes = float(words[words.index("follow") + 1]) if "follow" in words else 10.0
            measure_follow(cluster, minutes)
    finally:
        plane.down()


if __name__ == "__main__":
    from nanochat_npu.resources import JOBS as _JOBS

    main(sys.argv[1:])
