"""A local HTTP server of shards that drops, truncates, corrupts, redirects and rate-limits as it is told."""

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


@dataclass
class Answer:
    """What to do with one request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Instead of the file."""
    drop_after: int | None = None
    """Bytes after which the connection is cut."""
    ignore_range: bool = False
    corrupt: bool = False


Rule = Callable[[str, int], Answer]
"""Answer to the n-th request (from 0) for a file name."""


class FlakyServer:
    """Files by name; `rule` decides how each request is answered."""

    def __init__(self, files: dict[str, bytes], rule: Rule = lambda name, n: Answer()) -> None:
        self.files, self.rule = files, rule
        self.requests: list[tuple[str, str | None, str | None]] = []
        self.counts: Counter[str] = Counter()
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.url = ""

    @contextmanager
    def running(self) -> Iterator["FlakyServer"]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner.answer(self)

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that hangs up is part of the game
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        name = (parse_qs(parts.query).get("FilePath") or [parts.path.rsplit("/", 1)[-1]])[0]
        with self.lock:
            self.requests.append((request.path, request.headers.get("Range"), request.headers.get("Authorization")))
            number = self.counts[name]
            self.counts[name] += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self._send(request, self.rule(name, number), name)
        finally:
            with self.lock:
                self.at_once -= 1

    def _send(self, request: BaseHTTPRequestHandler, answer: Answer, name: str) -> None:
        content = self.files.get(name)
        status = answer.status if content is not None or answer.status != 200 else 404
        body = answer.body if answer.body is not None else (content or b"") if status == 200 else b"no"
        if answer.corrupt:
            body = bytes([*body[:100], body[100] ^ 1, *body[101:]])
        wanted = request.headers.get("Range")
        headers = {"ETag": f'"{hashlib.md5(body).hexdigest()}"', **answer.headers}
        if status == 200 and wanted and not answer.ignore_range:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                status, body = 416, b""
            else:
                status, headers["Content-Range"] = 206, f"bytes {start}-{len(body) - 1}/{len(body)}"
                body = body[start:]
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if answer.drop_after is not None:
            request.wfile.write(body[: answer.drop_after])
            request.wfile.flush()
            request.close_connection = True
            request.connection.shutdown(2)
        else:
            request.wfile.write(body)
