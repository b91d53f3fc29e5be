"""Watching the ranks of one node until they have ended: one loop, no threads.

Three things end it: the ranks leave by themselves; a rank, here or on another node, fails, and the others get a few
seconds to leave with the same verdict; or a stop is asked for, and they get the grace period to write a checkpoint.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanochat import verdict as verdicts
from nanochat.contract import ExitCode
from nanochat.heartbeat import Silence, Watch
from nanochat.launch.control import ControlStore
from nanochat.launch.echo import Echo
from nanochat.launch.processes import RankProcess
from nanochat.peers import name_ranks
from nanochat.verdict import Verdict

__all__ = ["PEER_EXIT_S", "Supervisor"]

PEER_EXIT_S = 10.0
"""Peers of a failed rank find its verdict within a few seconds; whoever still hangs then is killed."""
TICK_S = 0.25
LOOK_EVERY_S = 2.0
STACKS_WITHIN_S = 0.5
GRACE_SHARE = 0.9
"""Of the grace period; the rest is for the launcher itself before the platform kills the pod."""


@dataclass
class _Deadline:
    at: float
    why: str


class Supervisor:
    """Watches ranks; `run` gives back the verdict, or None when all went well.

    Args:
        job_dir: The job's folder.
        attempt: Attempt number.
        ranks: This node's ranks, running.
        control: Store shared with the other nodes; None if the world is one rank.
        echo: Prints the ranks' output.
        grace_period_s: Time between a request to stop and the platform's kill.
    """

    def __init__(
        self, job_dir: Path, attempt: int, ranks: Sequence[RankProcess], control: ControlStore | None, echo: Echo, grace_period_s: float
    ) -> None:
        self.job_dir, self.attempt = job_dir, attempt
        self.ranks, self.control, self.echo = list(ranks), control, echo
        self.grace_s = grace_period_s * GRACE_SHARE
        self.world_size = 0
        self._signals = 0
        self._stopping = False
        self._deadline: _Deadline | None = None
        self._watch: Watch | None = None
        self._next_look = time.monotonic() + LOOK_EVERY_S

    def watch_all(self, world_size: int) -> None:
        """Look after the heartbeats of all ranks of the job; the first node's launcher does."""
        self.world_size, self._watch = world_size, Watch(world_size)

    def run(self) -> Verdict | None:
        """Wait for the end; no rank of this node is left when it returns."""
        with self._wakeups() as wait:
            while self._alive():
                wait()
                self._answer_signals()
                self._reap()
                self._listen()
                self._look()
                self._enforce()
                self.echo.pump()
        return self._conclude()

    def interrupt(self) -> None:
        """What a SIGTERM or Ctrl-C does: the first stops in good order, the second at once."""
        self._signals += 1

    @contextlib.contextmanager
    def _wakeups(self) -> Iterator[Callable[[], None]]:
        """Signals, a child's end among them, cut the waiting short."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        before = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGTERM, lambda *_: self.interrupt()),
                (signal.SIGINT, lambda *_: self.interrupt()),
                (signal.SIGCHLD, lambda *_: None),
            )
        }
        fd_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

        def wait() -> None:
            select.select([reader], [], [], TICK_S)
            with contextlib.suppress(BlockingIOError):
                os.read(reader, 4096)

        try:
            yield wait
        finally:
            signal.set_wakeup_fd(fd_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)

    def _alive(self) -> list[RankProcess]:
        return [rank for rank in self.ranks if rank.code is None]

    def _answer_signals(self) -> None:
        if self._signals:
            self._stop_all()
        if self._signals > 1:
            self._kill("stopped at once by a second signal; the last checkpoint stands")

    def _stop_all(self) -> None:
        """Stop the ranks of this node, and ask the other nodes to stop theirs; once."""
        if self._stopping:
            return
        self._stop()
        if self.control:
            self.control.request_stop()

    def _stop(self) -> None:
        self._stopping = True
        self._set_deadline(self.grace_s, "no checkpoint within the grace period; the last one stands")
        self._send(signal.SIGTERM)

    def _reap(self) -> None:
        for rank in self.ranks:
            if not rank.poll():
                continue
            if rank.code == ExitCode.INTERRUPTED:
                self._stop_all()  # somebody stopped this one rank: the others may be in something long, and wait for it in vain
            elif rank.code != ExitCode.DONE:
                self._failed(rank)

    def _failed(self, rank: RankProcess) -> None:
        """A rank left badly. If it could not say why (killed, crashed in native code), say what is known."""
        code = int(ExitCode.BUG) if rank.code is None else rank.code
        how = f"killed by {_signal_name(code - 128)}" if code > 128 else f"left with {code} and without a verdict"
        hint = "often the kernel's out-of-memory killer: see dmesg, give the worker more memory" if code == 137 else None
        if verdicts.read(self.job_dir, self.attempt) is None:
            self._decide(Verdict(code, rank.rank, how, attempt=self.attempt, hint=hint))
        self._set_deadline(PEER_EXIT_S, "a peer failed")

    def _decide(self, verdict: Verdict) -> None:
        with contextlib.suppress(OSError):  # a full or lost volume: the store and the exit code still tell
            verdicts.write_first(self.job_dir, verdict)
        if self.control:
            self.control.publish(verdict)

    def _listen(self) -> None:
        """What other nodes say."""
        if self.control is None or self.control.lost:
            return
        if self._deadline is None and self.control.verdict() is not None:
            self._set_deadline(PEER_EXIT_S, "a rank on another node failed")
        if not self._stopping and self.control.stop_requested():
            self._stop()

    def _look(self) -> None:
        """Is a rank silent, wherever it runs? Then say which, and end the attempt."""
        if self._watch is None or self.control is None or self._deadline is not None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_EVERY_S
        found = self._watch.look(self.control.beats(self.world_size), time.monotonic())
        if found is None:
            return
        self._decide(_verdict_on(found, self.attempt))
        self._set_deadline(0.0, "a rank is silent")

    def _set_deadline(self, seconds: float, why: str) -> None:
        at = time.monotonic() + seconds
        if self._deadline is None or at < self._deadline.at:
            self._deadline = _Deadline(at, why)

    def _enforce(self) -> None:
        if self._deadline and time.monotonic() > self._deadline.at:
            self._kill(self._deadline.why)

    def _kill(self, why: str) -> None:
        if self._stopping and self._alive() and verdicts.read(self.job_dir, self.attempt) is None:
            first = self._alive()[0].rank
            self._decide(Verdict(int(ExitCode.INTERRUPTED), first, why, attempt=self.attempt))
        if self._deadline is not None and not self._stopping and self._alive():
            self._send(signal.SIGUSR1)  # each writes its stacks into its log
            time.sleep(STACKS_WITHIN_S)
        self._send(signal.SIGKILL)
        for rank in self._alive():
            _, status = os.waitpid(rank.pid, 0)
            rank.code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _send(self, number: signal.Signals) -> None:
        for rank in self._alive():
            rank.send(number)

    def _conclude(self) -> Verdict | None:
        self.echo.close()
        told = verdicts.read(self.job_dir, self.attempt) or (self.control.verdict() if self.control else None)
        if told is not None:
            return told
        bad = next((rank for rank in self.ranks if rank.code), None)
        if bad is None or bad.code is None:
            return None
        message = "stopped" if bad.code == ExitCode.INTERRUPTED else f"rank {bad.rank} left with {bad.code}"
        return Verdict(bad.code, bad.rank, message, attempt=self.attempt)


def _verdict_on(silence: Silence, attempt: int) -> Verdict:
    place = f"{silence.stage} step {silence.step}" if silence.stage else "the first barrier"
    if silence.all_wait:
        message = f"all ranks wait for each other in {place} for {silence.silent_s:.0f} s: a link, or the collective library, hangs"
        hint = "look into the plog of the ranks, and at the links between the nodes"
    else:
        message = f"{name_ranks(list(silence.ranks))} silent for {silence.silent_s:.0f} s in {place}; the others wait"
        hint = f"its stack is in rank{silence.ranks[0]}.log"
    return Verdict(
        int(ExitCode.DEVICE_LOST), silence.ranks[0], message, stage=silence.stage, step=silence.step, attempt=attempt, hint=hint
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
