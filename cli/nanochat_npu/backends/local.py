"""Jobs as processes on this computer: the same launcher that a pod runs, one per simulated node, watched by a supervisor.

Everything known about a local job is in its folder (`nanochat_npu.jobs`); this module writes it, starts
`nanochat_npu.supervisor`, and reads it back without trusting any of it to be whole.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from nanochat.contract import DataSource, ExitCode, RunConfig, Stage
from nanochat_npu import __version__, jobs, local_logs, processes
from nanochat_npu.backends import (
    ACTIVE,
    BackendName,
    EventSource,
    JobState,
    JobView,
    LogLine,
    LogQuery,
    Outcome,
    Submission,
    Submitted,
)
from nanochat_npu.backends.local_view import view_of
from nanochat_npu.errors import ClusterError, JobError, JobExists, MissingExtra, SpecConflictError
from nanochat_npu.i18n import _
from nanochat_npu.jobs import JobFolder, Receipt, Store
from nanochat_npu.restarts import Settings, Stop, Why

__all__ = ["LocalBackend", "connect", "trainer_python"]

TRAINER_MODULES = ("torch", "numpy", "tiktoken", "rustbpe")
"""What extra ``train`` brings and no job can do without."""
START_TIMEOUT_S = 60.0
_NPU_NODE = re.compile(r"davinci\d+")


def trainer_python(environ: Mapping[str, str]) -> str:
    """The interpreter that runs the trainer: ``NANOCHAT_NPU_PYTHON`` (say, CANN's environment), else this one."""
    return environ.get("NANOCHAT_NPU_PYTHON") or sys.executable


def user_name(environ: Mapping[str, str]) -> str:
    """Who runs this command; the user id where the account has no name (a container started with ``--user``)."""
    return environ.get("USER") or environ.get("LOGNAME") or str(os.getuid())


def connect() -> "LocalBackend":
    """The backend of the user who runs this command."""
    return LocalBackend(Store.default())


class LocalBackend:
    """Local jobs.

    Args:
        store: Where they live.
        command: Starts the launcher of one node; None is ``python -m nanochat launch``.
        environ: Environment of the jobs; None is this process's own.
        restart_delay_s: Before the first restart of a job.
        peer_grace_s: How long launchers may take to notice by themselves that another one has failed.
    """

    name: BackendName = "local"
    interrupt: Literal["cancel", "detach"] = "cancel"

    def __init__(
        self, store: Store, *, command: list[str] | None = None, environ: Mapping[str, str] | None = None,
        restart_delay_s: float = 1.0, peer_grace_s: float = 8.0,
    ) -> None:
        self.store = store
        self.environ = dict(os.environ if environ is None else environ)
        self._command = command
        self._delays = {"restart_delay_s": restart_delay_s, "peer_grace_s": peer_grace_s}

    @property
    def python(self) -> str:
        """The interpreter that runs the trainer."""
        return trainer_python(self.environ)

    @property
    def command(self) -> list[str]:
        """Command line of a launcher; ``-P`` since the folder that it starts in may hold another ``nanochat`` (upstream's checkout)."""
        return self._command or [self.python, "-P", "-m", "nanochat", "launch"]

    # --- starting -----------------------------------------------------------------------------------------------------

    def preview(self, submission: Submission) -> dict[str, str]:
        """The job's files, and the commands that would run with their environment."""
        files = self._files(submission)
        settings = self._settings(submission)
        lines = [
            " ".join([f"NANOCHAT_NODES={settings.nodes}", f"NANOCHAT_NODE_RANK={node}", f"NANOCHAT_NPROC_PER_NODE={settings.ranks_per_node}",
                      f"NANOCHAT_JOB_DIR={self.store.home / 'jobs' / submission.plan.name}", *self.command])
            for node in range(settings.nodes)
        ]
        return {"spec.yaml": files["spec.yaml"], "run.json": files["run.json"], "commands.txt": "\n".join(lines) + "\n"}

    def submit(self, submission: Submission) -> Submitted:
        """Start the job, attach to it, or let it go on from its newest checkpoint.

        Raises:
            MissingExtra: The trainer is not installed.
            SpecConflictError: The spec asks for more NPUs than this computer has.
            JobExists: Another submission has this name.
            JobError: Its training text is not there.
        """
        self.require_trainer()
        files = self._files(submission)  # before anything is touched: it may refuse
        name, notes = submission.plan.name, []
        with self.store.lock(name):
            folder = self.store.folder(name)
            view = view_of(folder) if folder.path.exists() else None
            if view is not None and not submission.rerun:
                if view.submission_id != submission.plan.submission_id:
                    raise _exists(view)
                if view.state in ACTIVE or view.state is JobState.SUCCEEDED:
                    return Submitted(Outcome.ATTACHED, view)
            _require_text(submission.plan.run_file.run)  # attaching needs none; and still nothing is touched
            outcome = Outcome.STARTED
            if view is not None and submission.rerun:
                notes.append(self._put_aside(folder, view))
            elif view is not None:
                outcome = Outcome.CONTINUED if folder.has_checkpoint else Outcome.RESTARTED
                self._make_ready_to_continue(folder, files)
            if outcome is Outcome.STARTED:
                folder = self.store.create(name, files)
            self._start_supervisor(folder)
        return Submitted(outcome, self.get(name), tuple(notes))

    def require_trainer(self) -> None:
        """Make sure that the trainer can run.

        Raises:
            MissingExtra: A part of extra ``train`` is missing in this interpreter.
        """
        # Another interpreter speaks for itself: its launcher leaves with 2 and says what is missing.
        if self._command or self.python != sys.executable:
            return
        missing = [module for module in TRAINER_MODULES if importlib.util.find_spec(module) is None]
        if missing:
            raise MissingExtra(
                _("training on this computer needs extra 'train'; missing: {modules}").format(modules=", ".join(missing)),
                hint=_("pip install 'nanochat-npu[train]', or name a Python that has it in NANOCHAT_NPU_PYTHON"),
            )

    def _settings(self, submission: Submission) -> Settings:
        spec = submission.plan.spec
        return Settings(
            command=self.command, cwd=str(Path.cwd()), nodes=spec.resources.nodes, ranks_per_node=spec.ranks_per_node,
            failures=spec.retries.failures, preemptions=spec.retries.preemptions, grace_period_s=float(spec.lifecycle.grace_period_s),
            **self._delays,
            node_env=[
                {**spec.env, **visible} for visible in _visible_npus(spec.resources.nodes, spec.resources.npus_per_node, self.environ)
            ],
        )

    def _files(self, submission: Submission) -> dict[str, str]:
        plan = submission.plan
        receipt = Receipt(
            job=plan.name, backend="local", submission_id=plan.submission_id, spec_sha256=plan.spec_sha256,
            owner=plan.spec.owner or user_name(self.environ), submitted_s=time.time(), where=str(self.store.home / "jobs" / plan.name),
            origin=list(submission.origin), versions={"nanochat-npu": __version__, "python": sys.version.split()[0]},
        )
        run_file = plan.run_file
        if run_file.run.data.dir:  # the trainer need not run where this command does
            data = run_file.run.data.model_copy(update={"dir": str(_here(run_file.run.data.dir))})
            run_file = run_file.model_copy(update={"run": run_file.run.model_copy(update={"data": data})})
        pending = {"state": JobState.PENDING, "why": Why.STARTING, "attempts": []}
        return {
            "spec.yaml": submission.spec_text, "run.json": run_file.model_dump_json(indent=2) + "\n", "receipt.json": _json(receipt.as_json()),
            "supervisor.json": _json(asdict(self._settings(submission))), "state.json": _json(pending),
        }

    def _put_aside(self, folder: JobFolder, view: JobView) -> str:
        if view.state in ACTIVE:
            raise JobExists(
                _("this job is running; stop it first"), where=folder.name,
                hint=_("nanochat-npu cancel {name}, then submit with --rerun").format(name=folder.name),
            )
        processes.kill_job(folder.path)  # a killed supervisor may have left some
        kept = self.store.archive(folder)
        return _("the earlier run of {name} was kept in {path}").format(name=folder.name, path=kept)

    def _make_ready_to_continue(self, folder: JobFolder, files: Mapping[str, str]) -> None:
        """Clean up after the earlier end; what attempts wrote stays, and failures are counted anew."""
        processes.kill_job(folder.path)
        folder.intent_file.unlink(missing_ok=True)
        ledger = folder.path / "ledger.json"
        if ledger.exists():
            ledger.replace(folder.path / f"ledger.before-{max(folder.attempts, default=-1) + 1}.json")
        # The same submission, perhaps with other limits: a budget that was raised lets a stopped job go on.
        jobs.write_json(folder.run_file, json.loads(files["run.json"]))
        state = jobs.read_json(folder.state_file)
        jobs.write_json(folder.settings_file, json.loads(files["supervisor.json"]))
        jobs.write_json(folder.state_file, {"state": JobState.PENDING, "why": Why.STARTING, "attempts": state.get("attempts") or []})

    def _start_supervisor(self, folder: JobFolder) -> None:
        lock = jobs.take_lock(folder.lock_file, timeout_s=1.0)
        if lock is None:
            raise ClusterError(_("another supervisor has this job"), where=folder.name)
        try:
            with folder.supervisor_log.open("ab") as log:
                # It detaches itself and this process ends at once, with 0 if the job is being supervised.
                done = subprocess.run(
                    [sys.executable, "-P", "-m", "nanochat_npu.supervisor", str(folder.path), str(lock)], env=self.environ, pass_fds=[lock],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, timeout=START_TIMEOUT_S, check=False,
                )
        finally:
            os.close(lock)
        if done.returncode:
            raise ClusterError(_("the supervisor of this job did not start"), where=folder.name, hint=str(folder.supervisor_log))

    # --- looking ------------------------------------------------------------------------------------------------------

    def get(self, name: str) -> JobView:
        """The job as its folder tells it."""
        return view_of(self.store.existing(name))

    def jobs(self) -> list[JobView]:
        """All local jobs, newest first."""
        views = [view_of(folder) for folder in map(self.store.folder, self.store.names()) if folder.receipt().backend == "local"]
        return sorted(views, key=lambda view: view.created_s or 0.0, reverse=True)

    def events(self, name: str) -> EventSource:
        """The job's events from its files."""
        return local_logs.FileEvents(self.store.existing(name))

    def logs(self, name: str, query: LogQuery) -> Iterator[LogLine]:
        """Lines of its log files."""
        folder = self.store.existing(name)
        return local_logs.read(folder, query, still_running=lambda: view_of(folder).state in ACTIVE)

    # --- stopping -----------------------------------------------------------------------------------------------------

    def cancel(self, name: str, *, now: bool = False) -> JobView:
        """Tell the supervisor; where that is gone, stop what it left behind."""
        folder = self.store.existing(name)
        if view_of(folder).state in ACTIVE:
            jobs.write_json(folder.intent_file, {"stop": Stop.NOW if now else Stop.GRACEFULLY, "by": user_name(self.environ), "t": time.time()})
            pid = folder.supervisor_pid
            if pid is not None:
                os.kill(pid, signal.SIGTERM)
        elif not jobs.is_locked(folder.lock_file):
            processes.kill_job(folder.path)
        return view_of(folder)

    def delete(self, name: str) -> None:
        """Remove an ended job's folder.

        Raises:
            ClusterError: It is still running.
        """
        with self.store.lock(name):
            folder = self.store.existing(name)
            if view_of(folder).state in ACTIVE:
                raise ClusterError(_("the job is still running"), where=name, hint=_("nanochat-npu cancel {name}").format(name=name))
            processes.kill_job(folder.path)
            self.store.remove(folder)


def _here(folder: str) -> Path:
    return Path(folder).expanduser().absolute()


def _require_text(run: RunConfig) -> None:
    """Make sure that the folder of training text is there: the launcher's own check (`nanochat.launch.checks.data_folder`) comes
    after a job has been made, and its answer is in a log.

    Raises:
        JobError: It is not; ``details["code"]`` is the code that the job would have ended with.
    """
    data = run.data
    if data.source is not DataSource.FOLDER or data.dir is None or not {Stage.TOKENIZER, Stage.PRETRAIN} & set(run.stages):
        return
    folder = _here(data.dir)
    if not os.path.isdir(folder):  # noqa: PTH112 (Path's raises where a name is too long or a folder may not be entered)
        raise JobError(
            _("'{path}' is no folder").format(path=folder) if os.path.lexists(folder) else _("there is no folder '{path}'").format(path=folder),
            where="run.data.dir", hint=_("name the folder of your training text: --set run.data.dir=PATH"), details={"code": int(ExitCode.BAD_DATA)},
        )


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _exists(view: JobView) -> JobExists:
    return JobExists(
        _("another submission has this name ({state}, submission {id})").format(state=view.state, id=view.submission_id or "?"), where=view.name,
        hint=_("start anew and keep the old run aside: add --rerun; or choose another name: --set name=NAME"),
        details={"submission_id": view.submission_id, "state": view.state},
    )


def _visible_npus(nodes: int, per_node: int, environ: Mapping[str, str]) -> list[dict[str, str]]:
    """For each simulated node, the NPUs of this computer that are its own; {} where there are none."""
    present = sum(1 for device in Path("/dev").glob("davinci*") if _NPU_NODE.fullmatch(device.name))
    if not present or not per_node:
        return [{} for _node in range(nodes)]
    if nodes * per_node > present:
        raise SpecConflictError(
            _("the spec asks for {wanted} NPUs, this computer has {present}").format(wanted=nodes * per_node, present=present), where="resources",
            hint=_("--set resources.nodes=1 --set resources.npus_per_node={present}").format(present=present),
        )
    if nodes == 1 or environ.get("ASCEND_RT_VISIBLE_DEVICES"):
        return [{} for _node in range(nodes)]
    return [{"ASCEND_RT_VISIBLE_DEVICES": ",".join(str(node * per_node + i) for i in range(per_node))} for node in range(nodes)]
