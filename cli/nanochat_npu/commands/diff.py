"""``diff``: a spec against the job of its name that exists, and what applying it would mean."""

import datetime
import shlex
from pathlib import Path
from typing import Any

import yaml

from nanochat_npu import console, marks, partial
from nanochat_npu.backends import Backend, JobView
from nanochat_npu.backends.volcano import VolcanoBackend
from nanochat_npu.cluster.read import read_job
from nanochat_npu.diffing import Change, Verdict, compare, drift, judge
from nanochat_npu.errors import ClusterError
from nanochat_npu.i18n import _
from nanochat_npu.load import load_spec, load_text
from nanochat_npu.locate import Where, job_backend
from nanochat_npu.options import (
    BackendOption,
    ContextOption,
    NamespaceOption,
    OutputFormat,
    OutputOption,
    SetOption,
    SpecArgument,
    set_flags,
)
from nanochat_npu.plan import make_plan
from nanochat_npu.progress import Progress
from nanochat_npu.render import render
from nanochat_npu.spec import JobSpec

__all__ = ["command"]


def command(
    spec: SpecArgument, set_: SetOption = None, backend: BackendOption = None, namespace: NamespaceOption = None, context: ContextOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Compare a spec with the job of its name: what differs, and what applying it would mean."""
    new = load_spec(spec, set_ or []).spec
    at = job_backend(new.name, Where(backend.value if backend else None, namespace, context))
    view = at.get(new.name)
    old, by_hand = _existing(at, view)
    changes = compare(old, new)
    verdict = judge(changes, view.state, new.name, shlex.join([spec, *set_flags(set_)]), _step(at, new.name))
    if output is OutputFormat.JSON:
        console.json_data({
            "job": new.name, "state": view.state.value, "changes": [change.as_json() for change in changes], "by_hand": [change.as_json() for change in by_hand],
            "effect": verdict.effect.value, "meaning": verdict.sentence, "command": verdict.command,
        })
        return
    _show(changes, by_hand, verdict)


def _existing(at: Backend, view: JobView) -> tuple[JobSpec, list[Change]]:
    """The spec that the job was submitted with, and what was changed on the live object since."""
    if isinstance(at, VolcanoBackend):
        job = read_job(at.kube, at.namespace, view.name)
        text = partial.annotation(job, marks.ANNOTATION_SPEC)
        if not text:
            raise ClusterError(_("the job does not carry its spec; nanochat-npu did not submit it"), where=view.name, hint=_("nanochat-npu lint looks at any job"))
        old = load_text(text.encode(), f"{view.name}@cluster", environ={}).spec
        return old, drift(_rendered_spec(old), job.get("spec"))
    folder = Path(view.where)
    try:
        return load_text((folder / "spec.yaml").read_bytes(), str(folder / "spec.yaml"), environ={}).spec, []
    except OSError as error:
        raise ClusterError(_("its spec cannot be read: {reason}").format(reason=error.strerror), where=str(folder / "spec.yaml")) from error


def _rendered_spec(spec: JobSpec) -> Any:
    files = render(make_plan(spec, datetime.date.today())).files
    documents = [document for name, text in files.items() if name.endswith((".yaml", ".yml")) for document in yaml.safe_load_all(text)]
    return next((d["spec"] for d in documents if isinstance(d, dict) and d.get("kind") == "Job"), {})


def _step(at: Backend, name: str) -> int | None:
    source, progress = at.events(name), Progress()
    try:
        events = source.poll()
        progress.feed_all(events)
    finally:
        source.close()
    steps = [event.get("step") for event in events if event.get("event") == "checkpoint"]
    return next((step for step in reversed(steps) if isinstance(step, int)), None)


def _show(changes: list[Change], by_hand: list[Change], verdict: Verdict) -> None:
    for change in changes:
        console.data(f"~ {change.path}: {change.old} → {change.new}  ({_effect_word(change)})")
    for change in by_hand:
        console.data(f"! {change.path}: {change.old} → {change.new}  ({_('changed on the cluster by hand')})")
    if not changes:
        console.data(_("no difference"))
    console.say(_("applying it: {meaning}").format(meaning=verdict.sentence))
    console.say(_("next: {command}").format(command=verdict.command))


def _effect_word(change: Change) -> str:
    return {
        "nothing": _("no restart"), "in place": _("in place"), "restart": _("restart"), "refused": _("needs a new job"),
    }[change.effect.value]
