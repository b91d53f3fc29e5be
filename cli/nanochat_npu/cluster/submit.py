"""Sending a job: nothing is made before everything has been accepted, and what fails half way is taken back.

1. Our own rules, then the server's strict dry run of the Job, which also tells whether its name is free. Both speak in fields
   of the spec. A job of this name that is the same submission is attached to; another one is refused; one that is going away
   is awaited.
2. Advice from the cluster's objects, and the strict dry run of the ConfigMaps.
3. ConfigMaps, then the Job, then the Job owns the ConfigMaps. Each create whose answer is lost, or that meets an object of
   that name, reads back and compares. Ctrl-C and errors between the first create and the receipt delete what this call made.

At most twelve requests. The ConfigMaps are a chain: the first belongs to the Job, each further one to the first and so to the
Job. They are made before it, so belonging to it takes a patch, and belonging to the first one does not.
"""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from nanochat_npu import marks, partial
from nanochat_npu.backends import ACTIVE, JobState, JobView, Outcome
from nanochat_npu.errors import ClusterError, ClusterRejected, JobExists, NanochatNpuError
from nanochat_npu.i18n import _
from nanochat_npu.job_state import JobObjects, job_view
from nanochat_npu.kube import Kube
from nanochat_npu.kube_errors import ConflictError, LostResponseError
from nanochat_npu.resources import CONFIGMAPS, JOBS, PODS, QUEUES, Resource
from nanochat_npu.volcano_rules import Problem, check_job, check_sizes, dropped_fields, read_refusal

__all__ = ["Order", "Sender", "Sent"]

GONE_WAIT_S = 120.0
"""How long a job of the same name may take to go away. Beyond that a node is probably dead."""
FRESH_QUEUE_S = 10.0
"""A queue has no state until a controller has seen it; a closed one says so at once."""
STALE_MAP_S = 600.0
"""A ConfigMap of ours without an owner that is older than this was left by a submit that was killed."""
_RESOURCES: dict[str, Resource] = {"ConfigMap": CONFIGMAPS, "Job": JOBS}


@dataclass(frozen=True)
class Order:
    """What is to be sent.

    Attributes:
        name: Name of the job.
        namespace: Where.
        submission_id: Identity of this submission.
        objects: ConfigMaps and, last, the Job, as rendered.
        rerun: Replace a job of this name, whatever it is.
        optional_plugins: Job plugins, with their arguments, that are added where the server's dry run accepts them.
    """

    name: str
    namespace: str
    submission_id: str
    objects: list[dict[str, Any]]
    rerun: bool = False
    optional_plugins: dict[str, list[str]] = field(default_factory=dict)

    @property
    def job(self) -> dict[str, Any]:
        """The Volcano Job."""
        return self.objects[-1]

    def with_plugins(self) -> "Order":
        """The same with those optional plugins that the Job does not name already, or itself if there are none."""
        have = partial.mapping(self.job, "spec", "plugins")
        extra = {name: arguments for name, arguments in self.optional_plugins.items() if name not in have}
        if not extra:
            return self
        spec = {**partial.mapping(self.job, "spec"), "plugins": {**have, **extra}}
        return replace(self, objects=[*self.objects[:-1], {**self.job, "spec": spec}])


@dataclass(frozen=True)
class Sent:
    """What came of it: `job` is the object on the server."""

    outcome: Outcome
    job: dict[str, Any]
    notes: tuple[str, ...] = ()


