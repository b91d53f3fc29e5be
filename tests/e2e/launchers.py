"""Real launchers for tests, forked from a server that has imported the trainer once: torch costs seconds to import.

From the fork on everything is what ``python -m nanochat launch`` does: it forks the ranks, they join over loopback, signals
and exit codes are real.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from loopback import free_port

from nanochat.contract import RunConfig, RunFile, World, layout
from nanochat.contract.events import parse_lines
from nanochat.streams import never_fail

SECONDS = 90
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["nanochat.rank", "nanochat.launch.command", "nanochat.stages.tokenizer", "nanochat.stages.pretrain", "nanochat.stages.sft",
     "nanochat.stages.evaluate", "nanochat.stages.rl"]
)


def _launch(environment: dict[str, str], log: str) -> None:
    """In the forked process: become a launcher."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    never_fail()
    os.environ.update(environment)
    from nanochat.contract import Stage

    if "STAND_IN" in environment:
        import nanochat.stages

        nanochat.stages.STAGES[Stage.PRETRAIN] = "stand_in_stage"
    if "FAULT" in environment:
        import faults

        getattr(faults, environment["FAULT"])()
    from nanochat.launch.command import main

    code = main()
    sys.stdout.flush()
    os._exit(code)


class Nodes:
    """The launchers of one job on this computer.

    Args:
        job: The job's folder.
        run: What to run.
        nodes: Launchers.
        per_node: Ranks of each.
        env: More environment.
        port: Of the store; default a free one.
        first_late_s: How much later than the others the first node, which opens the port, starts.
        fields: More fields of run.json.
    """

    def __init__(
        self, job: Path, run: RunConfig, nodes: int = 1, per_node: int = 1, env: dict[str, str] | None = None,
        port: int = 0, first_late_s: float = 0.0, **fields: Any
    ) -> None:
        self.job, self.size = job, nodes * per_node
        job.mkdir(exist_ok=True, parents=True)
        config = RunFile(job=job.name, run=run, world=World(nodes=nodes, ranks_per_node=per_node, device="cpu"), **fields)
        layout.run_file(job).write_text(config.model_dump_json())
        self._port, self._env = str(port or free_port()), env or {}
        others = [self._start(node) for node in range(1, nodes)]
        time.sleep(first_late_s)
        self.processes = [self._start(0), *others]

    def _start(self, node: int) -> ForkServerProcess:
        environment = {
            layout.ENV_JOB_DIR: str(self.job), layout.ENV_NODE_RANK: str(node), layout.ENV_MASTER_PORT: self._port,
            "RANK": "17", "WORLD_SIZE": "99", **self._env,  # as a platform might set them
        }
        process = _CONTEXT.Process(target=_launch, args=(environment, str(self.job / f"launcher{node}.log")))
        process.start()
        return process

    def wait(self) -> list[int]:
        """Exit codes."""
        for process in self.processes:
            process.join(SECONDS)
            assert process.exitcode is not None, f"does not end\n{self.output()}"
        return [process.exitcode or 0 for process in self.processes]

    def send(self, number: signal.Signals, node: int = 0) -> None:
        """Signal a launcher."""
        pid = self.processes[node].pid
        assert pid is not None
        os.kill(pid, number)

    def wait_for(self, *files: str) -> list[str]:
        """Texts of files in the job's folder, once they are all there."""
        deadline = time.monotonic() + SECONDS
        paths = [self.job / file for file in files]
        while not all(path.exists() and path.read_text() for path in paths):
            assert time.monotonic() < deadline, self.output()
            assert all(process.is_alive() for process in self.processes), self.output()
            time.sleep(0.02)
        return [path.read_text() for path in paths]

    def wait_for_event(self, kind: str, attempt: int = 0, **fields: Any) -> dict[str, Any]:
        """The first event with these fields, once it is there."""
        deadline = time.monotonic() + SECONDS
        while True:
            for event in self.events(attempt):
                if event["event"] == kind and all(event.get(key) == value for key, value in fields.items()):
                    return event
            assert time.monotonic() < deadline, self.output()
            assert all(process.is_alive() for process in self.processes), self.output()
            time.sleep(0.02)

    def output(self) -> str:
        """What was printed, for messages."""
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.job.rglob("*.log")))

    def verdict(self, attempt: int = 0) -> dict[str, Any]:
        """The attempt's verdict."""
        return json.loads(layout.verdict_file(self.job, attempt).read_text())

    def events(self, attempt: int = 0) -> list[dict[str, Any]]:
        """The attempt's events so far."""
        path = layout.events_file(self.job, attempt)
        return list(parse_lines(path.read_text().splitlines())) if path.exists() else []

    def losses(self, attempt: int = 0, stage: str = "pretrain") -> dict[int, float]:
        """Loss by step."""
        return {e["step"]: e["loss"] for e in self.events(attempt) if e["event"] == "step" and e["stage"] == stage}

    def ledger(self) -> dict[str, Any]:
        """Attempts and their ends."""
        return json.loads(layout.ledger_file(self.job).read_text())

    def end(self) -> None:
        """Kill what still runs."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()


def alive(pid: int) -> bool:
    """True if a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
