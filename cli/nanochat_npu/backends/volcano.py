"""Jobs on a Kubernetes cluster with Volcano."""

import getpass
import os
import time
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Literal

from nanochat_npu import __version__, partial
from nanochat_npu.backends import BackendName, EventSource, JobState, JobView, LogLine, LogQuery, Submission, Submitted
from nanochat_npu.bundle import CONFIGMAPS
from nanochat_npu.bundle import JOB as JOB_FILE
from nanochat_npu.cluster.control import Control
from nanochat_npu.cluster.files import Remote
from nanochat_npu.cluster.follow import Follower
from nanochat_npu.cluster.helper import Mounted, mounted_of, opened
from nanochat_npu.cluster.logs import read_logs
from nanochat_npu.cluster.read import read_job, read_jobs, read_objects
from nanochat_npu.cluster.submit import Order, Sender
from nanochat_npu.errors import JobExists, JobNotFound
from nanochat_npu.i18n import _
from nanochat_npu.job_state import FINAL_PHASES, JobObjects, job_view
from nanochat_npu.jobs import Receipt, Store, write_json
from nanochat_npu.kube import Kube
from nanochat_npu.kube import connect as connect_kube
from nanochat_npu.manifest import rank_plugins
from nanochat_npu.verify import parse_documents

__all__ = ["VolcanoBackend", "connect"]


def connect(namespace: str | None = None, context: str | None = None, patience_s: float | None = None) -> "VolcanoBackend":
    """The backend for a context (default: the current one) and a namespace (default: the context's).

    Args:
        namespace: Where the jobs are.
        context: Of the kubeconfig.
        patience_s: How long one call may go on trying; default: the client's own.

    Raises:
        ClusterUnreachable: No kubeconfig, or no such context. Nothing is sent yet.
    """
    kube = connect_kube(context=context)
    if patience_s is not None:
        kube.patience_s = patience_s
    return VolcanoBackend(kube, namespace or kube.target.namespace, Store.default())


