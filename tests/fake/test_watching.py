"""Following objects through ended streams, 410, 504, outages and lines that are cut off."""

import threading
from pathlib import Path
from typing import Any

import pytest
from scripted import Answer, ScriptedServer, change, listing, ok, status, stream

from nanochat_npu.errors import ClusterForbidden
from nanochat_npu.resources import JOBS
from nanochat_npu.watch import Informer, Scope

LISTING = r"/jobs\?.*limit=500"
WATCHING = r"/jobs\?.*watch=true"


def job(version: int, phase: str = "Running", name: str = "d20") -> dict[str, Any]:
    """A job in a phase."""
    return {"metadata": {"name": name, "namespace": "train", "resourceVersion": str(version)}, "status": {"state": {"phase": phase}}}


class Watcher:
    """An informer that waits for nothing, and what it has seen."""

    def __init__(self, server: ScriptedServer, folder: Path) -> None:
        self.seen: list[str] = []
        self._moved = threading.Condition()
        self.pauses: list[float] = []
        self._stop = threading.Event()
        self.informer = Informer(server.client(folder), Scope(JOBS, "train"), self._changed, self._pause)

    def _pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        return self._stop.wait(0.002)

    def _changed(self) -> None:
        found = self.informer.get("d20")
        with self._moved:
            self.seen.append(found["status"]["state"]["phase"] if found else "gone")
            self._moved.notify_all()

    def until(self, phase: str) -> "Watcher":
        """Wait until this was seen."""
        with self._moved:
            assert self._moved.wait_for(lambda: phase in self.seen, timeout=20), self.seen
        return self

    def __enter__(self) -> "Watcher":
        self.informer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self.informer.stop()


def versions(server: ScriptedServer) -> list[str]:
    """The versions from which watches were begun."""
    return [path.partition("resourceVersion=")[2].partition("&")[0] for path in server.asked("GET", WATCHING)]


def test_a_stream_that_ends_is_gone_on_from_its_last_version(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LISTING, ok(listing([job(5)], "10")))
    server.on("GET", WATCHING, stream(change("MODIFIED", job(11, "Restarting"))), stream(change("MODIFIED", job(12, "Completed"))), stream(change("BOOKMARK", job(20))))
    with Watcher(server, tmp_path) as watcher:
        watcher.until("Completed")
    assert versions(server)[:2] == ["10", "11"]
    assert len(server.asked("GET", LISTING)) == 1


def test_bookmarks_move_the_version_on(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LISTING, ok(listing([job(5)], "10")))
    mark = {"metadata": {"resourceVersion": "77"}}
    server.on("GET", WATCHING, stream(change("BOOKMARK", mark)), stream(change("MODIFIED", job(78, "Completed"))))
    with Watcher(server, tmp_path) as watcher:
        watcher.until("Completed")
    assert versions(server)[:2] == ["10", "77"]


@pytest.mark.parametrize("trouble", [
    stream(change("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version: 10 (90)", "reason": "Expired"})),
    stream(change("ERROR", {"code": 410})),
    stream(change("ERROR", {"kind": "Status", "code": 500, "message": "unable to decode watch event"})),
    status(410, "too old resource version", "Expired"),
    status(504, "Timeout: Too large resource version: 99, current: 3", "Timeout"),
], ids=["410 in a 200 stream", "410 without a kind", "500 in the stream", "HTTP 410", "HTTP 504"])
def test_a_version_that_is_of_no_use_leads_to_a_new_list_and_nothing_is_lost(server: ScriptedServer, tmp_path: Path, trouble: Answer) -> None:
    server.on("GET", LISTING, ok(listing([job(5)], "10")), ok(listing([job(95, "Completed")], "100")))
    server.on("GET", WATCHING, trouble, stream(change("BOOKMARK", job(101))))
    with Watcher(server, tmp_path) as watcher:
        watcher.until("Completed")  # the phase that passed while the watch was blind
        server.until_asked("GET", WATCHING, 2)
    assert versions(server)[:2] == ["10", "100"]