@dataclass
class Sender:
    """Sends one order.

    Args:
        kube: Client.
        advise: Advice from the cluster's objects before anything is made (queue, nodes, claims); gives back sentences.
        write_receipt: Called with the Job once it is whole; its failure takes everything back.
        now_s: Wall clock, for the age of left-over objects.
        put_aside: Puts the files of an earlier run aside; called for ``--rerun`` once nothing runs that could write there.
    """

    kube: Kube
    write_receipt: Callable[[dict[str, Any]], None]
    now_s: float
    advise: Callable[[], list[str]] = list
    put_aside: Callable[[], list[str]] = list
    _made: list[tuple[Resource, str, str]] = field(default_factory=list)
    _tick: Callable[[], None] = lambda: None

    def send(self, order: Order) -> Sent:
        """Send it, or attach to what is there.

        Raises:
            JobExists: Another submission has this name.
            ClusterRejected: Our rules or the server refuse an object; `details["errors"]` has fields of the spec.
        """
        _refuse_problems([*check_job(order.job), *check_sizes(order.objects)])
        outcome, refusal = Outcome.STARTED, None
        notes: list[str] = []
        try:
            order, notes, taken = self._ask_about_job(order)
            found = self.kube.find(JOBS, order.name, order.namespace) if taken else None
        except ClusterRejected as error:
            # Refused for its queue, perhaps; the same submission may be running all the same, and is attached to.
            found, refusal = self.kube.find(JOBS, order.name, order.namespace), error
        if found is not None:
            standing = self._standing(found, order)
            if standing is not None:
                return standing
            going = partial.text(found, "metadata", "deletionTimestamp")
            outcome = Outcome.STARTED if order.rerun or going else Outcome.CONTINUED
        if refusal is not None:
            raise refusal
        notes += self.advise()
        self._dry_run_maps(order)
        if found is not None:
            self._remove(found, order)
        if order.rerun:
            notes += self.put_aside()
        return self._make(order, outcome, notes)

    # ---- a job of this name ----------------------------------------------------------------------------------------

    def _standing(self, found: dict[str, Any], order: Order) -> Sent | None:
        """What to do about a job that is there: attach (a result), replace it (None), or refuse.

        Raises:
            JobExists: It belongs to another submission.
        """
        view = job_view(JobObjects(found))
        if order.rerun or partial.text(found, "metadata", "deletionTimestamp"):
            return None
        if view.submission_id != order.submission_id:
            raise _exists(view, found, order)
        if view.state in ACTIVE or view.state is JobState.SUCCEEDED:
            return Sent(Outcome.ATTACHED, found)
        if view.state is JobState.SUSPENDED:
            return Sent(Outcome.ATTACHED, found, (_("it is suspended; go on with: nanochat-npu resume {name}").format(name=order.name),))
        return None

    def _remove(self, found: dict[str, Any], order: Order) -> None:
        """Delete the old job and wait until it and its pods are gone: their late events would hit the new one."""
        uid = partial.text(found, "metadata", "uid")
        if not partial.text(found, "metadata", "deletionTimestamp"):
            self.kube.delete(JOBS, order.name, order.namespace, uid=uid, foreground=True)
        wait_until_gone(self.kube, order.namespace, order.name, uid, GONE_WAIT_S)

    # ---- asking the server -----------------------------------------------------------------------------------------

    def _ask_about_job(self, order: Order) -> tuple[Order, list[str], bool]:
        """The order with the optional plugins that the server knows, what to say about them, and whether the name is taken.

        Raises:
            ClusterRejected: The server refuses the job, with those plugins or without.
        """
        wanted = order.with_plugins()
        if wanted is order:
            return order, [], self._meets_another(order)
        names = ", ".join(order.optional_plugins)
        try:
            taken = self._meets_another(wanted)
        except ClusterRejected as error:
            if not any(problem["rule"] == "V18" for problem in error.details.get("errors", [])):
                raise
            taken = self._meets_another(order)
            return order, [_("job plugin {names} was left out: the cluster's Volcano is older than 1.12.3; MindCluster's scheduler plugin has to number the pods").format(
                names=names)], taken
        return wanted, [_("job plugin {names} was added: the cluster's Volcano knows it, and the rank table then follows the workers' numbers").format(names=names)], taken

    def _meets_another(self, order: Order) -> bool:
        """Dry run of the job; True if its name is taken. Admission comes before the name, so all of the job has been accepted then, too."""
        try:
            self._dry_run(order.job, order)
        except ConflictError:
            return True
        return False

    def _dry_run_maps(self, order: Order) -> None:
        for obj in order.objects[:-1]:
            try:
                self._dry_run(obj, order)
            except ConflictError:
                continue  # the name is taken, by leftovers or by a job that is about to go; `_make` sorts that out

    def _dry_run(self, obj: dict[str, Any], order: Order) -> None:
        answer = self._ask_about(_RESOURCES[obj["kind"]], obj, order)
        lost = dropped_fields({key: value for key, value in obj.items() if key != "metadata"}, answer)
        _refuse_problems([
            Problem("W1", _("the cluster does not know {path} and would silently drop it").format(path=path), path, "cluster.patch") for path in lost
        ])

    def _ask_about(self, resource: Resource, obj: dict[str, Any], order: Order) -> dict[str, Any]:
        """The server's answer to a dry run; asked again for some seconds where no controller has opened a new queue yet."""
        deadline = self.kube.clock.now() + FRESH_QUEUE_S
        while True:
            try:
                return self.kube.create(resource, obj, order.namespace, dry_run=True)
            except ClusterRejected as error:
                problems = read_refusal(error.message)
                fresh_queue = any(problem.rule == "V24" and "status is ``" in problem.message for problem in problems)
                if not fresh_queue or self.kube.clock.now() >= deadline:
                    raise _in_fields(error, [self._with_children(problem, order) for problem in problems]) from error
                self.kube.clock.sleep(2.0)

    def _with_children(self, problem: Problem, order: Order) -> Problem:
        """A refusal of a parent queue with the names of the queues below it, as far as one may read them."""
        if problem.rule != "V25":
            return problem
        queue = partial.text(order.job, "spec", "queue")
        try:
            children = [
                partial.text(found, "metadata", "name") for found in self.kube.list(QUEUES).objects
                if partial.text(found, "spec", "parent") == queue or (queue == "root" and not partial.text(found, "spec", "parent"))
            ]
        except ClusterError:
            return problem
        names = ", ".join(sorted(name for name in children if name != "root"))
        return replace(problem, hint=_("choose a queue below it: {names} (--set cluster.queue=NAME)").format(names=names)) if names else problem

    # ---- making ----------------------------------------------------------------------------------------------------

    def _make(self, order: Order, outcome: Outcome, notes: list[str]) -> Sent:
        with _interruptible_between_steps() as step:
            self._tick = step
            try:
                first: dict[str, Any] | None = None
                for obj in order.objects[:-1]:
                    made = self._make_map(obj if first is None else _owned_by(first, obj), order)
                    first = first or made
                    step()
                job = self._make_job(order)
                step()
                self._adopt(job, order)
                step()
                self.write_receipt(job)
            except BaseException:
                self._take_back(order)
                raise
        return Sent(outcome, job, tuple(notes))

    def _make_job(self, order: Order) -> dict[str, Any]:
        def ours(found: dict[str, Any]) -> bool:
            return partial.annotation(found, marks.ANNOTATION_SUBMISSION) == order.submission_id

        job = self._create(JOBS, order.job, order, ours)
        if job is None:
            found = self.kube.find(JOBS, order.name, order.namespace)
            raise _exists(job_view(JobObjects(found)), found or {}, order)
        return job

    def _make_map(self, obj: dict[str, Any], order: Order) -> dict[str, Any]:
        """Create a ConfigMap; one of that name that a killed submit or an earlier job left takes the new content."""
        name = partial.text(obj, "metadata", "name")

        def ours(found: dict[str, Any]) -> bool:
            # One with another owner goes as soon as the collector notices that this owner is gone: never to be relied on.
            return _content(found) == _content(obj) and _owners(found) <= _owners(obj)

        made = self._create(CONFIGMAPS, obj, order, ours)
        if made is not None:
            return made
        found = self.kube.find(CONFIGMAPS, name, order.namespace)
        if found is None:
            raise ClusterError(_("another command made and removed {name} at the same time").format(name=name), where=order.name, hint=_("submit again"))
        job = self.kube.find(JOBS, order.name, order.namespace) if partial.items(found, "metadata", "ownerReferences") else None
        if job is not None and partial.text(job, "metadata", "uid") in _owners(found) and _content(found) == _content(obj):
            return found  # the same submission, sent twice at once, was faster; `_make_job` attaches to it
        if job is not None or not self._is_stale(found, order):
            raise JobExists(
                _("a ConfigMap {name} exists that does not belong to this job").format(name=name), where=f"{order.namespace}/{name}",
                hint=_("another submit may be under way; try again in a minute, or remove it with: kubectl -n {namespace} delete configmap {name}").format(
                    namespace=order.namespace, name=name),
            )
        self.kube.delete(CONFIGMAPS, name, order.namespace, uid=partial.text(found, "metadata", "uid"))
        made = self._create(CONFIGMAPS, obj, order, ours)
        if made is None:
            raise ClusterError(_("another command keeps making {name}").format(name=name), where=order.name, hint=_("submit again"))
        return made

    def _is_stale(self, found: dict[str, Any], order: Order) -> bool:
        if partial.label(found, marks.LABEL_JOB) != order.name:
            return False
        if partial.items(found, "metadata", "ownerReferences"):
            return True  # its owner, an earlier job of this name or that job's first ConfigMap, is gone: that was made sure before
        made = partial.when(found, "metadata", "creationTimestamp")
        same = _submission_in(found) == order.submission_id
        return same or made is None or self.now_s - made.timestamp() > STALE_MAP_S

    def _create(self, resource: Resource, obj: dict[str, Any], order: Order, ours: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        """Create an object, or find that a lost answer created it; None if somebody else's has the name."""
        name = partial.text(obj, "metadata", "name")
        trouble: NanochatNpuError | None = None
        for _attempt in range(4):
            try:
                made = self.kube.create(resource, obj, order.namespace)
            except (ConflictError, LostResponseError) as error:
                trouble = error if isinstance(error, LostResponseError) else trouble
                found = self.kube.find(resource, name, order.namespace)
            else:
                self._note(resource, made)
                return made
            if found is not None and not partial.text(found, "metadata", "deletionTimestamp"):
                if not ours(found):
                    return None
                if trouble is not None:  # our own first try was stored, and only its answer was lost
                    self._note(resource, found)
                return found
            if found is not None:
                wait_until_gone(self.kube, order.namespace, name, partial.text(found, "metadata", "uid"), GONE_WAIT_S, resource, self._tick)
        raise trouble or ClusterError(_("{name} could not be made: it keeps going away").format(name=name), where=name)

    def _note(self, resource: Resource, made: dict[str, Any]) -> None:
        self._made.append((resource, partial.text(made, "metadata", "name"), partial.text(made, "metadata", "uid")))

    def _adopt(self, job: dict[str, Any], order: Order) -> None:
        """Let the Job own its first ConfigMap, and so all of them: they go when it goes (by its time to live, too)."""
        owner = {
            "apiVersion": JOBS.api_version, "kind": "Job", "name": order.name, "uid": partial.text(job, "metadata", "uid"),
            "blockOwnerDeletion": False, "controller": True,
        }
        for obj in order.objects[:-1][:1]:
            self.kube.patch(CONFIGMAPS, partial.text(obj, "metadata", "name"), {"metadata": {"ownerReferences": [owner]}}, order.namespace)

    def _take_back(self, order: Order) -> None:
        """Delete what this call made, newest first; what cannot be deleted is named by the error that follows."""
        for resource, name, uid in reversed(self._made):
            try:
                self.kube.delete(resource, name, order.namespace, uid=uid)
            except NanochatNpuError:
                continue  # the first error is the one to tell; a ConfigMap without an owner is recognised by the next submit


def wait_until_gone(
    kube: Kube, namespace: str, name: str, uid: str, limit_s: float, resource: Resource = JOBS, tick: Callable[[], None] = lambda: None
) -> None:
    """Wait until the object of this uid does not exist any more; of a job, also until its pods do not. `tick` may raise to end it.

    Raises:
        ClusterError: It is still there; the hint names a command for a dead node.
    """
    deadline, pause = kube.clock.now() + limit_s, 0.25
    while _still_there(kube, namespace, name, uid, resource):
        if kube.clock.now() >= deadline:
            raise ClusterError(
                _("{kind} {name} is still being deleted").format(kind=resource.kind, name=name), where=f"{namespace}/{name}",
                hint=_("see which pods hold it up with: nanochat-npu status {name}; a dead node's are removed with: nanochat-npu recover {name}").format(name=name),
            )
        tick()
        kube.clock.sleep(pause)
        pause = min(2.0, pause * 1.5)


def _still_there(kube: Kube, namespace: str, name: str, uid: str, resource: Resource) -> bool:
    found = kube.find(resource, name, namespace)
    if found is not None and uid in ("", partial.text(found, "metadata", "uid")):
        return True
    if resource is not JOBS or not uid:
        return False
    pods = kube.list(PODS, namespace, labels=f"volcano.sh/job-name={name}").objects
    return any(owner.get("uid") == uid for pod in pods for owner in partial.items(pod, "metadata", "ownerReferences"))


@contextmanager
def _interruptible_between_steps() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C take effect only where the function that this gives is called.

    A KeyboardInterrupt inside of a request would leave us not knowing whether the object exists.
    """
    pressed: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        pressed.append(number)

    def step() -> None:
        if pressed:
            raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: nobody presses Ctrl-C here
        yield lambda: None
        return
    try:
        yield step
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _owned_by(first: dict[str, Any], obj: dict[str, Any]) -> dict[str, Any]:
    """A ConfigMap that goes when the job's first one goes."""
    owner = {
        "apiVersion": CONFIGMAPS.api_version, "kind": "ConfigMap", "name": partial.text(first, "metadata", "name"), "uid": partial.text(first, "metadata", "uid"),
        "blockOwnerDeletion": False,
    }
    return {**obj, "metadata": {**partial.mapping(obj, "metadata"), "ownerReferences": [owner]}}


def _owners(obj: dict[str, Any]) -> set[str]:
    return {partial.text(owner, "uid") for owner in partial.items(obj, "metadata", "ownerReferences")}


def _content(configmap: dict[str, Any]) -> dict[str, Any]:
    return {key: partial.mapping(configmap, key) for key in ("data", "binaryData")}


def _submission_in(configmap: dict[str, Any]) -> str:
    try:
        return partial.text(json.loads(partial.text(configmap, "data", "run.json")), "submission_id")
    except ValueError:
        return ""


def _refuse_problems(problems: list[Problem]) -> None:
    if problems:
        raise _in_fields(ClusterRejected(problems[0].message), problems)


def _in_fields(error: ClusterRejected, problems: list[Problem]) -> ClusterRejected:
    """The same refusal, told in fields of the spec."""
    first = problems[0]
    text = "; ".join(dict.fromkeys(f"{problem.field}: {problem.message}" if problem.field else problem.message for problem in problems[1:]))
    told = ClusterRejected(
        first.message + (f" ({_('also')}: {text})" if text else ""), where=first.field or error.where, hint=first.hint or error.hint,
    )
    told.details["errors"] = [problem.as_json() for problem in problems]
    return told


def _exists(view: JobView, found: dict[str, Any], order: Order) -> JobExists:
    where = f"{order.namespace}/{order.name}"
    if not view.submission_id:
        return JobExists(
            _("a Volcano Job of this name exists that nanochat-npu did not make"), where=where, hint=_("choose another name: --set name=NAME")
        )
    owner = view.owner or "?"
    return JobExists(
        _("another submission has this name: {state}, of {owner}, id {id}").format(state=view.state, owner=owner, id=view.submission_id), where=where,
        hint=_("choose another name (--set name=NAME), start anew (--rerun), or remove it: nanochat-npu cancel {name} --delete").format(name=order.name),
        details={"submission_id": view.submission_id, "state": view.state, "uid": partial.text(found, "metadata", "uid")},
    )