class VolcanoBackend:
    """Jobs in one namespace of one cluster.

    Args:
        kube: Client.
        namespace: Where the jobs are.
        store: Where receipts are kept.
    """

    name: BackendName = "volcano"
    interrupt: Literal["cancel", "detach"] = "detach"

    def __init__(self, kube: Kube, namespace: str, store: Store) -> None:
        self.kube, self.namespace, self.store = kube, namespace, store
        self._followers: dict[str, Follower] = {}

    @property
    def control(self) -> Control:
        """For stopping jobs and letting them go on."""
        return Control(self.kube, self.namespace, _user())

    # ---- starting --------------------------------------------------------------------------------------------------

    def preview(self, submission: Submission) -> dict[str, str]:
        """The exact files, as `render` writes them; needs no cluster."""
        from nanochat_npu.image.build import pinned_image
        from nanochat_npu.render import render

        return dict(render(submission.plan, image=pinned_image(submission.plan)).files)

    def submit(self, submission: Submission) -> Submitted:
        """Send the job; the same submission attaches to what runs or has succeeded, and goes on where it had ended otherwise.

        Raises:
            JobExists: Another submission has this name, here or on this computer.
            ClusterRejected: Our rules or the server refuse it.
        """
        from nanochat_npu.cluster.advice import advise

        plan = submission.plan
        files = self.preview(submission)
        order = Order(
            plan.name, self.namespace, plan.submission_id, _objects(files, self.namespace), rerun=submission.rerun, optional_plugins=rank_plugins(plan),
        )
        self._refuse_local_name(submission)
        sender = Sender(
            self.kube, write_receipt=lambda job: self._write_receipt(submission, files, job), now_s=time.time(),
            advise=lambda: advise(self.kube, self.namespace, order.job), put_aside=lambda: self._put_aside(order.job),
        )
        sent = sender.send(order)
        notes = [*sent.notes, *(_("the cluster warns: {text}").format(text=text) for text in self.kube.warnings)]
        return Submitted(sent.outcome, job_view(JobObjects(sent.job)), tuple(notes))

    # ---- seeing ----------------------------------------------------------------------------------------------------

    def get(self, name: str) -> JobView:
        """The job as it is now; from the watches where somebody follows it, else by asking.

        Raises:
            JobNotFound: There is none.
        """
        follower = self._followers.get(name)
        if follower is not None:
            return follower.view()
        objects = read_objects(self.kube, self.namespace, name, events=False)
        view = job_view(objects)
        if _events_tell_more(view):
            view = job_view(read_objects(self.kube, self.namespace, name))
        return view

    def jobs(self) -> list[JobView]:
        """All jobs of the namespace that nanochat-npu sent, newest first; nobody else's objects are read."""
        return read_jobs(self.kube, self.namespace)

    def events(self, name: str) -> EventSource:
        """The trainer's events; while it is open, `get` answers from what it follows."""
        follower = Follower(self.kube, self.namespace, name)
        self._followers[name] = follower
        return _Followed(self._followers, name, follower)

    def logs(self, name: str, query: LogQuery) -> Iterator[LogLine]:
        """Lines of output from the job's pods."""
        return read_logs(self.kube, self.namespace, name, query)

    # ---- stopping --------------------------------------------------------------------------------------------------

    def cancel(self, name: str, *, now: bool = False) -> JobView:
        """Stop the job for good; the object and its ended pods stay."""
        self.control.cancel(name, now=now)
        return self.get(name)

    def delete(self, name: str) -> None:
        """Remove the job's objects, and the receipt on this computer. The output claim is not touched."""
        self.control.delete(name)
        folder = self.store.folder(name)
        if folder.path.is_dir() and folder.receipt().backend == "volcano":
            with self.store.lock(name):
                self.store.remove(folder)

    # ---- files -----------------------------------------------------------------------------------------------------

    def mounted(self, name: str) -> Mounted:
        """Where the job's files are: noted on the job, or, once its time to live has removed it, in the receipt.

        Raises:
            JobNotFound: Neither is there.
        """
        try:
            return mounted_of(read_job(self.kube, self.namespace, name))
        except JobNotFound:
            rendered = self.store.folder(name).path / JOB_FILE
            if not rendered.is_file():
                raise
            (job,) = parse_documents(rendered.read_text(encoding="utf-8"), JOB_FILE)
            return mounted_of(job)

    def _put_aside(self, job: dict[str, Any]) -> list[str]:
        """Move the folder of an earlier run out of the way: its checkpoints would else be gone on from."""
        mounted = mounted_of(job)
        folder = PurePosixPath(mounted.root)
        volume = str(folder.parent.parent)  # jobs/NAME below the volume
        with opened(self.kube, self.namespace, mounted) as pod:
            moved = Remote(self.kube, self.namespace, pod, volume).archive(f"jobs/{folder.name}", f"archive/{folder.name}")
        return [_("the files of the earlier run were put aside: {path}").format(path=moved)] if moved else []

    # ---- receipts --------------------------------------------------------------------------------------------------

    def _refuse_local_name(self, submission: Submission) -> None:
        """Refuse before anything is sent where the name belongs to a job on this computer; ``--rerun`` puts that aside at the end."""
        folder = self.store.folder(submission.plan.name)
        if folder.path.is_dir() and folder.receipt().backend != "volcano" and not submission.rerun:
            raise JobExists(
                _("a job of this name is on this computer"), where=str(folder.path),
                hint=_("choose another name (--set name=NAME), or put it aside: --rerun"),
            )

    def _write_receipt(self, submission: Submission, files: dict[str, str], job: dict[str, Any]) -> None:
        plan, target = submission.plan, self.kube.target
        receipt = Receipt(
            job=plan.name, backend="volcano", submission_id=plan.submission_id, spec_sha256=plan.spec_sha256, owner=plan.spec.owner, submitted_s=time.time(),
            where="/".join(part for part in (target.context, self.namespace, plan.name) if part), origin=list(submission.origin),
            versions={"nanochat-npu": __version__},
            details={
                "namespace": self.namespace, "context": target.context, "server": self.kube.server, "uid": partial.text(job, "metadata", "uid"),
                "image": partial.text(job, "spec", "tasks", 0, "template", "spec", "containers", 0, "image"),
            },
        )
        with self.store.lock(plan.name):
            folder = self.store.folder(plan.name)
            if folder.path.is_dir():
                self.store.archive(folder)
            folder = self.store.create(plan.name, {"spec.yaml": submission.spec_text, **files})
            write_json(folder.receipt_file, receipt.as_json())


class _Followed:
    """The face of a follower that commands see; closing it ends the following."""

    def __init__(self, followers: dict[str, Follower], name: str, follower: Follower) -> None:
        self._followers, self._name, self._follower = followers, name, follower

    def poll(self) -> list[dict[str, Any]]:
        """Events since the last call."""
        return self._follower.poll()

    def close(self) -> None:
        """End the following."""
        self._followers.pop(self._name, None)
        self._follower.close()


def _objects(files: dict[str, str], namespace: str) -> list[dict[str, Any]]:
    """The Kubernetes objects of a bundle in the order in which they are made: ConfigMaps, then the Job."""
    found = [*parse_documents(files[CONFIGMAPS], CONFIGMAPS), *parse_documents(files[JOB_FILE], JOB_FILE)]
    for obj in found:
        obj["metadata"]["namespace"] = namespace
    return found


def _events_tell_more(view: JobView) -> bool:
    """True where only the controller's or the scheduler's events say why: it waits, or it ended without a pod to blame."""
    waits = view.state in (JobState.PENDING, JobState.RESTARTING)
    return waits or (view.phase in FINAL_PHASES and view.state is JobState.FAILED and view.exit_code is None)


def _user() -> str:
    try:
        return os.environ.get("USER") or getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
