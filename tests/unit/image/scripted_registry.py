"""A registry on loopback that behaves as a test says: a real HTTP server with the parts of the distribution API that we use."""

import hashlib
import http.server
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from loopback import serving_http


@dataclass
class State:
    """What the registry holds and how it behaves. `script` may answer a request itself: (status, headers, body)."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    script: Callable[[str, str, dict[str, str]], tuple[int, dict[str, str], bytes] | None] = lambda method, path, headers: None
    address: str = ""


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        length = int(headers.get("content-length", "0"))
        body = self.rfile.read(length) if length else b""
        self.state.seen.append((self.command, self.path, headers))
        try:
            scripted = self.state.script(self.command, self.path, headers)
        except ConnectionResetError:
            self.close_connection = True
            return None
        if scripted is not None:
            return self._answer(*scripted)
        if found := re.search(r"/manifests/(.+)$", self.path):
            return self._manifest(found[1], body, headers)
        if "/blobs/uploads" in self.path:
            return self._upload(body)
        if found := re.search(r"/blobs/(sha256:[0-9a-f]+)$", self.path):
            content = self.state.blobs.get(found[1])
            return self._answer(404) if content is None else self._answer(200, {}, content)
        return self._answer(404)

    def _manifest(self, version: str, body: bytes, headers: dict[str, str]) -> None:
        if self.command == "PUT":
            entry = (body, headers["content-type"])
            self.state.manifests[version] = self.state.manifests[digest_of(body)] = entry
            return self._answer(201)
        if version not in self.state.manifests:
            return self._answer(404, {}, json.dumps({"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}).encode())
        content, kind = self.state.manifests[version]
        return self._answer(200, {"Content-Type": kind, "Docker-Content-Digest": digest_of(content)}, content)

    def _upload(self, body: bytes) -> None:
        if self.command == "POST":
            return self._answer(202, {"Location": "/v2/train/image/blobs/uploads/one?state=x"})
        if self.command == "DELETE":
            return self._answer(204)
        wanted = re.search(r"digest=(sha256:[0-9a-f]+)", self.path)
        assert wanted is not None
        if digest_of(body) != wanted[1]:
            return self._answer(400, {}, json.dumps({"errors": [{"code": "DIGEST_INVALID", "message": "provided digest did not match"}]}).encode())
        self.state.blobs[wanted[1]] = body
        return self._answer(201)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve


@contextmanager
def serving() -> Iterator[State]:
    """A registry that runs as long as the block."""
    state = State()
    handler = type("BoundHandler", (Handler,), {"state": state})
    with serving_http(handler) as state.address:
        yield state
