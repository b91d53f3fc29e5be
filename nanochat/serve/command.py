"""``python -m nanochat serve``: load a job's model and answer over HTTP."""

import argparse
import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

import uvicorn

from nanochat.contract import ExitCode
from nanochat.device import pick
from nanochat.engine import Engine
from nanochat.errors import TrainerError
from nanochat.serve.app import Served, build_app
from nanochat.serve.batcher import Batcher
from nanochat.trained import add_arguments, open_trained

__all__ = ["main"]

TOKEN_VARIABLE = "NANOCHAT_SERVE_TOKEN"  # noqa: S105 - the name of a variable
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_PORT = 65535


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m nanochat serve", description="Serve a trained model over HTTP.")
    add_arguments(parser, "answers")
    parser.add_argument("--host", default="127.0.0.1", help=f"address to listen on; anything but loopback needs {TOKEN_VARIABLE} (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--slots", type=int, default=16, help="answers written at the same time (default: %(default)s)")
    parser.add_argument("--queue", type=int, default=64, help="requests that may wait (default: %(default)s)")
    parser.add_argument("--name", help="model id in the protocol; default: the job's name")
    parser.add_argument("--device", default="auto", choices=["auto", "npu", "cuda", "cpu"])
    parser.add_argument("--idle-ttl-s", type=float, default=0.0, help="leave after this long without a request; 0: never")
    return parser.parse_args(argv)


def _require_token(host: str) -> None:
    if host not in LOOPBACK and not os.environ.get(TOKEN_VARIABLE):
        raise TrainerError(
            f"{host} can be reached by others, and no token is set", where="--host", hint=f"set {TOKEN_VARIABLE}, or leave --host at 127.0.0.1",
            code=ExitCode.USAGE,
        )


def _serve(arguments: argparse.Namespace) -> Served:
    if arguments.slots < 1 or arguments.queue < 0:
        raise TrainerError("--slots has to be at least 1, --queue at least 0", code=ExitCode.USAGE)
    trained = open_trained(arguments.job_dir, pick(arguments.device), stage=arguments.stage, step=arguments.step)
    manifest = trained.manifest
    batcher = Batcher(Engine(trained.model, trained.tokenizer), slots=arguments.slots, queue=arguments.queue)
    facts = {
        "job": arguments.job_dir.name, "stage": manifest.stage, "step": manifest.step, "chats": trained.chats,
        "parameters": trained.model.shape.parameters.total, "depth": trained.model.shape.depth,
    }
    created = int((manifest.folder / "manifest.json").stat().st_mtime)
    token = os.environ.get(TOKEN_VARIABLE) or None
    return Served(arguments.name or arguments.job_dir.name, batcher, created, token, arguments.host in LOOPBACK, facts=facts)


def _bind(host: str, port: int) -> socket.socket:
    """A socket of this address, taken before the model is loaded: that takes long, and would be in vain on a busy port.

    It listens only later, so that who asks for a server that still loads is refused and does not hang.

    Raises:
        TrainerError: The address cannot be had.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise _no_address(host, port, error) from error
    return listener


def _no_address(host: str, port: int, error: Exception) -> TrainerError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        other = port + 1 if port < MAX_PORT else port - 1
        return TrainerError(f"port {port} is in use by another program", where="--port", hint=f"take another one: --port {other}", code=ExitCode.USAGE)
    return TrainerError(f"cannot listen on {host}, port {port}: {error}", where="--host", code=ExitCode.USAGE)


def main(argv: Sequence[str] = ()) -> int:
    """Serve until SIGTERM or Ctrl-C; gives back the exit code."""
    arguments = _arguments(argv)
    try:
        _require_token(arguments.host)
        with _bind(arguments.host, arguments.port) as listener:
            return _run(arguments, listener)
    except TrainerError as error:
        print(f"serve: {error}", file=sys.stderr)
        return int(error.code)
    except KeyboardInterrupt:  # while the model is loaded, or from uvicorn, which raises it again once it has shut down
        print("server stopped", flush=True)
        return 128 + signal.SIGINT


def _run(arguments: argparse.Namespace, listener: socket.socket) -> int:
    served = _serve(arguments)
    config = uvicorn.Config(
        build_app(served), host=arguments.host, port=arguments.port, log_level="warning", timeout_graceful_shutdown=10, server_header=False
    )
    server = _Server(config, served, arguments.idle_ttl_s)
    served.batcher.start()
    try:
        server.run([listener])
    finally:
        served.batcher.stop()
    return int(ExitCode.DONE) if server.started else int(ExitCode.NOT_READY)


class _Server(uvicorn.Server):
    """Says where it listens once it does, and leaves when nobody has asked for a while."""

    def __init__(self, config: uvicorn.Config, served: Served, idle_ttl_s: float) -> None:
        super().__init__(config)
        self.served, self.idle_ttl_s = served, idle_ttl_s

    async def startup(self, sockets: object = None) -> None:
        try:
            await super().startup(sockets)  # type: ignore[arg-type]
        except OSError as error:  # another program bound the port too, and was the first to listen
            raise _no_address(self.config.host, self.config.port, error) from error
        if not self.started or self.should_exit:
            return
        port = self.servers[0].sockets[0].getsockname()[1]
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        print(f"serving {self.served.name} on http://{host}:{port}", flush=True)
        if self.idle_ttl_s > 0:
            threading.Thread(target=self._watch_idle, name="idle", daemon=True).start()

    def _watch_idle(self) -> None:
        batcher, seen, since = self.served.batcher, -1, time.monotonic()
        while not self.should_exit:
            if batcher.counters.requests != seen or batcher.active or batcher.waiting:
                seen, since = batcher.counters.requests, time.monotonic()
            if time.monotonic() - since > self.idle_ttl_s:
                print(f"no request for {self.idle_ttl_s:.0f} s: leaving", flush=True)
                self.should_exit = True
            time.sleep(min(1.0, self.idle_ttl_s / 4))
