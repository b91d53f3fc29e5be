"""``submit``: start a job, attach to it, or let it go on; with ``--follow`` to its end."""

import datetime
import re
import sys
from contextlib import nullcontext
from typing import Annotated, NamedTuple

import typer

from nanochat_npu import console, planfile, tables
from nanochat_npu.accounts import note_submission
from nanochat_npu.backends import Backend, Outcome, Submission, Submitted, connect
from nanochat_npu.errors import ClusterRejected, JobError
from nanochat_npu.estimate import Estimate
from nanochat_npu.estimating import check_budget, check_memory, estimate_here
from nanochat_npu.follow import Options, Signals, catching, follow, make_display, raise_for_end
from nanochat_npu.i18n import _
from nanochat_npu.load import LoadedSpec
from nanochat_npu.options import (
    BackendChoice,
    OutputFormat,
    OutputOption,
    PriceOption,
    PricesOption,
    SetOption,
    SpecArgument,
    YesOption,
    set_flags,
)
from nanochat_npu.origins import Origin
from nanochat_npu.periods import parse_seconds
from nanochat_npu.plan import Plan, make_plan
from nanochat_npu.planviews.sections import short_lines
from nanochat_npu.progress import Progress
from nanochat_npu.resume import resume_overrides
from nanochat_npu.spec import JobSpec
from nanochat_npu.views import RESULT_SECTIONS, Snapshot, job_json, sections
from nanochat_npu.yaml_edit import dump_yaml
from nanochat_npu.yaml_source import parse_yaml

__all__ = ["command", "spec_text"]

BackendOption = Annotated[BackendChoice | None, typer.Option("--backend", help=_("Where it runs; default: what the spec says."), show_default=False)]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help=_("Watch it to its end and leave with its result. Ctrl-C stops a local job."))]
RerunOption = Annotated[bool, typer.Option("--rerun", help=_("Start anew; the files of the earlier run are kept aside."))]
ResumeOption = Annotated[
    str | None, typer.Option("--resume-from", metavar="JOB[@STEP]", help=_("Begin with another job's checkpoint and keep its horizon."), show_default=False)
]
ForceOption = Annotated[bool, typer.Option("--force", help=_("Submit even if the plan says that the memory does not fit."))]
DryRunOption = Annotated[bool, typer.Option("--dry-run", "--dryrun", help=_("Show exactly what would be used, and start nothing."))]
WaitOption = Annotated[
    str | None, typer.Option("--wait-timeout", metavar="TIME", help=_("Follow for at most 90s, 10m, 2h; the job goes on."), show_default=False)
]


