"""``python -m nanochat launch``: what a pod, or a simulated node, runs."""

import errno
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nanochat import ledger
from nanochat import verdict as verdicts
from nanochat.contract import ExitCode, RunFile, layout
from nanochat.errors import BadConfig, NotReady, TrainerError
from nanochat.eventlog import EventLog
from nanochat.files import write_atomic
from nanochat.launch import rank_table
from nanochat.launch.checks import run_checks
from nanochat.launch.control import ControlStore, listen
from nanochat.launch.echo import Echo
from nanochat.launch.processes import RankProcess, rank_environment, start
from nanochat.launch.settings import LaunchSettings, read_settings
from nanochat.launch.supervisor import Supervisor
from nanochat.verdict import Verdict

__all__ = ["main"]

HICCUPS = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
"""Errors of a file server that may be gone at the next attempt."""
LINGER_S = 10.0
"""How long the first node keeps the store for launchers that still want to read the verdict."""


def main(argv: Sequence[str] = ()) -> int:
    """Start this node's ranks and wait for them; gives back the exit code of the job as this node knows it."""
    if argv:
        print("usage: python -m nanochat launch   (everything is read from NANOCHAT_* and run.json)", file=sys.stderr)
        return 0 if list(argv) in (["-h"], ["--help"]) else int(ExitCode.USAGE)
    try:
        settings, run = read_settings()
    except TrainerError as error:
        print(f"launch: {error}", file=sys.stderr)
        return int(error.code)
    return Launch(settings, run).run()


