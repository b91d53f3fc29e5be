"""Faults that a test plants into the trainer's processes, by name in the environment variable FAULT (see launchers.py)."""

import itertools
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

__all__ = [
    "counts_readings_of_own_files", "deadline_too_near_after", "disk_full", "evaluation_fails_on_rank_1", "fresh_interpreters",
    "killed_in_mid_step", "killed_while_saving", "nothing_can_be_written", "slow_evaluation", "slow_to_leave",
    "stuck_before_the_smoke_test", "weights_not_finite",
]


def evaluation_fails_on_rank_1() -> None:
    """Every evaluation raises on rank 1 and on no other, by turns what libraries raise."""
    from nanochat import evaluation

    original = evaluation.nats_and_bytes
    kinds = itertools.cycle((RuntimeError, AssertionError, MemoryError, AttributeError))

    def failing(*args: Any, **kwargs: Any) -> tuple[float, int]:
        if os.environ["RANK"] == "1":
            raise next(kinds)("planted")
        return original(*args, **kwargs)

    evaluation.nats_and_bytes = failing


def deadline_too_near_after() -> None:
    """From step FAULT_STEP on an hour is not enough for another step and a checkpoint: no test can tell how long it takes to start."""
    from nanochat import guards

    original = guards.BudgetGuard.after_step

    def after_step(self: guards.BudgetGuard, progress: guards.Progress) -> Any:
        guards.MARGIN_S = 86_400.0 if progress.step >= int(os.environ["FAULT_STEP"]) else 0.0
        return original(self, progress)

    guards.BudgetGuard.after_step = after_step  # type: ignore[method-assign]


def disk_full() -> None:
    """From step FAULT_STEP on no file may grow beyond 100 kB; a checkpoint's does (a real error of the operating system)."""
    from nanochat.loop import Loop

    original = Loop._save

    def save(self: Loop) -> Any:
        if self.counters.step >= int(os.environ["FAULT_STEP"]) and self.context.peers.rank == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        try:
            return original(self)
        finally:
            if self.context.peers.rank == 0:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    Loop._save = save  # type: ignore[method-assign]


def nothing_can_be_written() -> None:
    """From step FAULT_STEP on the disk takes not one byte more, neither of the ranks nor of their launcher."""
    from nanochat.loop import Loop

    original = Loop._save

    def save(self: Loop) -> Any:
        if self.counters.step >= int(os.environ["FAULT_STEP"]):
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return original(self)

    Loop._save = save  # type: ignore[method-assign]


def killed_in_mid_step() -> None:
    """The last rank is killed in step FAULT_STEP, between backward and update."""
    from nanochat.optim import MuonAdamW

    original = MuonAdamW.step

    def step(self: MuonAdamW, rates: Any) -> None:
        if self.updates + 1 == int(os.environ["FAULT_STEP"]) and self.comm.rank == self.comm.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, rates)

    MuonAdamW.step = step  # type: ignore[method-assign]


def killed_while_saving() -> None:
    """Rank 0 is killed in the checkpoint of step FAULT_STEP, when the tensors are written and the manifest is not."""
    from nanochat.checkpoint import Checkpoints, Snapshot

    original = Checkpoints._finish

    def finish(self: Checkpoints, partial: Any, final: Any, snapshot: Snapshot, reports: Any) -> str:
        if snapshot.step == int(os.environ["FAULT_STEP"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, partial, final, snapshot, reports)

    Checkpoints._finish = finish  # type: ignore[method-assign]


def slow_to_leave() -> None:
    """A rank that is done takes three seconds to leave, as one does whose tracker still sends."""
    from nanochat.rank import Rank

    original = Rank._close

    def close(self: Rank) -> None:
        (self.place.job_dir / f"leaving{self.place.rank}").write_text("x")
        time.sleep(3)
        original(self)

    Rank._close = close  # type: ignore[method-assign]


def slow_evaluation() -> None:
    """An evaluation takes a minute, in which a rank looks up for a stop; as it begins, a file is written."""
    from nanochat import evaluation

    def slow(*args: Any, check: Any, **kwargs: Any) -> tuple[float, int]:
        Path(os.environ["NANOCHAT_JOB_DIR"], f"evaluating{os.environ['RANK']}").write_text(str(os.getpid()))
        for _ in range(600):
            check()
            time.sleep(0.1)
        return 1.0, 1

    evaluation.nats_and_bytes = slow


def weights_not_finite() -> None:
    """The update of step FAULT_STEP overflows on every rank."""
    from nanochat.optim import MuonAdamW

    original = MuonAdamW.step

    def step(self: MuonAdamW, rates: Any) -> None:
        original(self, rates)
        if self.updates == int(os.environ["FAULT_STEP"]):
            for unit in self.units:
                for _, param in unit.params:
                    param.data[..., 0] = float("inf")

    MuonAdamW.step = step  # type: ignore[method-assign]


def fresh_interpreters() -> None:
    """Ranks are started as on an NPU: new processes, not forks of the launcher."""
    from nanochat.launch import command

    command._may_fork = lambda run: False


def counts_readings_of_own_files() -> None:
    """Each time that a file of one's own is tokenised as a whole, a line is written beside it."""
    from nanochat.data.conversations import ConversationFile

    original = ConversationFile.leave_out_unlearnable

    def leave_out(self: ConversationFile, learnt_of: Any, limit: int) -> None:
        with self.path.with_suffix(".readings").open("a") as file:
            file.write(f"rank {os.environ['RANK']}\n")
        original(self, learnt_of, limit)

    ConversationFile.leave_out_unlearnable = leave_out  # type: ignore[method-assign]


def stuck_before_the_smoke_test() -> None:
    """The device of rank 2 never answers when the first all-reduce is prepared; the limit of a minute is two seconds."""
    from nanochat import smoke
    from nanochat.device import Device

    original = Device.synchronise
    smoke.LIMIT_S = 2.0

    def synchronise(self: Device) -> None:
        if os.environ["RANK"] == "2":
            time.sleep(600)
        original(self)

    Device.synchronise = synchronise  # type: ignore[method-assign]
