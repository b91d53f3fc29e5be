"""Loopback stand-ins of the two trackers' services: just enough of their HTTP protocols for the real client libraries.

What arrives is kept, so that a test can say that it is what training measured. The services themselves cannot be reached
from a test; what is proven is that the real libraries, driven by us, find nothing to complain about on the way there.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CREATED = "2026-11-30T10:00:00.000Z"


@dataclass
class Arrived:
    """What the services were given.

    Attributes:
        points: (tracker, run id, metric, step) → value.
        runs: (tracker, run id) → how often it was begun or resumed.
        keys: Authorisation headers.
        ended: (tracker, run id) → state.
        rows: History of each W&B run, as its lines are numbered.
        unknown: Requests that the stand-in had no answer for.
        refuse: Requests whose path holds this text are refused with 401.
    """

    points: dict[tuple[str, str, str, int], float] = field(default_factory=dict)
    runs: dict[tuple[str, str], int] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    ended: dict[tuple[str, str], str] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    workspaces: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    refuse: str = "\0"

    def curve(self, tracker: str, run: str, metric: str) -> dict[int, float]:
        return {step: value for (t, r, m, step), value in sorted(self.points.items()) if (t, r, m) == (tracker, run, metric)}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    arrived: Arrived

    def log_message(self, *_args: object) -> None:
        return

    def _body(self) -> Any:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-encoding") == "gzip":
            import gzip

            raw = gzip.decompress(raw)
        try:
            return json.loads(raw) if raw else {}
        except ValueError:
            return {}

    def _send(self, value: Any, status: int = 200) -> None:
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _do(self) -> None:
        body, path = self._body(), self.path.partition("?")[0]
        self.arrived.log.append(f"{self.command} {self.path}")
        if self.headers.get("authorization"):
            self.arrived.keys.add(self.headers["authorization"])
        if self.arrived.refuse in path:
            self._send({"code": "401", "message": "no such key"}, 401)
        elif path.startswith("/api/"):
            self._swanlab(path.removeprefix("/api"), body)
        elif path == "/graphql":
            self._wandb(body)
        elif path.endswith("/file_stream"):
            self._wandb_stream(path, body)
        elif path == "/export.csv":
            self._send(self._swanlab_csv())
        elif path == "/" or path.startswith("/upload/"):
            self._send({})
        else:
            self.arrived.unknown.append(f"{self.command} {self.path}")
            self._send({})

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do

    # -- SwanLab ----------------------------------------------------------------------------------------------------------

    def _swanlab(self, path: str, body: Any) -> None:
        part = path.strip("/").split("/")
        host = f"http://127.0.0.1:{self.server.server_address[1]}"
        match (self.command, part):
            case ("POST", ["login", "api_key"]):
                self._send({"sid": "s", "expiredAt": "2099-01-01T00:00:00.000Z", "userInfo": {"username": "me", "name": "Me"}})
            case ("GET", ["project", user, project]):
                self.arrived.workspaces.add(user)
                self._send({"cuid": "p1", "name": project, "group": {"username": user}, "_count": {"experiments": 0}, "version": 1, "path": f"/{user}/{project}"})
            case ("POST", ["project", _user, _project, "experiment"]):
                run = str(body.get("cuid"))
                times = self.arrived.runs[("swanlab", run)] = self.arrived.runs.get(("swanlab", run), 0) + 1
                self._send({"cuid": run, "slug": run, "name": body.get("name"), "createdAt": CREATED}, 201 if times == 1 else 200)
            case ("GET", ["project", _user, _project, "runs", run]):
                if ("swanlab", run) not in self.arrived.runs:
                    self._send({"code": "404", "message": "no such run"}, 404)
                    return
                self._send({"cuid": run, "slug": run, "name": run, "createdAt": CREATED, "project_id": "p1", "state": "FINISHED"})
            case ("GET", ["house", "metrics", "summaries", _project, run]):
                keys = {metric for t, r, metric, _step in self.arrived.points if (t, r) == ("swanlab", run)}
                self._send({"scalar": [{"key": key, "step": max(self.arrived.curve("swanlab", run, key))} for key in sorted(keys)]})
            case ("POST", ["house", "metrics"]):
                for point in body["metrics"] if body.get("type") == "scalar" else ():
                    self.arrived.points[("swanlab", body["experimentId"], point["key"], int(point["index"]))] = point["data"]
                self._send({})
            case ("PUT", ["project", _user, _project, "runs", run, "state"]):
                self.arrived.ended[("swanlab", run)] = body["state"]
                self._send({})
            case _:
                if not self._swanlab_reading(part, body, host):
                    self.arrived.unknown.append(f"{self.command} {self.path} {json.dumps(body)[:300]}")
                    self._send({})

    def _swanlab_reading(self, part: list[str], body: Any, host: str) -> bool:
        """What `swanlab.Api` asks for: names of metrics, an export of them, the address of its file, and the file."""
        match (self.command, part):
            case ("POST", ["house", "metrics", "scalar", "keys"]):
                run = body["experiments"][0]["experimentId"]
                self._send({"keys": sorted({metric for t, r, metric, _ in self.arrived.points if (t, r) == ("swanlab", run)}), "hasMore": False})
            case ("POST", ["house", "metrics", "scalar", "value"]):
                self._send([])
            case ("POST", ["house", "metrics", "scalar", "export"]):
                self.arrived.asked = [(column["experimentId"], column["key"]) for column in body["columns"]]
                self._send({"cosKey": "exports/1.csv"})
            case (_, ["files", "presigned", "get"]):
                self._send({"urls": [f"{host}/export.csv"]})
            case (_, ["projects", _user, _project, "series"]) | (_, ["project", _user, _project, "runs", _, "profile"]):
                self._send({})
            case _:
                return False
        return True

    def _swanlab_csv(self) -> bytes:
        curves = [self.arrived.curve("swanlab", run, key) for run, key in self.arrived.asked]
        lines = ["step," + ",".join(f"{run}-{key}_step,{run}-{key}_timestamp" for run, key in self.arrived.asked)]
        for step in sorted(set().union(*curves)):
            lines.append(f"{step}," + ",".join(f"{curve[step]},1" if step in curve else "," for curve in curves))
        return ("\n".join(lines) + "\n").encode()

    # -- Weights & Biases -------------------------------------------------------------------------------------------------

    def _wandb(self, body: Any) -> None:
        query, variables = " ".join(str(body.get("query", "")).split()), body.get("variables") or {}
        name = query.removeprefix("#graphql ").replace("(", " ").split()[1]
        self.arrived.log.append(f"graphql {name}")
        run, project = str(variables.get("name") or variables.get("run")), variables.get("project") or "nanochat"
        rows = self.arrived.rows.get(run, [])
        place = {"id": "p1", "name": project, "entity": {"id": "e1", "name": "me"}}
        match name:
            case "RunResumeStatus":
                bucket = {
                    "id": run, "name": run, "summaryMetrics": "{}", "displayName": run, "logLineCount": 0, "historyLineCount": len(rows), "eventsLineCount": 0,
                    "historyTail": json.dumps([json.dumps(rows[-1])] if rows else []), "eventsTail": "[]", "config": "{}", "tags": [], "notes": "",
                    "wandbConfig": "{}",
                }
                self._send({"data": {"model": {**place, "bucket": bucket if rows else None}}})
            case "UpsertBucket":
                self.arrived.runs[("wandb", run)] = self.arrived.runs.get(("wandb", run), 0) + 1
                bucket = {
                    "id": run, "name": run, "displayName": run, "description": "", "config": "{}", "sweepName": None, "project": place, "historyLineCount": len(rows),
                }
                self._send({"data": {"upsertBucket": {"bucket": bucket, "inserted": not rows}}})
            case "CreateRunFiles":
                host = f"http://127.0.0.1:{self.server.server_address[1]}"
                files = [{"name": file, "uploadUrl": f"{host}/upload/{file}"} for file in variables["files"]]
                self._send({"data": {"createRunFiles": {"runID": run, "uploadHeaders": [], "files": files}}})
            case "Run":
                found = {
                    "id": run, "projectId": "1", "tags": [], "name": run, "displayName": run, "sweepName": None, "state": "finished", "config": "{}",
                    "group": None, "jobType": None, "commit": None, "readOnly": False, "createdAt": CREATED, "heartbeatAt": CREATED, "description": "",
                    "notes": "", "systemMetrics": "{}", "summaryMetrics": "{}", "historyLineCount": len(rows), "user": {"name": "me", "username": "me"},
                    "historyKeys": {"lastStep": len(rows) - 1},
                }
                self._send({"data": {"project": {"run": found if ("wandb", run) in self.arrived.runs else None}}})
            case "RunHistoryKeys":
                self._send({"data": {"project": {"run": {"historyKeys": {"lastStep": len(rows) - 1}}}}})
            case "RunParquetHistory":
                self._send({"data": {"project": {"run": {"parquetHistory": {"parquetUrls": [], "liveData": []}}}}})
            case "HistoryPage":
                page = [{**row, "_step": n} for n, row in enumerate(rows) if variables["minStep"] <= n < variables["maxStep"]]
                self._send({"data": {"project": {"run": {"history": [json.dumps(row) for row in page]}}}})
            case "Viewer" | "GetDefaultEntity":
                self._send({"data": {"viewer": {"id": "u1", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}}})
            case _:
                self.arrived.unknown.append(f"{query} {json.dumps(variables)[:300]}")
                self._send({"data": {}})

    def _wandb_stream(self, path: str, body: Any) -> None:
        run = path.split("/")[-2]
        history = body.get("files", {}).get("wandb-history.jsonl", {})
        rows = self.arrived.rows.setdefault(run, [])
        for number, line in enumerate(history.get("content", []), int(history.get("offset") or 0)):
            row = json.loads(line)
            rows[number:] = [row]  # what is sent again stands in the same line
            for key, value in row.items():
                if "/" in key:
                    self.arrived.points[("wandb", run, key, int(row["step"]))] = value
        if body.get("complete"):
            self.arrived.ended[("wandb", run)] = str(body.get("exitcode"))
        self._send({})


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # the clients cut their connections when they are done


@contextmanager
def services() -> Iterator[tuple[str, Arrived]]:
    """Address of both stand-ins, and what arrives there."""
    arrived = Arrived()
    server = _Quiet(("127.0.0.1", 0), type("Handler", (_Handler,), {"arrived": arrived}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", arrived
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
