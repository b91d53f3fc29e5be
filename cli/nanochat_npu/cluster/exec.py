"""Running a command in a pod over a websocket: bytes in, bytes out, exit code.

Kubernetes' channel protocol (v4/v5): the first byte of each message says which stream it belongs to.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nanochat_npu.errors import ClusterError
from nanochat_npu.i18n import _
from nanochat_npu.kube import Kube

__all__ = ["Session", "agent_command"]

STDIN, STDOUT, STDERR, STATUS = b"\0", b"\1", b"\2", b"\3"
CHUNK_BYTES = 64 * 1024
"""One message to the pod; servers cut larger ones."""
_AGENT = Path(__file__).with_name("agent.py")


def agent_command(*arguments: str) -> list[str]:
    """Command line that runs our agent under the pod's own Python. The agent's text travels packed: about 2 KB of a URL."""
    packed = base64.b64encode(zlib.compress(_AGENT.read_bytes(), 9)).decode()
    return ["python3", "-c", "import sys,zlib,base64;exec(zlib.decompress(base64.b64decode(sys.argv[1])))", packed, *arguments]


class Session:
    """One command in a pod.

    Args:
        kube: Client.
        namespace: Of the pod.
        pod: Its name.
        command: Command line.
        stdin: Whether bytes will be sent.
    """

    def __init__(self, kube: Kube, namespace: str, pod: str, command: list[str], *, stdin: bool = False) -> None:
        self._socket = kube.exec_socket(namespace, pod, command, stdin=stdin)
        self._where = f"{namespace}/{pod}"
        self._errors = b""
        self._status: dict[str, Any] | None = None

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    def send(self, chunks: Iterable[bytes]) -> None:
        """Send bytes to the command's stdin."""
        for chunk in chunks:
            for start in range(0, len(chunk), CHUNK_BYTES):
                self._socket.send(STDIN + chunk[start : start + CHUNK_BYTES])

    def output(self) -> Iterator[bytes]:
        """Pieces of the command's stdout until it ends; then its end is known to `finish`."""
        while self._status is None:
            message = self._socket.receive()
            if message is None:
                return
            channel, rest = message[:1], message[1:]
            if channel == STDOUT and rest:
                yield rest
            elif channel == STDERR:
                self._errors = (self._errors + rest)[-4000:]
            elif channel == STATUS and rest:
                self._status = json.loads(rest)

    def finish(self) -> None:
        """Check how the command ended.

        Raises:
            ClusterError: It failed; the message is what it said on stderr.
        """
        said = " ".join(self._errors.decode("utf-8", "replace").split())
        if self._status is None:
            raise ClusterError(_("the connection to the pod broke: {text}").format(text=said or "-"), where=self._where)
        if self._status.get("status") != "Success":
            raise ClusterError(said or str(self._status.get("message", "")) or _("the command failed"), where=self._where)
