"""A chat server on the cluster, and a conversation with it through the API server's port forwarding."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cases import SUCCEED, Cluster
from test_trouble import environment

from nanochat_npu.cluster.forward import Forward
from nanochat_npu.cluster.serving import PORT, Server, server_objects
from nanochat_npu.resources import CONFIGMAPS, JOBS
from nanochat_npu.talk import answer

pytestmark = pytest.mark.cluster


@pytest.fixture
def model(cluster: Cluster) -> Iterator[list[Any]]:
    """What stands for the server in the pod: it says every word of the last message backwards, and keeps what it was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        """OpenAI's protocol, as far as a conversation needs it; chunked, as our server streams."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Healthy."""
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def do_POST(self) -> None:
            """Answer word by word."""
            messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
            asked.append(messages)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for word in messages[-1]["content"].split():
                self.chunk(f"data: {json.dumps({'choices': [{'delta': {'content': word[::-1] + ' '}}]})}\n\n")
            self.chunk("data: [DONE]\n\n")
            self.chunk("")

        def chunk(self, text: str) -> None:
            """One chunk; an empty one ends the answer."""
            data = text.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", cluster.plane.ports["served"]), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield asked
    server.shutdown()
    server.server_close()


def test_a_conversation_goes_through_the_api_server(cluster: Cluster, model: list[Any]) -> None:
    cluster.submit()
    cluster.until_phase("Running")
    with Forward(cluster.backend.kube, cluster.namespace, "train-worker-0", PORT) as forward:
        for said in ("hello world", " ".join(["x" * 20_000] * 8)):  # the second is larger than one message of the tunnel
            assert "".join(answer(forward.url, [{"role": "user", "content": said}])) == " ".join(word[::-1] for word in said.split()) + " "
    assert len(model) == 2


def test_many_connections_at_once_are_kept_apart(cluster: Cluster, model: list[Any]) -> None:
    cluster.submit()
    cluster.until_phase("Running")
    found: dict[int, str] = {}
    with Forward(cluster.backend.kube, cluster.namespace, "train-worker-0", PORT) as forward:
        def talk(number: int) -> None:
            found[number] = "".join(answer(forward.url, [{"role": "user", "content": f"number {number}"}]))

        threads = [threading.Thread(target=talk, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == {number: f"rebmun {str(number)[::-1]} " for number in range(8)}


def test_chat_with_a_job_on_the_cluster_starts_a_server_there(cluster: Cluster, model: list[Any], tmp_path: Path) -> None:
    cluster.submit(SUCCEED)
    words = [sys.executable, "-m", "nanochat_npu.main", "chat", "train", "--namespace", cluster.namespace, "--prompt", "good morning"]
    done = subprocess.run(words, env=environment(cluster, tmp_path), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "doog gninrom \n"
    job = cluster.job("train-serve")
    assert job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"huawei.com/Ascend910": "1"}


def test_a_server_listens_on_its_pods_loopback_only_and_leaves_when_idle(cluster: Cluster) -> None:
    cluster.submit()
    name, _identity, (_configmap, job) = server_objects(cluster.job(), Server(npus=8, idle_ttl_s=90), "")
    command = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"]
    assert name == "train-serve"
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--idle-ttl-s") + 1] == "90"


def test_the_server_takes_a_chat_server_whose_code_comes_by_the_jobs_configmap(cluster: Cluster) -> None:
    cluster.submit(image={"code": "configmap", "packages": "/data/packages"})
    _name, _identity, objects = server_objects(cluster.job(), Server(), "entry")
    for resource, obj in zip((CONFIGMAPS, JOBS), objects, strict=True):
        cluster.backend.kube.create(resource, obj, cluster.namespace, dry_run=True)
    (volume,) = [v for v in objects[1]["spec"]["tasks"][0]["template"]["spec"]["volumes"] if v["name"] == "job"]
    held = {name: cluster.get(f"configmaps/{source['configMap']['name']}") for source in volume["projected"]["sources"][1:] for name in [source["configMap"]["items"][0]["key"]]}
    assert all(name in found["binaryData"] for name, found in held.items())
