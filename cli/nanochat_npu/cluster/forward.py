"""A port of a pod as a port of this computer: one websocket for each connection, as ``kubectl port-forward`` does.

Channel protocol (v4): the first byte of a message is its channel, 0 for data and 1 for an error; the first message on each
carries the port number and nothing else. The protocol has no half-close: a server that marks the end of an answer only by closing
the connection (HTTP/1.0) keeps its client waiting. Ours sends lengths or chunks.
"""

import contextlib
import socket
import threading

from nanochat_npu.errors import ClusterError, NanochatNpuError, UsageError
from nanochat_npu.i18n import _
from nanochat_npu.kube import Kube

__all__ = ["Forward"]

DATA, ERROR = b"\0", b"\1"
CHUNK_BYTES = 64 * 1024


class Forward:
    """Listens on loopback until it is closed.

    Args:
        kube: Client.
        namespace: Of the pod.
        pod: Its name.
        port: Of the pod.
        local_port: Of this computer; 0 takes a free one.

    Raises:
        UsageError: The local port is taken.
    """

    def __init__(self, kube: Kube, namespace: str, pod: str, port: int, local_port: int = 0) -> None:
        self._kube, self._namespace, self._pod, self._port = kube, namespace, pod, port
        self._closing = threading.Event()
        self.error: NanochatNpuError | None = None
        """The last thing that went wrong; a connection that could not be made ends, others go on."""
        try:
            self._listener = socket.create_server(("127.0.0.1", local_port))
        except OSError as error:
            raise UsageError(_("port {port} is taken: {reason}").format(port=local_port, reason=error.strerror), where="--port", hint=_("--port 0 takes a free one")) from error
        self.local_port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name=f"forward-{pod}", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Address of the forwarded port, for HTTP."""
        return f"http://127.0.0.1:{self.local_port}"

    def close(self) -> None:
        """Stop listening; open connections end with their peers."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __enter__(self) -> "Forward":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _address = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                channel = self._kube.forward_socket(self._namespace, self._pod, self._port)
            except NanochatNpuError as error:
                self.error = error
                return

            def upstream() -> None:
                with contextlib.suppress(OSError, NanochatNpuError):
                    while data := connection.recv(CHUNK_BYTES):
                        channel.send(DATA + data)
                channel.close()

            sender = threading.Thread(target=upstream, daemon=True)
            sender.start()
            greeted: set[bytes] = set()
            with contextlib.suppress(OSError, NanochatNpuError):
                while (message := channel.receive()) is not None:
                    kind, rest = message[:1], message[1:]
                    if kind not in greeted:
                        greeted.add(kind)
                    elif kind == DATA:
                        connection.sendall(rest)
                    elif kind == ERROR and rest:
                        self.error = ClusterError(" ".join(rest.decode("utf-8", "replace").split()), where=f"{self._namespace}/{self._pod}")
                        break
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            channel.close()
            sender.join(5)
