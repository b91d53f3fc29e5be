"""A stand-in for Volcano in tests: a client that plays its documented state machine against a real API server.

``standin_main.py KUBECONFIG HOOK_PORT CERT KEY``. Three parts: admission (`standin_admission`), jobs (`standin_jobs`), gangs
(`standin_gangs`). Written from Volcano's documentation of phases and from what a client saw of version 1.15.1
(``tests/recordings``); a test holds its phases and event texts to those. It knows what these tests need and no more: no
fair share, no pre-emption, one queue level.
"""

import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import Any

from standin_admission import serve
from standin_gangs import Scheduler
from standin_jobs import JobController
from standin_world import World

from nanochat_npu.kube import Kube
from nanochat_npu.kube_errors import ConflictError
from nanochat_npu.kubeconfig import Target
from nanochat_npu.resources import QUEUES

PERIOD_S = 0.2
"""Between two looks where nothing has changed: the scheduler's period in these tests."""


def main(arguments: list[str]) -> None:
    """Run until killed."""
    kubeconfig, port, cert, key = arguments
    kube = Kube(Target.choose(environ={"KUBECONFIG": kubeconfig}))
    serve(kube, int(port), Path(cert), Path(key))
    changed = threading.Event()
    world = World(kube, changed.set)
    for name in ("root", "default"):
        _make_queue(kube, name)
    controller, scheduler = JobController(world), Scheduler(world)
    last = 0.0
    while True:
        changed.wait(PERIOD_S)
        changed.clear()
        world.refresh()
        _open_queues(world)
        controller.step()
        if time.monotonic() - last > PERIOD_S:
            scheduler.step()
            last = time.monotonic()
        time.sleep(0.02)


def _make_queue(kube: Kube, name: str) -> None:
    spec: dict[str, Any] = {"weight": 1, "reclaimable": True, **({"parent": "root"} if name != "root" else {})}
    with contextlib.suppress(ConflictError):
        kube.create(QUEUES, {"apiVersion": QUEUES.api_version, "kind": "Queue", "metadata": {"name": name}, "spec": spec})


def _open_queues(world: World) -> None:
    for queue in world.queues:
        if not queue.get("status", {}).get("state"):
            world.kube.patch(QUEUES, queue["metadata"]["name"], {"status": {"state": "Open"}}, sub="status")


if __name__ == "__main__":
    main(sys.argv[1:])
