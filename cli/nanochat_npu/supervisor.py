"""The process that runs one local job: it starts the launchers, restarts them by the exit-code table, and obeys `cancel`.

``python -m nanochat_npu.supervisor FOLDER LOCK_FD`` detaches itself and lives as long as the job. It is to a local job what
Volcano's controller is to a cluster's: one launcher per node, the same environment, the same table of restarts.

- It holds the lock on ``supervisor.lock`` all its life; whoever finds the lock free knows that it is gone.
- ``state.json`` is replaced at every change and says what is, never what was hoped for.
- Signals are waited for, not handled (`signal.sigtimedwait`), so nothing happens between two lines of this file.
- SIGTERM asks it to look into ``intent.json``. Without an intent it is the computer that is going down: the job is stopped
  with a checkpoint and can go on later.
"""

import logging
import math
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from subprocess import Popen
from typing import Any

from nanochat.contract import ExitCode, events, from_returncode, layout
from nanochat_npu import processes
from nanochat_npu.backends import JobState
from nanochat_npu.jobs import JobFolder, overwrite_json, read_json, write_json
from nanochat_npu.restarts import STOPPED, Decision, Settings, Stop, Tally, Why, attempt_code, decide

__all__ = ["Attempt", "Supervisor", "main"]

log = logging.getLogger("nanochat_npu.supervisor")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
STOP_MARGIN_S = 10.0
"""What launchers get beyond the grace period before they are killed: theirs ends first, with a better message."""
PEER_KILL_S = 10.0
"""A launcher whose peer failed has nothing left to save; after SIGTERM it gets this long."""
MAX_DELAY_S = 30.0
LAST_WORD_S = 60.0
"""How long the last state is tried to be written, should neither a new file nor the old one take it just then."""


class Attempt:
    """The launchers of one start, and when to ask them and when to make them leave."""

    def __init__(self, settings: Settings) -> None:
        self.launchers: list[Popen[bytes]] = []
        self.settings = settings
        self.ended: dict[int, int] = {}
        self.term_at = math.inf
        self.kill_at = math.inf

    @property
    def running(self) -> bool:
        """True while a launcher lives."""
        return len(self.ended) < len(self.launchers)

    def stop(self, stop: Stop, now: float) -> None:
        """Ask the launchers to leave; twice is no more than once, `Stop.NOW` always is."""
        self.term_at = min(self.term_at, now)
        self.kill_at = min(self.kill_at, now if stop is Stop.NOW else now + self.settings.grace_period_s + STOP_MARGIN_S)

    def advance(self, now: float) -> None:
        """Note which launchers have ended, and send the signals that are due."""
        for node, launcher in enumerate(self.launchers):
            if node in self.ended or launcher.poll() is None:
                continue
            self.ended[node] = from_returncode(launcher.returncode)
            log.info("launcher %d (process %d) ended with %d", node, launcher.pid, self.ended[node])
            if self.ended[node] != ExitCode.DONE and self.kill_at == math.inf:
                self.term_at = min(self.term_at, now + self.settings.peer_grace_s)
                self.kill_at = self.term_at + PEER_KILL_S
        if now >= self.kill_at:
            self._signal(signal.SIGKILL)
            self.term_at, self.kill_at = math.inf, now + 1.0
        elif now >= self.term_at:
            self._signal(signal.SIGTERM)
            self.term_at = math.inf

    def wake_in_s(self, now: float) -> float:
        """Seconds until the next signal is due; at most a minute, should a SIGCHLD get lost."""
        return min(60.0, max(0.0, min(self.term_at, self.kill_at) - now))

    def _signal(self, number: signal.Signals) -> None:
        for node, launcher in enumerate(self.launchers):
            if node not in self.ended:
                launcher.send_signal(number)


