"""An API server that does what a healthy one will not: answers from a script, on loopback.

A script maps a method and a path to answers, given one after the other; the last is repeated. Everything that was asked is
kept in `requests`.
"""

import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from nanochat_npu.kube import Clock, Kube
from nanochat_npu.kubeconfig import Target


@dataclass(frozen=True)
class Answer:
    """One answer. `lines` make it a stream that ends after the last; `reset` breaks the connection instead of answering."""

    code: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    lines: tuple[Any, ...] = ()
    reset: bool = False
    then: Callable[[], None] | None = None
    """Called when the request has come in, before the answer: what the server stored although its answer is lost."""
    uid: str = ""
    """Answer with the object that was sent, under this uid, as a server does that creates it."""


def ok(body: Any, **headers: str) -> Answer:
    """200 with an object."""
    return Answer(200, body, {key.replace("_", "-"): value for key, value in headers.items()})


def status(code: int, message: str = "", reason: str = "", *, headers: dict[str, str] | None = None, **details: Any) -> Answer:
    """A Kubernetes Status."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code, "details": details}
    return Answer(code, body, headers or {})


def stream(*changes: Any) -> Answer:
    """A watch: each change a line."""
    return Answer(lines=changes)


def change(kind: str, obj: Any) -> dict[str, Any]:
    """One line of a watch."""
    return {"type": kind, "object": obj}


class ScriptedServer:
    """Serves until `close`."""

    def __init__(self) -> None:
        self.rules: list[tuple[str, re.Pattern[str], list[Answer]]] = []
        self.requests: list[tuple[str, str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            """Answers from the script."""

            protocol_version = "HTTP/1.1"

            def _do(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                answer = outer._next(self.command, self.path, json.loads(raw) if raw else None, dict(self.headers))
                if answer.then:
                    answer.then()
                self._send(answer)

            do_GET = do_POST = do_PATCH = do_DELETE = _do

            def _send(self, answer: Answer) -> None:
                if answer.reset:
                    # RST instead of a proper end, as when a load balancer drops the connection.
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                    self.close_connection = True
                    return
                self.send_response(answer.code)
                self.send_header("Content-Type", answer.content_type)
                for key, value in answer.headers.items():
                    self.send_header(key, value)
                if answer.lines:
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    for line in answer.lines:
                        data = (line if isinstance(line, str) else json.dumps(line) + "\n").encode()
                        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                    self.wfile.write(b"0\r\n\r\n")
                    return
                data = answer.body if isinstance(answer.body, bytes) else b"" if answer.body is None else json.dumps(answer.body).encode()
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        class Server(ThreadingHTTPServer):
            """Says nothing about connections that were reset."""

            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Quiet: broken connections are what this is for."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def on(self, method: str, path: str, *answers: Answer) -> "ScriptedServer":
        """Answer requests whose path (with query) matches this pattern; rules that came later win."""
        self.rules.insert(0, (method, re.compile(path), list(answers)))
        return self

    def _next(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Answer:
        with self._lock:
            self.requests.append((method, path, body))
            self.headers.append(headers)
            self._lock.notify_all()
            for wanted, pattern, answers in self.rules:
                if wanted == method and pattern.search(path):
                    answer = answers.pop(0) if len(answers) > 1 else answers[0]
                    return replace(answer, body={**body, "metadata": {**body["metadata"], "uid": answer.uid}}) if answer.uid else answer
        return status(404, "the server could not find the requested resource", "NotFound")

    def asked(self, method: str, path: str = "") -> list[str]:
        """Paths of the requests that were made by this method."""
        return [asked for verb, asked, _body in self.requests if verb == method and re.search(path, asked)]

    def until_asked(self, method: str, path: str, times: int) -> None:
        """Wait until this has been asked so often."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.asked(method, path)) >= times, timeout=20), self.requests

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    # ---- clients ---------------------------------------------------------------------------------------------------

    def kubeconfig(self, folder: Path, user: dict[str, Any] | None = None, name: str = "config") -> Path:
        """A kubeconfig for this server."""
        path = folder / name
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": user or {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "train"}}],
        }))
        return path

    def client(self, folder: Path, user: dict[str, Any] | None = None) -> Kube:
        """A client whose waiting takes no time."""
        return Kube(Target.choose(environ={"KUBECONFIG": str(self.kubeconfig(folder, user))}), clock=QuickClock())


class QuickClock(Clock):
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.time = 0.0
        self.waits: list[float] = []

    def now(self) -> float:
        """Seconds waited so far."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Waited, without waiting."""
        self.waits.append(seconds)
        self.time += seconds


def listing(objects: Iterable[dict[str, Any]], version: str = "10", mark: str = "") -> dict[str, Any]:
    """A list as the server sends it."""
    return {"kind": "List", "metadata": {"resourceVersion": version, **({"continue": mark} if mark else {})}, "items": list(objects)}
