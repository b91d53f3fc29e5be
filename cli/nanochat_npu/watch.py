"""Following objects without asking again and again: list once, then read changes from a watch, through every interruption.

An `Informer` keeps the objects of one collection as they are on the server. It begins anew where the server says that its
version is too old (410, or 504 for a watch cache that is behind), goes on from its last version where a connection ends, and
compares after a new list, so nothing that happened in between is lost. What was deleted is remembered as it was last seen:
a job that its time-to-live removed has still ended the way it did.
"""

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nanochat_npu import partial
from nanochat_npu.errors import ClusterUnreachable, NanochatNpuError
from nanochat_npu.i18n import _
from nanochat_npu.kube import Kube, Stream
from nanochat_npu.kube_errors import BusyError, Call, ExpiredError, Reply, error_of
from nanochat_npu.resources import Resource

__all__ = ["Informer", "Scope"]

OUTAGE_S = 1800.0
"""How long the server may be away before following gives up. Upgrades of a control plane take minutes."""


@dataclass(frozen=True)
class Scope:
    """Which objects: a kind, a namespace, and selectors as kubectl takes them."""

    resource: Resource
    namespace: str | None = None
    labels: str = ""
    fields: str = ""


class Informer:
    """The objects of a scope, kept up to date by a thread of its own between `start` and `stop`.

    Args:
        kube: Client.
        scope: Which objects.
        changed: Called after every change, from the informer's thread; must be quick.
        wait: Waits so many seconds or until `stop`, and says whether to stop; tests put in one that does not wait.
    """

    def __init__(self, kube: Kube, scope: Scope, changed: Callable[[], None] = lambda: None, wait: Callable[[float], bool] | None = None) -> None:
        self._kube, self._scope, self._changed = kube, scope, changed
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._lock = threading.Lock()
        self._live: dict[tuple[str, str], dict[str, Any]] = {}
        self._gone: dict[tuple[str, str], dict[str, Any]] = {}
        self._synced = threading.Event()
        self._error: NanochatNpuError | None = None
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{scope.resource.plural}", daemon=True)
        self.relists = 0
        """How often the whole collection was read; for tests and measurements."""

    # ---- for the reader --------------------------------------------------------------------------------------------

    def start(self) -> "Informer":
        """Begin; returns at once."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread; may be called twice."""
        self._stopping.set()
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.close()

    def ready(self, timeout_s: float) -> bool:
        """True once the first list is in, or following has failed."""
        return self._synced.wait(timeout_s)

    def check(self) -> None:
        """Raise the error that ended the following, if one did."""
        if self._error is not None:
            raise self._error

    def objects(self) -> list[dict[str, Any]]:
        """What exists now, sorted by namespace and name."""
        with self._lock:
            return [self._live[key] for key in sorted(self._live)]

    def get(self, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """One object that exists, or None; the namespace is the scope's unless that is all."""
        with self._lock:
            return self._live.get((namespace or self._scope.namespace or "", name))

    def last_seen(self, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """An object that existed once, as it was when it went; None if it exists or was never seen."""
        with self._lock:
            return self._gone.get((namespace or self._scope.namespace or "", name))

    # ---- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        version, tries, trouble_since = "", 0, 0.0
        while not self._stopping.is_set():
            try:
                if not version:
                    version = self._list()
                version = self._follow(version)
                tries = 0
                pause = 0.05  # a server that ends every watch at once must not be asked a thousand times a second
            except ExpiredError:
                version, pause = "", 0.05
            except ClusterUnreachable as error:
                now = time.monotonic()
                trouble_since = now if not tries else trouble_since
                tries += 1
                if now - trouble_since > OUTAGE_S:
                    self._fail(error)
                    return
                pause = error.after_s if isinstance(error, BusyError) and error.after_s is not None else _pause_s(tries)
            except NanochatNpuError as error:
                self._fail(error)
                return
            if self._wait(pause):
                return

    def _fail(self, error: NanochatNpuError) -> None:
        self._error = error
        self._synced.set()
        self._changed()

    def _list(self) -> str:
        scope = self._scope
        page = self._kube.list(scope.resource, scope.namespace, labels=scope.labels, fields=scope.fields)
        self.relists += 1
        fresh = {_key(obj): obj for obj in page.objects}
        with self._lock:
            self._gone.update({key: obj for key, obj in self._live.items() if key not in fresh})
            for key in fresh:
                self._gone.pop(key, None)
            self._live = fresh
        self._synced.set()
        self._changed()
        return page.version

    def _follow(self, version: str) -> str:
        """Read changes until the stream ends; the version to go on from."""
        scope = self._scope
        stream = self._kube.watch(scope.resource, scope.namespace, version=version, labels=scope.labels, fields=scope.fields)
        with self._lock:
            self._stream = stream
        try:
            for line in stream.lines():
                if self._stopping.is_set():
                    break
                version = self._apply(line) or version
        finally:
            with self._lock:
                self._stream = None
            stream.close()
        return version

    def _apply(self, line: str) -> str:
        """Take in one line of a watch; the version that it brings, or "". A line that was cut off is left out."""
        if not line.strip():
            return ""
        try:
            change = json.loads(line)
        except ValueError:
            return ""
        kind, obj = partial.text(change, "type"), partial.mapping(change, "object")
        if kind == "ERROR":
            raise self._stream_error(obj)
        key, version = _key(obj), partial.text(obj, "metadata", "resourceVersion")
        if kind in ("ADDED", "MODIFIED", "DELETED") and key[1]:
            with self._lock:
                if kind == "DELETED":
                    self._live.pop(key, None)
                    self._gone[key] = obj
                else:
                    self._live[key] = obj
                    self._gone.pop(key, None)
            self._changed()
        return version

    def _stream_error(self, status: dict[str, Any]) -> NanochatNpuError:
        code = partial.integer(status, "code") or 500
        call = Call("watch", self._scope.resource, self._scope.namespace, None, self._kube.server)
        error = error_of(call, Reply(code, json.dumps({"kind": "Status", **status}).encode()))
        # Whatever ends a stream (a server that shuts down says 500), a new list is the way on; a refusal shows up there.
        return error if isinstance(error, (ExpiredError, BusyError)) else ExpiredError(_("the watch ended: {error}").format(error=error))


def _key(obj: dict[str, Any]) -> tuple[str, str]:
    return partial.text(obj, "metadata", "namespace"), partial.text(obj, "metadata", "name")


def _pause_s(tries: int) -> float:
    whole: float = min(30.0, 0.5 * 2.0 ** min(tries - 1, 6))
    return whole * (1 - random.random() / 3)
