"""The control store: a small key-value server on the first node through which launchers and ranks agree.

It lives in the launcher, not in rank 0, so it outlives a rank that fails and can carry its verdict to other nodes.
"""

import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from nanochat.contract import layout
from nanochat.errors import NotReady
from nanochat.heartbeat import beat_key
from nanochat.peers import VERDICT_KEY
from nanochat.verdict import Verdict

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

__all__ = ["ControlStore", "listen", "publish"]

ATTEMPT_KEY = "nanochat/attempt"
STOP_KEY = "nanochat/stop"
BACKLOG = 4096
"""Connections that may wait: all ranks of a large job knock at the same moment."""
BROKEN = (RuntimeError, OSError)
"""What torch's stores raise when the server is gone (DistNetworkError and DistStoreError are RuntimeErrors)."""


def publish(store: "Store", verdict: Verdict) -> None:
    """Tell all nodes; the first verdict stands. Silent if the store is gone: the file is there for that case."""
    try:
        store.compare_set(VERDICT_KEY, "", verdict.to_json())
    except BROKEN:
        return


def listen(port: int, *, everywhere: bool) -> socket.socket:
    """A listening socket for the store, bound before anything starts: the port is known, and taken ones are found at once.

    Args:
        port: Port; 0 takes a free one.
        everywhere: For other nodes too, not only for this one.

    Raises:
        NotReady: The port is taken.
    """
    try:
        if everywhere and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
        return socket.create_server(("" if everywhere else "127.0.0.1", port), backlog=BACKLOG)
    except OSError as error:
        raise NotReady(f"cannot listen on port {port}: {error.strerror}", where=layout.ENV_MASTER_PORT) from error


class ControlStore:
    """A launcher's connection to the store: `host` on the first node, `connect` on the others."""

    def __init__(self, store: "TCPStore") -> None:
        self.store = store
        self.lost = False

    @classmethod
    def host(cls, listener: socket.socket) -> "ControlStore":
        """The store itself, on a listening socket, which it takes over.

        It starts a thread. Call it after the ranks are forked: a fork while that thread holds a lock leaves the copy with
        the lock held for ever (seen once in about 60 starts).
        """
        from torch.distributed import TCPStore  # 2-4 s of imports, which a failing check should not cost

        port = listener.getsockname()[1]
        return cls(
            TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
        )

    @classmethod
    def connect(cls, host: str, port: int, timeout_s: float) -> "ControlStore":
        """A client of the first node's store.

        Raises:
            NotReady: The first node does not answer in time.
        """
        from torch.distributed import TCPStore

        try:
            return cls(TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)))
        except BROKEN as error:
            raise NotReady(
                f"the first node does not answer within {timeout_s:.0f} s: {str(error).splitlines()[0]}", where=f"{host}:{port}"
            ) from error

    def tell_attempt(self, attempt: int) -> None:
        """Tell the other nodes the attempt's number."""
        self._set(ATTEMPT_KEY, str(attempt))

    def await_attempt(self, timeout_s: float) -> int:
        """The attempt's number, as the first node tells it.

        Raises:
            NotReady: It did not in time.
        """
        deadline = time.monotonic() + timeout_s
        while not (told := self._get(ATTEMPT_KEY)):
            if self.lost or time.monotonic() > deadline:
                raise NotReady(f"the first node did not tell the attempt's number within {timeout_s:.0f} s")
            time.sleep(0.05)
        return int(told)

    def put(self, key: str, value: str) -> None:
        """Leave a value for the other launchers."""
        self._set(key, value)

    def collect(self, keys: Sequence[str], timeout_s: float, *, what: str) -> list[str]:
        """The values that all nodes left under these keys (one key a node, in order of node).

        Raises:
            NotReady: Some did not come in time; their nodes are named.
        """
        deadline = time.monotonic() + timeout_s
        while missing := [node for node, key in enumerate(keys) if not self._get(key)]:
            if self.lost or time.monotonic() > deadline:
                raise NotReady(f"{what}: nothing came from nodes {missing[:16]} within {timeout_s:.0f} s")
            time.sleep(0.05)
        return [self._get(key) for key in keys]

    def publish(self, verdict: Verdict) -> None:
        """Tell all nodes about a failure on this one."""
        publish(self.store, verdict)

    def verdict(self) -> Verdict | None:
        """A failure on any node, or None."""
        text = self._get(VERDICT_KEY)
        return Verdict.from_json(text) if text else None

    def request_stop(self) -> None:
        """Ask all nodes to stop in good order."""
        self._set(STOP_KEY, "1")

    def stop_requested(self) -> bool:
        """True if some node was asked to stop."""
        return bool(self._get(STOP_KEY))

    def beats(self, size: int) -> list[str]:
        """What each rank published last of its heart, "" where it has not yet."""
        keys = [beat_key(rank) for rank in range(size)]
        try:
            if not self.lost and self.store.check(keys):
                return [value.decode() for value in self.store.multi_get(keys)]
            return [self._get(key) for key in keys]
        except BROKEN:
            self.lost = True
            return [""] * size

    def say_goodbye(self, node_rank: int) -> None:
        """Tell the first node that this one needs the store no longer."""
        self._set(f"nanochat/left/{node_rank}", "1")

    def all_left(self, nodes: int) -> bool:
        """True if every other node has said goodbye, or the store is gone."""
        return self.lost or all(self._get(f"nanochat/left/{node}") for node in range(1, nodes))

    def _get(self, key: str) -> str:
        try:
            return self.store.get(key).decode() if not self.lost and self.store.check([key]) else ""
        except BROKEN:
            self.lost = True
            return ""

    def _set(self, key: str, value: str) -> None:
        try:
            if not self.lost:
                self.store.set(key, value)
        except BROKEN:
            self.lost = True
