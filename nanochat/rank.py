"""One rank of a job: finds its place, joins the others, runs the stages, and leaves with a code that means something.

Started by `nanochat.launch`, or by ``torchrun -m nanochat rank``. Whatever ends it badly becomes a verdict, written
before it leaves, so that ranks which die of the broken connection can leave with the same code.
"""

import contextlib
import errno
import faulthandler
import json
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from nanochat import __version__
from nanochat import verdict as verdicts
from nanochat.agreement import agree
from nanochat.context import Context, SessionOver
from nanochat.contract import ExitCode, RunFile, layout
from nanochat.device import Device, pick
from nanochat.distributed import Communicator, join
from nanochat.errors import Interrupted, NotReady, PeerLost, TrainerError
from nanochat.eventlog import EventLog
from nanochat.files import write_atomic
from nanochat.guards import BudgetGuard, Guard
from nanochat.heartbeat import Heartbeat
from nanochat.launch.control import publish
from nanochat.launch.settings import read_run_file
from nanochat.peers import VERDICT_KEY, Peers
from nanochat.smoke import all_reduce_smoke
from nanochat.stages import run_stages
from nanochat.stopping import StopSignal
from nanochat.tracking import Tracker, choose_backend
from nanochat.verdict import Verdict

__all__ = ["main"]

VERDICT_WAIT_S = 5.0
"""How long a rank whose connection broke looks for the verdict of the one that left."""
BROKEN_CONNECTION = ("gloo", "Connection closed by peer", "Connection reset", "Broken pipe", "NCCL", "HCCL", "hccl", "ERR02")
"""What backends write when a peer is gone: gloo and torch_npu raise plain RuntimeErrors."""


@dataclass(frozen=True)
class Place:
    """Where this rank stands."""

    rank: int
    local_rank: int
    size: int
    local_size: int
    attempt: int
    job_dir: Path

    @classmethod
    def read(cls, env: Mapping[str, str] = os.environ) -> tuple["Place", RunFile]:
        """Place and run config from what launch (or torchrun) set; one rank alone where nothing is set."""
        job_dir = Path(env.get(layout.ENV_JOB_DIR) or ".").absolute()
        run = read_run_file(Path(env.get(layout.ENV_RUN_FILE) or layout.run_file(job_dir)))
        place = cls(
            rank=int(env.get("RANK", "0")), local_rank=int(env.get("LOCAL_RANK", "0")), size=int(env.get("WORLD_SIZE", "1")),
            local_size=int(env.get("LOCAL_WORLD_SIZE", "1")), attempt=int(env.get(layout.ENV_ATTEMPT) or run.attempt), job_dir=job_dir,
        )
        return place, run


def main(argv: Sequence[str] = ()) -> int:
    """Run one rank; gives back its exit code."""
    if argv:
        print("usage: python -m nanochat rank   (started by python -m nanochat launch)", file=sys.stderr)
        return int(ExitCode.USAGE)
    try:
        place, run = Place.read()
    except TrainerError as error:
        print(f"rank: {error}", file=sys.stderr)
        return int(error.code)
    return Rank(place, run).run()


