"""Answers of the API server that stay open: watches and logs line by line, websockets message by message."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nanochat_npu.kube_errors import Call, lost_response

__all__ = ["Channel", "LogOptions", "Stream", "transport_errors"]

BINARY, CLOSE = 2, 8
"""Kinds of websocket messages (RFC 6455)."""


def transport_errors() -> tuple[type[Exception], ...]:
    """What breaks when a connection does: urllib3's errors and the system's."""
    import urllib3.exceptions

    return (urllib3.exceptions.HTTPError, OSError)


@dataclass(frozen=True)
class LogOptions:
    """Which part of a container's output.

    Attributes:
        container: Name, "" for the only one.
        follow: Go on until the container ends.
        since_s: Only the last so many seconds.
        since_time: Only from this time on (RFC 3339).
        tail: Only the last so many lines.
        timestamps: Put the time and a blank before each line.
    """

    container: str = ""
    follow: bool = False
    since_s: float | None = None
    since_time: str = ""
    tail: int | None = None
    timestamps: bool = False

    def as_query(self) -> dict[str, str]:
        """The parameters of the request; empty ones are left out when it is sent."""
        return {
            "container": self.container, "follow": "true" if self.follow else "", "timestamps": "true" if self.timestamps else "",
            "sinceSeconds": str(max(1, int(self.since_s))) if self.since_s is not None else "", "sinceTime": self.since_time,
            "tailLines": str(self.tail) if self.tail is not None else "",
        }


class Stream:
    """An open answer that is read line by line; close it to let go of the connection (also from another thread).

    The connection belongs to the stream and never goes back to the pool: an answer that has been read to its end would hand it
    to the next request, and a `close` that another thread is in the middle of would then break that one.
    """

    def __init__(self, response: Any) -> None:
        self._response = response
        self._connection = getattr(response, "_connection", None)
        response._connection = None
        self._closed = False

    def lines(self) -> Iterator[str]:
        """Lines as they come; ends when the server ends the answer, when it breaks off, or after `close`.

        A connection that breaks is not an error here: whoever reads a stream has to go on from its last line anyway.
        """
        rest = b""
        # AttributeError, ValueError: how http.client takes it when another thread closes the socket under a read.
        ends: tuple[type[Exception], ...] = (*transport_errors(), AttributeError, ValueError)
        try:
            for chunk in self._response.stream(65_536, decode_content=True):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in whole)
        except ends:
            return
        finally:
            self.close()
        if rest:
            yield rest.decode("utf-8", "replace")

    def close(self) -> None:
        """Let go of the connection."""
        if self._closed:
            return
        self._closed = True
        # Closing waits for a reader that sits in the socket until the server says something; shutting down wakes it.
        socket = getattr(self._connection, "sock", None)
        if socket is not None:
            with contextlib.suppress(OSError):
                socket.shutdown(2)
        self._response.close()
        if self._connection is not None:
            self._connection.close()


class Channel:
    """An open websocket of binary messages. Close it when done."""

    def __init__(self, websocket: Any, call: Call) -> None:
        self._socket, self._call = websocket, call

    def send(self, message: bytes) -> None:
        """Send one message.

        Raises:
            LostResponseError: The connection broke.
        """
        with self._translating():
            self._socket.send(message, opcode=BINARY)

    def receive(self) -> bytes | None:
        """The next message, b"" for one that carries nothing, None once the other side has closed.

        Raises:
            LostResponseError: The connection broke.
        """
        with self._translating():
            opcode, frame = self._socket.recv_data_frame(True)
        return None if opcode == CLOSE else bytes(frame.data) if opcode in (1, BINARY) else b""

    def close(self) -> None:
        """Let go of the connection."""
        with contextlib.suppress(OSError):
            self._socket.close(timeout=1)

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        import websocket

        try:
            yield
        except (websocket.WebSocketException, OSError) as error:
            raise lost_response(self._call, error) from error