class Launch:
    """One start of the job on one node."""

    def __init__(self, settings: LaunchSettings, run: RunFile) -> None:
        self.settings, self.run_file = settings, run
        self.control: ControlStore | None = None
        self.listener: socket.socket | None = None
        self.port = settings.master_port
        self.attempt = settings.attempt or 0
        self.placement: rank_table.Placement | None = None

    @property
    def is_first(self) -> bool:
        """True on the node that hosts the store and writes the ledger."""
        return self.settings.node_rank == 0

    def run(self) -> int:
        """Check, start, watch, account; gives back the exit code."""
        try:
            failed_before = ledger.failures(ledger.read(self.settings.job_dir))
            self._prepare()
        except TrainerError as error:
            return self._refuse(error)
        except OSError as error:  # full since the check, or gone: no rank runs yet
            kind = NotReady if error.errno in HICCUPS else BadConfig
            return self._refuse(kind(f"cannot be used: {error.strerror or error}", where=str(error.filename or self.settings.job_dir)))
        return self._account(self._supervise(), failed_before)

    def _prepare(self) -> None:
        s = self.settings
        if self.is_first:
            self.listener = listen(s.master_port, everywhere=s.nodes > 1)
            self.port = self.listener.getsockname()[1]
            self.attempt = self._number()
        else:  # before the checks, so that a node that fails one can tell the others
            self.control = ControlStore.connect(s.master_addr, s.master_port, self.run_file.start_timeout_s)
            self.attempt = self.control.await_attempt(self.run_file.start_timeout_s)
        run_checks(s, self.run_file)
        self._place()
        if self.is_first:
            ledger.begin(s.job_dir, self.attempt)
        write_atomic(self._attempt_run, self._run_of_attempt().model_dump_json(indent=1) + "\n")

    @property
    def _attempt_run(self) -> Path:
        """What the ranks of this attempt read."""
        return layout.attempt_dir(self.settings.job_dir, self.attempt) / "run.json"

    def _place(self) -> None:
        """Ranks by the rank table, where the job has one; its copy goes to every rank or to none."""
        if self.settings.nodes > 1 and rank_table.is_wanted():
            self._open_control()  # the nodes have to agree on it before any rank starts
        self.placement = rank_table.place(
            self.settings, self.control, timeout_s=self.run_file.start_timeout_s, attempt=self.attempt
        )
        if self.placement is not None:
            self.settings = replace(self.settings, table_rank=self.placement.first_rank)

    def _number(self) -> int:
        if self.settings.attempt is not None:
            return self.settings.attempt
        return max(self.run_file.attempt, ledger.next_attempt(ledger.read(self.settings.job_dir)))

    @property
    def _hosts_store(self) -> bool:
        """True once the store's thread runs in this process: from then on ranks have to be fresh interpreters."""
        return self.is_first and self.control is not None

    def _open_control(self) -> None:
        """The first node hosts the store from here on; the others wait for it to answer."""
        if self.control is None and self.listener is not None:
            self.control = ControlStore.host(self.listener)
            self.control.tell_attempt(self.attempt)

    def _run_of_attempt(self) -> RunFile:
        """What the ranks read: with this attempt's number, and with what earlier ones took of the budget they share."""
        budget = self.run_file.budget
        earlier = ledger.spent_s(self.settings.job_dir, but=self.attempt)
        return self.run_file.model_copy(
            update={"attempt": self.attempt, "budget": budget.model_copy(update={"spent_s": budget.spent_s + earlier})}
        )

    def _supervise(self) -> Verdict | None:
        s = self.settings
        ranks, logs = self._start_ranks()
        self._open_control()
        supervisor = Supervisor(s.job_dir, self.attempt, ranks, self.control, Echo(logs, sys.stdout), self.run_file.grace_period_s)
        if self.is_first:
            supervisor.watch_all(s.world_size)
        return supervisor.run()

    def _start_ranks(self) -> tuple[list[RankProcess], dict[int, Path]]:
        s = self.settings
        logs = {s.first_rank + i: layout.rank_log(s.job_dir, self.attempt, s.first_rank + i) for i in range(s.ranks_per_node)}
        in_process = _may_fork(self.run_file) and not self._hosts_store
        if in_process:
            import nanochat.rank  # noqa: F401  (imports torch once, for all ranks)
        ranks = []
        for local, (rank, log) in enumerate(logs.items()):
            environment = rank_environment(s, local_rank=local, attempt=self.attempt, run_file=self._attempt_run, port=self.port)
            if self.placement is not None:
                environment["RANK_TABLE_FILE"] = str(self.placement.file)
            ranks.append(RankProcess(rank, start(environment, log, in_process=in_process, close=self.listener)))
        return ranks, logs

    def _refuse(self, error: TrainerError) -> int:
        """This node cannot start: say so to everybody."""
        print(f"launch: {error}", file=sys.stderr)
        verdict = Verdict(
            int(error.code), self.settings.first_rank, error.message, attempt=self.attempt, where=error.where, hint=error.hint
        )
        if error.code != ExitCode.RETRIES_SPENT:
            with suppress(OSError):
                verdicts.write_first(self.settings.job_dir, verdict)
        if self.settings.nodes > 1:
            self._open_control()
        if self.control:
            self.control.publish(verdict)
        if error.code == ExitCode.RETRIES_SPENT:
            self._part()
            return int(error.code)
        with suppress(TrainerError, OSError):
            return self._account(verdict, ledger.failures(ledger.read(self.settings.job_dir)))
        return int(error.code)

    def _account(self, verdict: Verdict | None, failed_before: int) -> int:
        raw = verdict.code if verdict else int(ExitCode.DONE)
        code = ledger.final_code(raw, failed_before, self.run_file.retries_failures)
        if self.is_first:
            with suppress(OSError):  # a full volume must not hide the code
                self._record(verdict, raw, code)
        self._part()
        if self.is_first and raw != ExitCode.INTERRUPTED:  # an interrupted job goes on, and is given no time
            self._report()
        return code

    def _report(self) -> None:
        """report.html and report.md of what there is; a job never fails for its report."""
        from nanochat.report.command import write_quietly

        problem = write_quietly(self.settings.job_dir)
        if problem:
            print(f"launch: no report: {problem}", file=sys.stderr)

    def _record(self, verdict: Verdict | None, raw: int, code: int) -> None:
        message = verdict.message if verdict else ""
        ledger.end(self.settings.job_dir, self.attempt, raw, message)
        if verdict is None or raw == ExitCode.INTERRUPTED:
            return
        log = EventLog(layout.events_file(self.settings.job_dir, self.attempt), attempt=self.attempt)
        log.stage = verdict.stage
        log.emit(
            "error", code=code, name=verdict.name, message=message, failed_rank=verdict.rank, step=verdict.step,
            where=verdict.where, hint=verdict.hint, raw_code=raw,
        )
        log.close()

    def _part(self) -> None:
        """Let the other nodes read the store before it goes."""
        if self.control is None:
            return
        if not self.is_first:
            self.control.say_goodbye(self.settings.node_rank)
            return
        deadline = time.monotonic() + LINGER_S
        while not self.control.all_left(self.settings.nodes) and time.monotonic() < deadline:
            time.sleep(0.05)


def _may_fork(run: RunFile) -> bool:
    """Only where no rank will touch an accelerator: neither NPU nor CUDA survive a fork of a process that knows them."""
    from nanochat.device import is_cpu_only

    return is_cpu_only(run.world.device)