class Supervisor:
    """Runs one job to its end."""

    def __init__(self, folder: JobFolder, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        self.stop = Stop.NO
        self.tally = Tally()
        self._unsaved = ""
        self.state: dict[str, Any] = {"started_s": time.time(), "attempts": read_json(folder.state_file).get("attempts") or []}

    def run(self) -> JobState:
        """Start and restart until the job has ended; its last state."""
        attempt = max(self.folder.attempts, default=-1) + 1
        while True:
            self._read_stop(signalled=False)
            if self.stop is not Stop.NO:  # asked for before or between attempts
                return self._end(STOPPED[self.stop], self.state.get("exit_code"))
            try:
                code = self._run_attempt(attempt)
            except OSError as error:
                log.exception("attempt %d", attempt)
                self.state["detail"] = str(error)
                return self._end(Decision(JobState.FAILED, Why.CANNOT_START), None)
            tally = self.tally.after(code)
            decision = decide(code, tally, self.settings, stop=self.stop, resumable=self._resumable(attempt))
            if decision.state is not JobState.CANCELLED:  # whoever cancels has seen neither a failure nor an interruption
                self.tally = tally
            if decision.state is not JobState.RESTARTING:
                return self._end(decision, code)
            self._write(decision, exit_code=code)
            self._wait_before_restart()
            attempt += 1

    def _run_attempt(self, number: int) -> int:
        started = time.time()
        self._write(Decision(JobState.RUNNING, Why.RUNNING), attempt=number, exit_code=None, launchers=[])
        attempt = Attempt(self.settings)
        try:
            self._start_launchers(number, attempt.launchers)
            self._show(attempt)
            self._watch(attempt)
        finally:
            # Also on a bug of ours: a supervisor never leaves and lets its processes run on.
            left = processes.kill_job(self.folder.path)
            _reap()
        if left:
            log.warning("killed %d processes that their launchers had left behind", left)
        code = attempt_code(read_json(layout.verdict_file(self.folder.path, number)), attempt.ended)
        self.state["attempts"].append({"attempt": number, "started_s": started, "ended_s": time.time(), "exit_code": code})
        self._show(attempt)
        return code

    def _watch(self, attempt: Attempt) -> None:
        attempt.advance(time.monotonic())
        while attempt.running:
            got = signal.sigtimedwait(SIGNALS, attempt.wake_in_s(time.monotonic()))
            if got is not None and got.si_signo != signal.SIGCHLD:
                self._read_stop(signalled=True)
                log.info("asked to stop: %s", self.stop)
                attempt.stop(self.stop, time.monotonic())
                self._write(Decision(JobState.RUNNING, Why.STOPPING))
            attempt.advance(time.monotonic())

    def _start_launchers(self, attempt: int, started: list[Popen[bytes]]) -> None:
        common = {
            **{name: value for name, value in os.environ.items() if name not in _PLATFORM_VARIABLES | _SETTLED_VARIABLES},
            layout.ENV_JOB_DIR: str(self.folder.path), layout.ENV_RUN_FILE: str(self.folder.run_file),
            layout.ENV_ATTEMPT: str(attempt), layout.ENV_NODES: str(self.settings.nodes), layout.ENV_NPROC: str(self.settings.ranks_per_node),
            layout.ENV_MASTER_ADDR: "127.0.0.1", layout.ENV_MASTER_PORT: str(processes.free_port()),
        }
        for node in range(self.settings.nodes):
            own = self.settings.node_env[node] if node < len(self.settings.node_env) else {}
            log_file = layout.launcher_log(self.folder.path, attempt, node)
            started.append(
                processes.start(
                    self.settings.command, env={**common, **own, layout.ENV_NODE_RANK: str(node)}, log=log_file, cwd=Path(self.settings.cwd)
                )
            )
            log.info("attempt %d: launcher %d is process %d", attempt, node, started[-1].pid)

    def _wait_before_restart(self) -> None:
        restarts = self.tally.failures + self.tally.preemptions
        until = time.monotonic() + min(MAX_DELAY_S, self.settings.restart_delay_s * 2 ** (restarts - 1))
        while self.stop is Stop.NO and (left := until - time.monotonic()) > 0:
            got = signal.sigtimedwait((signal.SIGTERM, signal.SIGINT), left)
            if got is not None:
                self._read_stop(signalled=True)

    def _read_stop(self, *, signalled: bool) -> None:
        wanted = read_json(self.folder.intent_file).get("stop")
        if wanted in (Stop.GRACEFULLY, Stop.NOW):
            self.stop = Stop(wanted)
        elif signalled:
            self.stop = Stop.OUTSIDE

    def _resumable(self, attempt: int) -> bool:
        try:
            lines = layout.events_file(self.folder.path, attempt).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return False
        done = [event for event in events.parse_lines(lines[-100:]) if event["event"] == "done"]
        return bool(done and done[-1].get("resumable"))

    def _show(self, attempt: Attempt) -> None:
        self.state["launchers"] = [
            {"node": node, "pid": launcher.pid, "exit_code": attempt.ended.get(node)} for node, launcher in enumerate(attempt.launchers)
        ]
        self._save()

    def _write(self, decision: Decision, **changes: Any) -> None:
        self.state.update(asdict(self.tally), state=decision.state, why=decision.why, **changes)
        self._save()

    def _save(self) -> bool:
        """True if the state is on disk. A full disk must not end a job that may still train well."""
        try:
            write_json(self.folder.state_file, self.state)
        except OSError as error:
            log.warning("the state cannot be written: %s", error)
            self._unsaved = str(error)
            return False
        return True

    def _end(self, decision: Decision, code: int | None) -> JobState:
        log.info("the job is %s (%s)", decision.state, decision.why)
        self._write(decision, exit_code=code, ended_s=time.time())
        until = time.monotonic() + LAST_WORD_S
        while not (self._save() or self._save_in_place()) and time.monotonic() < until:
            time.sleep(1.0)
        return decision.state

    def _save_in_place(self) -> bool:
        """True if the last state stands in the old file, with the reason why it is not a new one: the disk is full."""
        self.state.setdefault("detail", self._unsaved)
        try:
            overwrite_json(self.folder.state_file, self.state)
        except OSError as error:
            log.warning("the state cannot be written in place either: %s", error)
            return False
        return True


_PLATFORM_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"})
"""Leftovers of another launcher around us; three platforms give them three meanings."""
_SETTLED_VARIABLES = frozenset({"NANOCHAT_LOGGER"})
"""The spec has taken them in already, below ``--set``; in the trainer, which lets the environment win, they would count twice."""


def _reap() -> None:
    """Take the exit codes of adopted orphans, so that none stays a zombie."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def main(argv: list[str] | None = None) -> int:
    """Detach and supervise the job in a folder; 0 in the process that was started, which leaves as soon as that is done.

    Args:
        argv: The job's folder, and the descriptor that holds the lock on ``supervisor.lock``.
    """
    folder, descriptor = (sys.argv[1:] if argv is None else argv)[:2]
    job, lock = JobFolder(Path(folder)), int(descriptor)
    os.set_inheritable(lock, False)
    settings = Settings.read(job)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    child = os.fork()
    if child:
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(child).encode(), 0)
        return 0
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logging.raiseExceptions = False  # a log on a full disk
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    processes.adopt_orphans()
    Supervisor(job, settings).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
