"""A TCP proxy on loopback that cuts every connection once it has carried some bytes towards the server: an interrupted push."""

import contextlib
import socket
import threading
from types import TracebackType

__all__ = ["CuttingProxy"]


class CuttingProxy:
    """Use it as a context; `address` is where it listens.

    Attributes:
        left: Bytes that still pass towards the server before everything is cut; None: no limit.
    """

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.left: int | None = None
        self.cuts = 0
        self._lock = threading.Lock()

    def __enter__(self) -> "CuttingProxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            back = threading.Thread(target=self._carry, args=(server, client, False), daemon=True)
            back.start()
            self._carry(client, server, True)
            back.join()

    def _carry(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65_536):
                if counted and not self._passes(len(chunk)):
                    break
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _passes(self, count: int) -> bool:
        with self._lock:
            if self.left is None:
                return True
            self.left -= count
            if self.left < 0:
                self.cuts += 1
            return self.left >= 0