class Rank:
    """One rank of one attempt."""

    def __init__(self, place: Place, run: RunFile) -> None:
        self.place, self.run_file = place, run
        self.stop = StopSignal()
        self.store: dist.Store | None = None
        self.tracker: Tracker | None = None
        path = layout.events_file(place.job_dir, place.attempt) if place.rank == 0 else None
        self.events = EventLog(path, rank=place.rank, attempt=place.attempt)

    def run(self) -> int:
        """Exit code of the stages."""
        self.stop.install()
        faulthandler.enable()  # a crash in native code leaves a stack in the rank's log, and so does SIGUSR1
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        started = time.time()
        try:
            context = self._join(started)
            run_stages(context)
        except SessionOver as over:
            self.stop.over()
            self._done(over.reason, over.step, resumable=True)
            return self._leave()
        except BaseException as error:
            self.stop.over()
            return self._fail(error)
        self.stop.over()
        self._done("finished", self.events.step, resumable=False)
        return self._leave()

    def _join(self, started: float) -> Context:
        place = self.place
        _share_cores(place.local_size)
        if place.size > 1 or os.environ.get("MASTER_PORT", "0") != "0":
            self.store = _open_store(place, self.run_file.start_timeout_s)
        peers = Peers(place.rank, place.size, self.store, place.local_size)
        peers.join(self.run_file.start_timeout_s)
        agree(peers)  # before the device: a wrong torch_npu dies on being loaded, and without naming anybody
        device = pick(self.run_file.world.device, place.local_rank)
        heart = Heartbeat(self.store, place.rank, self.run_file.silence_timeout_s)
        comm = self._meet(device, heart)
        if place.rank == 0 and (backend := choose_backend(self.run_file, place.job_dir)) is not None:
            self.tracker = Tracker(backend, self.events, self.run_file.run.tracking.every_steps)
        if place.rank == 0:
            with contextlib.suppress(OSError):  # a full volume is found by what cannot do without it
                write_atomic(layout.results_file(place.job_dir, "runtime"), json.dumps(_versions(device), indent=1) + "\n")
        guards: list[Guard] = [BudgetGuard(self.run_file.budget, started)]
        return Context(self.run_file, place.job_dir, device, peers, comm, self.events, self.stop, heart, guards, started=started)

    def _meet(self, device: Device, heart: Heartbeat) -> Communicator:
        """The process group, after a first barrier: links between all ranks are made here, and not in the first step."""
        if self.place.size == 1:
            return Communicator()
        patience = self.run_file.start_timeout_s / self.run_file.silence_timeout_s if self.run_file.silence_timeout_s else 1.0
        heart.busy("", 0, patience=patience)
        comm = join(device, store=self.store)
        heart.waiting("", 0, patience=patience)
        comm.barrier()
        self._smoke(comm, device, heart)
        heart.rest()
        return comm

    def _smoke(self, comm: Communicator, device: Device, heart: Heartbeat) -> None:
        """A first all-reduce with a limit of its own; on CPU only where it is asked for, since it takes a second there."""
        if device.backend == "gloo" and os.environ.get("NANOCHAT_SMOKE") != "1":
            return
        found = all_reduce_smoke(comm, device, self.place.local_size, heart=heart)
        if self.place.rank == 0:
            entry = {"check": "all-reduce", "ok": True, "gb_per_s": round(found.bus_gb_per_s, 3), "node_gb_per_s": round(found.per_node_gb_per_s, 3)}
            self.events.emit("checks", node=0, took_s=round(found.took_s, 3), checks=[entry])

    def _done(self, reason: str, step: int, *, resumable: bool) -> None:
        if self.place.rank == 0:
            self.events.emit("done", reason=reason, step=step, resumable=resumable)

    def _leave(self) -> int:
        self._close()
        return int(ExitCode.DONE)

    def _close(self) -> None:
        if self.tracker is not None:
            self.tracker.close()
        self.events.close()

    def _fail(self, error: BaseException) -> int:
        """Exit code for an error; the verdict is written before this returns."""
        verdict = self._adopt(error) or self._judge(error)
        if verdict.rank == self.place.rank:
            with contextlib.suppress(OSError):
                verdicts.write_first(self.place.job_dir, verdict)
            if self.store is not None:
                publish(self.store, verdict)
        if verdict.code == ExitCode.INTERRUPTED:
            self._done("interrupted", self.events.step, resumable=True)
        self._close()
        print(f"rank {self.place.rank}: {verdict.message}", file=sys.stderr)
        return verdict.code

    def _adopt(self, error: BaseException) -> Verdict | None:
        """The verdict of the rank that left first, if this one merely lost its connection."""
        if not _is_broken_connection(error):
            return None
        if self.stop.requested:
            return None
        return verdicts.wait_for(self.place.job_dir, self.place.attempt, VERDICT_WAIT_S) or self._told()

    def _told(self) -> Verdict | None:
        """The verdict in the store: nodes without a common volume have only that."""
        if self.store is None:
            return None
        with contextlib.suppress(RuntimeError):
            if self.store.check([VERDICT_KEY]):
                return Verdict.from_json(self.store.get(VERDICT_KEY).decode())
        return None

    def _judge(self, error: BaseException) -> Verdict:
        code, message, hint = self._translate(error)
        if code == ExitCode.BUG:
            traceback.print_exception(error, file=sys.stderr)
        return Verdict(
            int(code), self.place.rank, message, stage=self.events.stage, step=self.events.step, attempt=self.place.attempt,
            where=error.where if isinstance(error, TrainerError) else None, hint=hint,
        )

    def _translate(self, error: BaseException) -> tuple[ExitCode, str, str | None]:
        if isinstance(error, (Interrupted, KeyboardInterrupt)) or (self.stop.requested and _is_broken_connection(error)):
            return ExitCode.INTERRUPTED, "stopped on request", None
        if isinstance(error, TrainerError):
            return error.code, error.message, error.hint
        if isinstance(error, torch.OutOfMemoryError):
            return ExitCode.BAD_CONFIG, f"out of device memory: {str(error).splitlines()[0]}", "halve run.pretrain.device_batch"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return ExitCode.BAD_CONFIG, f"no space left: {error}", "free space on the output volume, or lower checkpoint.keep_last"
        if _is_broken_connection(error):
            return ExitCode.DEVICE_LOST, f"lost the connection to another rank: {_first_line(error)}", None
        return ExitCode.BUG, f"{type(error).__name__}: {_first_line(error)}", f"the traceback is in rank{self.place.rank}.log"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:500]


def _is_broken_connection(error: BaseException) -> bool:
    if isinstance(error, (PeerLost, dist.DistError)):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in BROKEN_CONNECTION)


def _versions(device: Device) -> dict[str, object]:
    """What this attempt runs on and with, for the report."""
    versions = {"nanochat": __version__, "python": platform.python_version(), "torch": torch.__version__}
    library, _space, number = device.runtime.rpartition(" ")
    if library and library not in versions:
        versions[library] = number
    return {"device": device.name, "host": platform.node(), "system": platform.platform(), "versions": versions}


def _share_cores(local_size: int) -> None:
    """Ranks on one node share its cores; more threads than cores make barriers crawl. OMP_NUM_THREADS overrules."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_size))


def _open_store(place: Place, timeout_s: float) -> dist.Store:
    """A client of the store that the launcher (or torchrun's agent) hosts."""
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        return dist.TCPStore(
            host, port, is_master=not hosted and place.rank == 0, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
        )
    except RuntimeError as error:
        raise NotReady(f"rank {place.rank} cannot reach the store: {_first_line(error)}", where=f"{host}:{port}") from error
