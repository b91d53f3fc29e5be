"""What the cluster commands cost: time, processor, memory, requests; beside what the server alone takes.

    python dev/bench_cluster.py [list] [submit] [explain] [follow] [--minutes 10] [--nodes 1000]

Without a word everything. Runs a control plane of its own (``tests/cluster/plane.py``, built once by ``make test-cluster``) with
the stand-in for Volcano, or with the real one where ``NANOCHAT_VOLCANO_BIN`` names it. The load average stands beside each
figure: the server, the simulated nodes and the client share this computer's processors.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fake"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cluster"))

import programs
from cases import SPEC, Cluster, merged, plan_of
from plane import Plane, PlaneError
from scripted import Answer, ScriptedServer

from nanochat_npu.backends.volcano import _objects
from nanochat_npu.cluster.capacity import read as read_capacity
from nanochat_npu.cluster.gather import gather
from nanochat_npu.cluster.read import read_jobs
from nanochat_npu.explain import explain
from nanochat_npu.kube import Kube
from nanochat_npu.render import render
from nanochat_npu.resources import JOBS, NODES, PODS


def say(text: str) -> None:
    """A figure, with the load of the last minute."""
    print(f"{text} [load {os.getloadavg()[0]:.1f}]", flush=True)


def bare_seconds(kube: Kube, path: str, query: dict[str, str]) -> tuple[float, int]:
    """Seconds and bytes of one request whose answer is read and thrown away: the server's own part."""
    begun = time.perf_counter()
    response = kube._open(kube._call("list", JOBS, None), "GET", path, query)
    size = len(response.read())
    response.release_conn()
    return time.perf_counter() - begun, size


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
        kube._open(kube._call("list", JOBS, "train"), "GET", JOBS.path("train"), {}).read()
    bare = time.perf_counter() - begun
    begun, cpu = time.perf_counter(), time.thread_time()
    views = read_jobs(kube, "train")
    whole, cpu = time.perf_counter() - begun, time.thread_time() - cpu
    server.close()
    size = sum(map(len, pages)) / 1e6
    say(f"list of {len(views)} jobs ({size:.1f} MB): {whole:.2f} s, of which transfer {bare:.2f} s; ours {whole - bare:.2f} s, {cpu:.2f} s CPU")


def measure_submit(cluster: Cluster) -> None:
    """Client-side time and requests of a submit, by number of workers."""
    for workers in (1, 16, 512):
        kube = cluster.backend.kube
        kube.requests.clear()
        submission = cluster.submission(name=f"s{workers}", resources={"nodes": workers, "npus_per_node": 8})
        begun, cpu = time.perf_counter(), time.process_time()
        cluster.backend.submit(submission)
        took, cpu = time.perf_counter() - begun, time.process_time() - cpu
        say(f"submit of {workers} workers: {took:.2f} s wall, {cpu:.2f} s CPU, {sum(kube.requests.values())} requests {kube.requests}")
        cluster.backend.control.delete(f"s{workers}")


def measure_explain(cluster: Cluster, nodes: int) -> None:
    """`explain` of a job that waits, and `capacity`, with so many nodes; beside the bare answers, one after the other."""
    cluster.submit(name="wide", resources={"nodes": 2}, cluster={"node_selector": {"accelerator-type": "card-910b-2"}})
    cluster.until("waiting", lambda view: bool(view.reason), "wide")
    kube = cluster.backend.kube
    for _round in range(3):
        bare = {what.plural: bare_seconds(kube, what.path(), {"resourceVersion": "0"}) for what in (NODES, PODS)}
        kube.requests.clear()
        begun, cpu = time.perf_counter(), time.process_time()
        facts = gather(kube, cluster.namespace, "wide").facts
        read = time.perf_counter() - begun
        answer = explain(facts)
        took, cpu = time.perf_counter() - begun, time.process_time() - cpu
        alone = ", ".join(f"{name} {seconds:.2f} s for {size / 1e6:.1f} MB" for name, (seconds, size) in bare.items())
        say(f"explain with {nodes} nodes: {took:.2f} s ({read:.2f} s reading), {cpu:.2f} s CPU, {sum(kube.requests.values())} requests, rule {answer.rule}; server alone: {alone}")
        begun, cpu = time.perf_counter(), time.process_time()
        found = read_capacity(kube, cluster.namespace)
        say(f"capacity with {len(found.nodes)} nodes: {time.perf_counter() - begun:.2f} s, {time.process_time() - cpu:.2f} s CPU")


def measure_follow(cluster: Cluster, minutes: float) -> None:
    """CPU, memory and requests of following a 512-worker job whose pods change all the time."""
    cluster.submit(name="big", resources={"nodes": 512})
    say(f"512 workers: {cluster.until('running', lambda view: view.phase == 'Running', 'big', 600).state}")
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
    say(
        f"follow of {workers} workers for {minutes:g} min, {changes[0]} changes of pods, {looks} looks: peak {peak / 1e6:.0f} MB, "
        f"{usage.children_user + usage.children_system:.1f} s CPU, requests {requests} (per hour {hourly})"
    )


def _rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="*", help="list, submit, explain, follow")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--nodes", type=int, default=1000)
    given = parser.parse_args()
    what = set(given.what) or {"list", "submit", "explain", "follow"}
    if "list" in what:
        measure_list(1000)
    if what == {"list"}:
        return
    volcano = os.environ.get("NANOCHAT_VOLCANO_BIN")
    plane = Plane(Path(tempfile.mkdtemp()) / "p", programs.build(), Path(volcano) if volcano else None)
    os.environ["NANOCHAT_NPU_HOME"] = tempfile.mkdtemp()
    have = 4
    try:
        plane.up(nodes=have)
        say(f"plane: {({name: round(seconds, 1) for name, seconds in plane.times.items()})}")
        cluster = Cluster.make(plane, "measure")
        if "submit" in what:
            measure_submit(cluster)
        for part, needed in (("explain", given.nodes), ("follow", 520)):
            if part not in what:
                continue
            for number in range(have, needed):
                plane.add_node(f"npu-{number:03d}")
            have = max(have, needed)
            if part == "explain":
                plane.wait("ready", lambda: all(node_is_ready(node) for node in plane.request("GET", "/api/v1/nodes")["items"]), 300)
                measure_explain(cluster, given.nodes)
            else:
                measure_follow(cluster, given.minutes)
    finally:
        plane.down()


def node_is_ready(node: dict[str, Any]) -> bool:
    """True once kwok plays the node."""
    return any(item["type"] == "Ready" and item["status"] == "True" for item in node.get("status", {}).get("conditions", []))


if __name__ == "__main__":
    main()
