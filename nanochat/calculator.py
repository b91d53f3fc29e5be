"""The calculator that a model may call while it answers: asked here, worked out in a process of its own.

The process has a memory limit and each answer a time limit; when it does not answer in time, it is killed and the call has
no result. That bounds what a model's odd expressions can do to the trainer; `nanochat.calculator_worker` accepts nothing that
could reach further.
"""

import json
import os
import selectors
import subprocess
import sys
import time
import weakref
from pathlib import Path
from types import TracebackType

__all__ = ["Calculator"]

TIMEOUT_S = 3.0
_WORKER = Path(__file__).with_name("calculator_worker.py")


class Calculator:
    """Works out expressions. The process starts with the first one and is used again for the next.

    Args:
        timeout_s: Seconds that one expression may take.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, expression: str) -> str | None:
        """The result as text; None where there is none: not arithmetic, division by zero, too large, too slow."""
        process = self._started()
        assert process.stdin is not None  # for the type checker; both are pipes
        try:
            process.stdin.write((json.dumps(expression) + "\n").encode())
            process.stdin.flush()
            line = self._read_line(process)
        except OSError:  # it died, of its memory limit for example
            line = None
        if line is None:
            self.close()
            return None
        answer: str | None = json.loads(line)
        return answer

    def _read_line(self, process: subprocess.Popen[bytes]) -> bytes | None:
        """One line, or None where none came in time."""
        assert process.stdout is not None
        deadline, collected = time.monotonic() + self._timeout_s, b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not collected.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                part = os.read(process.stdout.fileno(), 65_536)
                if not part:
                    return None
                collected += part
        return collected

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                bufsize=0, env={},
            )
            weakref.finalize(self, _end, self._process)
        return self._process

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            _end(self._process)
            self._process = None

    def __enter__(self) -> "Calculator":
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ends the process."""
        self.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and closes its pipes; also when a calculator is simply forgotten."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