def test_what_was_deleted_while_nobody_looked_is_remembered_as_it_was(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LISTING, ok(listing([job(5, "Completed")], "10")), ok(listing([], "100")))
    server.on("GET", WATCHING, status(410, "", "Expired"), stream(change("BOOKMARK", job(101))))
    with Watcher(server, tmp_path) as watcher:
        watcher.until("gone")
        last = watcher.informer.last_seen("d20")
    assert last is not None
    assert last["status"]["state"]["phase"] == "Completed"


def test_a_deletion_in_the_stream_is_remembered_too(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LISTING, ok(listing([job(5)], "10")))
    server.on("GET", WATCHING, stream(change("MODIFIED", job(11, "Completed")), change("DELETED", job(12, "Completed"))), stream(change("BOOKMARK", job(13))))
    with Watcher(server, tmp_path) as watcher:
        watcher.until("gone")
        assert watcher.informer.get("d20") is None
        assert watcher.informer.last_seen("d20") is not None


def test_a_line_that_is_cut_off_is_left_out_and_read_again(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LISTING, ok(listing([job(5)], "10")))
    server.on("GET", WATCHING, stream(change("MODIFIED", job(11, "Restarting")), '{"type":"MODIFIED","object":{"metad'), stream(change("MODIFIED", job(12, "Completed"))))
    with Watcher(server, tmp_path) as watcher:
        watcher.until("Completed")
    assert versions(server)[:2] == ["10", "11"]


def test_lines_that_are_no_changes_do_no_harm(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LISTING, ok(listing([job(5)], "10")))
    odd = ("\n", "[]\n", '"x"\n', "{}\n", '{"type": 7, "object": []}\n', '{"type": "ADDED"}\n', '{"type": "ADDED", "object": {"metadata": null}}\n')
    server.on("GET", WATCHING, stream(*odd, change("MODIFIED", job(12, "Completed"))), stream(change("BOOKMARK", job(13))))
    with Watcher(server, tmp_path) as watcher:
        watcher.until("Completed")


def test_a_server_that_is_away_is_waited_for_with_growing_pauses(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LISTING, ok(listing([job(5)], "10")))
    server.on("GET", WATCHING, *[Answer(reset=True)] * 40, stream(change("MODIFIED", job(11, "Completed"))))
    with Watcher(server, tmp_path) as watcher:
        watcher.until("Completed")
    assert max(watcher.pauses) > min(watcher.pauses)


def test_a_refusal_ends_the_following_with_its_error(server: ScriptedServer, tmp_path: Path) -> None:
    text = 'jobs.batch.volcano.sh is forbidden: User "li" cannot watch resource "jobs" in API group "batch.volcano.sh" in the namespace "train"'
    server.on("GET", LISTING, ok(listing([job(5)], "10")))
    server.on("GET", WATCHING, status(403, text, "Forbidden"))
    with Watcher(server, tmp_path) as watcher:
        watcher.informer._thread.join(20)
        with pytest.raises(ClusterForbidden, match='user "li" may not watch'):
            watcher.informer.check()


def test_an_empty_namespace_is_ready_with_nothing_in_it(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LISTING, ok(listing([], "10")))
    server.on("GET", WATCHING, stream(change("BOOKMARK", {"metadata": {"resourceVersion": "11"}})))
    with Watcher(server, tmp_path) as watcher:
        assert watcher.informer.ready(20)
        assert watcher.informer.objects() == []


def test_a_server_that_ends_every_watch_at_once_is_not_hammered(server: ScriptedServer, tmp_path: Path) -> None:
    server.on("GET", LISTING, ok(listing([job(5)], "10")))
    server.on("GET", WATCHING, stream(change("BOOKMARK", job(11))))
    with Watcher(server, tmp_path) as watcher:
        server.until_asked("GET", WATCHING, 5)
    assert min(watcher.pauses) >= 0.05