def command(
    spec: SpecArgument, set_: SetOption = None, backend: BackendOption = None, follow_: FollowOption = False, rerun: RerunOption = False,
    resume_from: ResumeOption = None, dry_run: DryRunOption = False, wait_timeout: WaitOption = None, yes: YesOption = False,
    force: ForceOption = False, price: PriceOption = None, prices: PricesOption = None, output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Start a job. The same spec again attaches to it, or lets it go on from its newest checkpoint if it had ended."""
    timeout_s = parse_seconds(wait_timeout, "--wait-timeout")
    overrides = [*(set_ or []), *([f"backend={backend.value}"] if backend else [])]
    if price is not None or prices is not None:
        from nanochat_npu.prices import priced

        overrides += priced(spec, overrides, price, prices)
    loaded = planfile.load(spec, overrides)
    if resume_from is not None:
        loaded = planfile.load(spec, [*resume_overrides(resume_from, loaded.spec, overrides), *overrides])
    plan = make_plan(loaded.spec, datetime.date.today())
    submission = Submission(plan, spec_text(loaded.spec), rerun=rerun, origin=tuple(sys.argv[1:]))
    if dry_run:
        _show(preview(submission), plan, output)
        if output is not OutputFormat.JSON:
            console.say_next("submit", spec, *set_flags(overrides), *(["--resume-from", resume_from] if resume_from else []), *(["--rerun"] if rerun else []))
        return
    estimated, _problems = estimate_here(plan)
    check_budget(estimated)
    if not force:
        check_memory(estimated)
    at = backend_of(plan)
    _confirm(at, plan, estimated, yes=yes)
    if not (follow_ or timeout_s is not None):
        submitted = _send(at, submission, loaded)
        _note(plan, estimated, submitted)
        _tell(submitted, output)
        return
    # From before the job exists: a Ctrl-C that comes while it starts must stop it too, not only this command.
    with catching() if at.interrupt == "cancel" else nullcontext() as signals:
        submitted = _send(at, submission, loaded)
        _note(plan, estimated, submitted)
        _follow(at, submitted, Watching(timeout_s, signals), output)


def _send(at: Backend, submission: Submission, loaded: LoadedSpec) -> Submitted:
    """Submit; what is refused is told with the line of the spec that it comes from."""
    try:
        return at.submit(submission)
    except (ClusterRejected, JobError) as error:
        field = error.where or ""
        if re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", field):
            origin = loaded.origins.get(field, "")
            mark = parse_yaml(loaded.text.encode(), loaded.source).locate(tuple(field.split("."))) if origin == Origin.SPEC else None
            error.where = f"{loaded.source}:{mark.line}:{mark.column}: {field}" if mark else f"{origin}: {field}" if origin else field
        raise


def spec_text(spec: JobSpec) -> str:
    """The resolved spec as YAML: what was said, not what was left at its default. Loading it gives the same spec again."""
    said = spec.model_dump(mode="json", exclude_unset=True)
    return dump_yaml(said)


def backend_of(plan: Plan) -> Backend:
    """The backend that a plan is for, ready for calls."""
    if plan.spec.backend == "local":
        return connect("local")
    return connect("volcano", namespace=plan.spec.cluster.namespace, context=plan.spec.cluster.context)


def preview(submission: Submission) -> dict[str, str]:
    """The exact files of a submission; needs no cluster."""
    if submission.plan.spec.backend == "local":
        return connect("local").preview(submission)
    from nanochat_npu.image.build import pinned_image
    from nanochat_npu.render import render

    return dict(render(submission.plan, image=pinned_image(submission.plan)).files)


def _show(files: dict[str, str], plan: Plan, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        console.json_data({"job": plan.name, "submission_id": plan.submission_id, "dry_run": True, "files": files})
        return
    console.data("".join(f"---\n# file: {path}\n{text if text.endswith(chr(10)) else text + chr(10)}" for path, text in files.items()))
    console.say(_("nothing was started (--dry-run)"))


def _note(plan: Plan, estimated: Estimate, submitted: Submitted) -> None:
    """A line in the ledger for what was really started."""
    if submitted.outcome is Outcome.ATTACHED:
        return
    trouble = note_submission(plan, estimated, kind="continued" if submitted.outcome is Outcome.CONTINUED else "whole")
    if trouble is not None:
        console.say(_("the ledger has no line for this job: {reason}").format(reason=trouble))


def _confirm(backend: Backend, plan: Plan, estimated: Estimate, *, yes: bool) -> None:
    """Ask before a cluster's NPUs are taken; on a terminal only, since a script has nobody to ask. What it will take is said anyway."""
    for line in short_lines(estimated):
        console.say(line)
    if backend.name == "local" or yes or not console.is_interactive():
        return
    spec = plan.spec
    question = _("Submit {name}: {nodes} × {npus} NPUs, queue {queue}, namespace {namespace}?").format(
        name=plan.name, nodes=spec.resources.nodes, npus=spec.resources.npus_per_node, queue=spec.cluster.queue, namespace=spec.cluster.namespace
    )
    if not console.confirm(question, yes=yes):
        raise typer.Abort


_SENTENCES = {
    Outcome.STARTED: lambda: _("{job} is started"),
    Outcome.ATTACHED: lambda: _("{job} was submitted before and is {state}: nothing was started (anew: --rerun)"),
    Outcome.CONTINUED: lambda: _("{job} goes on from its newest checkpoint"),
    Outcome.RESTARTED: lambda: _("{job} starts again: it had no checkpoint yet"),
}


def _say_outcome(submitted: Submitted) -> None:
    job = submitted.job
    for note in submitted.notes:
        console.say(note)
    console.say(_SENTENCES[submitted.outcome]().format(job=job.name, state=job.state))


def _tell(submitted: Submitted, output: OutputFormat) -> None:
    job = submitted.job
    if output is OutputFormat.JSON:
        console.json_data({"outcome": submitted.outcome, "notes": submitted.notes, **job_json(Snapshot.of(job, Progress()))})
        return
    _say_outcome(submitted)
    console.data(job.name)  # alone on stdout, for scripts
    console.say(_("next: nanochat-npu status {job}, or watch it: nanochat-npu watch {job}").format(job=job.name))


class Watching(NamedTuple):
    """How long to follow, and the signals since before the job started."""

    timeout_s: float | None
    signals: Signals | None


def _follow(backend: Backend, submitted: Submitted, watching: Watching, output: OutputFormat) -> None:
    _say_outcome(submitted)
    owned = backend.interrupt == "cancel" and submitted.outcome is not Outcome.ATTACHED
    options = Options(owned=owned, timeout_s=watching.timeout_s, history=submitted.outcome is Outcome.STARTED)
    followed = follow(backend, submitted.job.name, make_display(), options, watching.signals)
    snapshot = followed.snapshot
    if followed.interrupts:
        console.say(_("{job}: {state}  {reason}").format(job=snapshot.job.name, state=snapshot.job.state, reason=snapshot.job.reason))
        raise typer.Exit(130)
    made = sections(RESULT_SECTIONS, snapshot)
    if output is not OutputFormat.JSON:
        console.data(tables.to_markdown(made) if output is OutputFormat.MARKDOWN else tables.to_text(made))
    raise_for_end(snapshot)
    if output is OutputFormat.JSON:
        console.json_data({"outcome": submitted.outcome, **job_json(snapshot), **tables.to_json(made)})
