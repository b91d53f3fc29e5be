"""A package index on loopback (PEP 503) with small wheels: real HTTP for a real pip."""

import hashlib
import http.server
import io
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from loopback import serving_http


@dataclass
class Index:
    """Wheels by file name, and what was asked for. `broken` answers: status for a file name, or "cut" for half a file."""

    wheels: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    broken: dict[str, int | str] = field(default_factory=dict)
    host: str = ""

    @property
    def url(self) -> str:
        return f"http://{self.host}/simple"

    def fetched(self) -> list[str]:
        """Wheels that were asked for, in order."""
        return [path.rsplit("/", 1)[1] for path in self.asked if path.endswith(".whl")]


def make_wheel(name: str, version: str, tag: str = "py3-none-any", *, text: str = "") -> tuple[str, bytes]:
    """File name and content of a wheel with one module; the same arguments give the same bytes."""
    buffer, info = io.BytesIO(), f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"version = {version!r}\n{text}", f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n", f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), content)
    return f"{name}-{version}-{tag}.whl", buffer.getvalue()


def lock_line(name: str, version: str, *contents: bytes) -> str:
    return f"{name}=={version} " + " ".join(f"--hash=sha256:{hashlib.sha256(content).hexdigest()}" for content in contents)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    index: Index

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _answer(self, status: int, content: bytes, kind: str, *, cut: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if kind == "application/zip":  # as the public index has it: a file of a name never changes
            self.send_header("Cache-Control", "max-age=365000000, immutable, public")
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True

    def do_GET(self) -> None:
        self.index.asked.append(self.path)
        name = self.path.rsplit("/", 1)[1]
        if name in self.index.wheels:
            trouble = self.index.broken.get(name)
            if isinstance(trouble, int):
                return self._answer(trouble, b"no", "text/plain")
            return self._answer(200, self.index.wheels[name], "application/zip", cut=trouble == "cut")
        found = re.fullmatch(r"/simple/([a-z0-9-]+)/", self.path)
        files = [file for file in self.index.wheels if found and file.split("-")[0].replace("_", "-").lower() == found[1]]
        if not files:
            return self._answer(404, b"not here", "text/plain")
        links = "".join(f'<a href="/files/{file}#sha256={hashlib.sha256(self.index.wheels[file]).hexdigest()}">{file}</a>\n' for file in files)
        return self._answer(200, f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html")


@contextmanager
def serving_wheels() -> Iterator[Index]:
    """An index that runs as long as the block."""
    index = Index()
    handler = type("BoundHandler", (Handler,), {"index": index})
    with serving_http(handler) as index.host:
        yield index
