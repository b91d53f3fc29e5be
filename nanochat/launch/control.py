"""The control store: a small key-value server on the first node through which launchers and ranks agree.

It lives in the launcher, not in rank 0, so it outlives a rank that fails and can carry its verdict to other nodes.
"""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from nanochat.errors import NotReady
from nanochat.peers import VERDICT_KEY
from nanochat.verdict import Verdict

if TYPE_CHECKING:
    from torch.distributed import TCPStore

__all__ = ["ControlStore", "publish"]

ATTEMPT_KEY = "nanochat/attempt"
STOP_KEY = "nanochat/stop"
BROKEN = (RuntimeError, OSError)
"""What torch's stores raise when the server is gone (DistNetworkError and DistStoreError are RuntimeErrors)."""


def publish(store: "TCPStore", verdict: Verdict) -> None:
    """Tell all nodes; the first verdict stands. Silent if the store is gone: the file is there for that case."""
    try:
        store.compare_set(VERDICT_KEY, "", verdict.to_json())
    except BROKEN:
        return


class ControlStore:
    """This launcher's connection to the store; the first node hosts it.

    Args:
        host: Address of the first node.
        port: Port; 0 takes a free one (single node only).
        is_host: True on the first node.
        timeout_s: How long to wait for the host.

    Raises:
        NotReady: The port is taken, or the first node does not answer in time.
    """

    def __init__(self, host: str, port: int, *, is_host: bool, timeout_s: float) -> None:
        from torch.distributed import TCPStore  # 2-4 s of imports, which a failing check should not cost

        try:
            self.store = TCPStore(
                host, port, is_master=is_host, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
            )
        except BROKEN as error:
            what = f"cannot listen on port {port}" if is_host else f"the first node does not answer within {timeout_s:.0f} s"
            raise NotReady(f"{what}: {error}", where=f"{host}:{port}") from error
        self.port: int = self.store.port
        self.lost = False

    def agree_on_attempt(self, attempt: int | None, timeout_s: float) -> int:
        """The attempt's number: told by the first node, awaited by the others."""
        if attempt is not None:
            self.store.set(ATTEMPT_KEY, str(attempt))
            return attempt
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
