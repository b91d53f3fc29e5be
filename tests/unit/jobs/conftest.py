"""Every test has a bench of its own, and leaves no process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from job_bench import Bench

from nanochat_npu import processes
from nanochat_npu.backends import ENDED


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "home")
    yield bench
    for name in bench.store.names():
        backend = bench.backend()
        if backend.get(name).state not in ENDED:
            backend.cancel(name, now=True)
            bench.end(backend, name)
        processes.kill_job(bench.store.folder(name).path)
