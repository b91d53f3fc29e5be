"""What is printed never decides how a job ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}
BEFORE = "import os, sys\nfrom nanochat.streams import never_fail\n"


@pytest.mark.parametrize("held", ["", "sys.stdout.write('x')\n"])
def test_a_stream_that_cannot_be_written_is_replaced_whatever_it_holds(held: str) -> None:
    """What was printed before and is still held cannot be written either: a reason to replace the stream, and not to keep it."""
    script = f"{BEFORE}{held}never_fail()\nprint('y', flush=True)\nprint('z', file=sys.stderr, flush=True)\nos._exit(3)"
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([sys.executable, "-c", script], stdout=full, stderr=full, env=BUFFERED, timeout=60, check=False).returncode == 3


def test_what_can_be_written_is_written_and_closed_streams_are_left_alone() -> None:
    script = f"{BEFORE}print('a', end='')\nnever_fail()\nprint('b')\nsys.stderr.close()\nnever_fail()\nprint('c')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=BUFFERED, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "ab\nc\n")
