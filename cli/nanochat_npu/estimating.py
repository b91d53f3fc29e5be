"""From a plan to its estimate: what the spec says, what this computer is, and what was measured before."""

import datetime
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from nanochat.contract import DataSource, Stage
from nanochat_npu import calibration
from nanochat_npu.errors import BudgetError, SpecConflictError, SpecFieldError
from nanochat_npu.estimate import (
    Budget,
    Calibration,
    Electricity,
    Estimate,
    Inputs,
    Knowledge,
    Price,
    Site,
    Stack,
    Storage,
    Tier,
    estimate,
)
from nanochat_npu.estimate.contention import own_load
from nanochat_npu.estimate.inputs import CONVERSATION_TOKENS, TOY_CONVERSATION_TOKENS
from nanochat_npu.i18n import _
from nanochat_npu.jobs import home_dir
from nanochat_npu.plan import Plan, billed_npus
from nanochat_npu.planviews.value import suggested_set
from nanochat_npu.quantities import amount
from nanochat_npu.spec import Backend, JobSpec

__all__ = ["Host", "Learnt", "check_budget", "check_memory", "check_price", "estimate_here", "estimate_plan", "host_with", "inputs_of", "is_too_large", "job_versions", "learn", "others_load", "over_budget", "this_host"]

LEDGER_FILE = "ledger.db"
"""As in `nanochat_npu.ledger`, which is imported only where there is one: SQLite is not needed for a first plan."""
RECENT_S = 600.0
"""What ended before that has left the one-minute load average."""


@dataclass(frozen=True)
class Host:
    """The computer that local jobs run on."""

    cores: int = 1
    memory_bytes: int | None = None
    has_npus: bool = False
    load: float | None = None
    """One-minute load average of other work, or None where nobody looked."""


def this_host() -> Host:
    """This computer."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Host(len(os.sched_getaffinity(0)), memory if memory > 0 else None, Path("/dev/davinci_manager").exists(), os.getloadavg()[0])


def others_load(host: Host, ran: Sequence[tuple[float, float]], now_s: float) -> Host:
    """The computer with the load average of others only: jobs of ours that have just ended still show in it.

    Args:
        host: The computer, with its whole load average.
        ran: Ends (Unix time) and lengths in seconds of our jobs.
        now_s: Unix time.
    """
    if host.load is None:
        return host
    ours = sum(own_load(host.cores, lasted_s, now_s - ended_s) for ended_s, lasted_s in ran if now_s - ended_s < RECENT_S)
    return replace(host, load=max(0.0, host.load - ours))


@dataclass(frozen=True)
class Learnt:
    """What was measured before, and what could not be read of it."""

    knowledge: Knowledge
    problems: tuple[str, ...] = ()
    ran: tuple[tuple[float, float], ...] = ()
    """Ends and lengths in seconds of jobs of ours on this computer."""


def learn(inputs: Inputs, home: Path | None = None, extra: tuple[Calibration, ...] = (), versions: dict[str, str] | None = None) -> Learnt:
    """Calibrations and past jobs of this state folder; what cannot be read is left out, and said."""
    folder = home or home_dir()
    records, problems = calibration.load_all(folder)
    past, ran, trouble = _past_jobs(folder, inputs)
    problems += trouble
    ran += [(record.ended_s, record.ran_s) for record in records if record.host == os.uname().nodename and record.ended_s is not None and record.ran_s is not None]
    return Learnt(Knowledge((*records, *extra), versions or {}, past), tuple(problems), tuple(ran))


def _past_jobs(folder: Path, inputs: Inputs) -> tuple[dict[Tier, Sequence[float]], list[tuple[float, float]], list[str]]:
    """Actual over estimated time of past jobs, by tier; ends and lengths of local ones; why they could not be read."""
    if not (folder / LEDGER_FILE).exists():
        return {}, [], []
    from nanochat_npu.accounts import settle_local
    from nanochat_npu.ledger import Ledger, LedgerError, ratios

    try:
        settle_local(folder)
        entries = Ledger.of(folder).entries()
    except LedgerError as error:
        return {}, [], [_("past jobs are not counted: {reason}").format(reason=error)]
    found = ratios(entries, chip=inputs.chip, stack=str(inputs.stack))
    ran = [(entry.ended_s, entry.hours * 3600) for entry in entries if entry.backend == "local" and entry.ended_s and entry.hours]
    tiers: tuple[Tier, ...] = ("A", "B", "C", "D")
    return {tier: found[tier] for tier in tiers if tier in found}, ran, []


def _chip(spec: JobSpec, host: Host) -> str:
    """What the ranks compute on. A local job without NPUs in this computer runs on its cores, whatever the spec names."""
    if spec.resources.npus_per_node == 0 or (spec.backend is Backend.LOCAL and not host.has_npus):
        return "cpu"
    return str(spec.resources.npu.value) if spec.resources.npu else "910B"


def _stack(spec: JobSpec) -> Stack:
    if spec.estimate.stack != "auto":
        return Stack(spec.estimate.stack)
    return Stack.GRAPH if spec.run.compile else Stack.EAGER


def _cpu(spec: JobSpec, host: Host, world_size: int) -> tuple[float, int | None]:
    """Cores and bytes of one CPU rank: local ranks share this computer, simulated nodes too."""
    resources = spec.resources
    stated = int(amount(resources.memory) or 0) if resources.memory else None
    if spec.backend is Backend.LOCAL:
        total = min(x for x in (stated, host.memory_bytes) if x is not None) if stated or host.memory_bytes else None
        return host.cores / world_size, total // world_size if total else None
    ranks = spec.ranks_per_node
    return (resources.cpu or 1.0) / ranks, stated // ranks if stated else None


def _price(spec: JobSpec) -> Price | None:
    price = spec.price
    return None if price is None else Price(price.per_npu_hour, price.currency, price.source, price.date, price.low, price.high)


def inputs_of(plan: Plan, host: Host | None = None) -> Inputs:
    """The plan as the estimate reads it. Without a host, local jobs are taken to run on one core."""
    spec, place = plan.spec, host or Host()
    cores, memory = _cpu(spec, place, plan.world_size)
    chip = _chip(spec, place)
    assumed, price = spec.estimate, spec.price
    toy = spec.run.data.source is DataSource.TOY
    return Inputs(
        run=plan.run, shape=plan.shape, horizon=plan.horizon, nodes=spec.resources.nodes, ranks_per_node=spec.ranks_per_node, chip=chip, stack=_stack(spec),
        billed_per_node=billed_npus(spec) // spec.resources.nodes if chip != "cpu" else 0, cores_per_rank=cores, memory_bytes=memory,
        load_others=place.load if spec.backend is Backend.LOCAL and chip == "cpu" else None,
        pulls_image=spec.backend is Backend.VOLCANO, conversations_tokens=TOY_CONVERSATION_TOKENS if toy else CONVERSATION_TOKENS,
        site=Site(
            image_gb=assumed.image_gb, pull_gb_per_s=assumed.pull_gb_per_s, storage_gb_per_s=assumed.storage_gb_per_s,
            download_gb_per_s=assumed.download_gb_per_s, start_s=assumed.start_s,
        ),
        price=_price(spec), storage=Storage(price.storage_gb_month) if price and price.storage_gb_month is not None else None,
        electricity=Electricity(price.per_kwh, price.pue, price.host_frac) if price and price.per_kwh is not None else None,
        budget=Budget(spec.budget.max_total, _max_hours(spec), spec.budget.basis, spec.budget.on_limit),
    )


def _max_hours(spec: JobSpec) -> float | None:
    limits = [hours for hours in (spec.budget.max_hours, spec.lifecycle.max_hours) if hours]
    return min(limits) if limits else None


def check_price(spec: JobSpec, today: datetime.date) -> None:
    """Refuses a price from the future.

    Raises:
        SpecFieldError: The date has not come yet.
    """
    if spec.price is not None and spec.price.date > today:
        message = _("{date} has not come yet; today is {today}").format(date=spec.price.date, today=today)
        raise SpecFieldError(message, where="price.date", hint=_("the day on which the price held"))


def estimate_plan(plan: Plan, learnt: Learnt | None = None, *, host: Host | None = None) -> Estimate:
    """The estimate of a plan on a computer, with what is known.

    Raises:
        SpecFieldError: The price is dated in the future.
    """
    check_price(plan.spec, plan.today)
    inputs = inputs_of(plan, host)
    known = learnt.knowledge if learnt is not None else Knowledge()
    return estimate(inputs, known)


def estimate_here(plan: Plan, extra: tuple[Calibration, ...] = ()) -> tuple[Estimate, tuple[str, ...]]:
    """The estimate of a plan with all that this computer and its state folder know, and what could not be read of that.

    Args:
        plan: The plan.
        extra: Calibrations beside the stored ones.
    """
    host = this_host()
    learnt = learn(inputs_of(plan, host), extra=extra, versions=job_versions(plan))
    return estimate_plan(plan, learnt, host=others_load(host, learnt.ran, time.time())), learnt.problems


def host_with(plan: Plan) -> Host:
    """This computer, with the load average of other work than our own jobs."""
    host = this_host()
    return others_load(host, learn(inputs_of(plan, host)).ran, time.time())


def job_versions(plan: Plan) -> dict[str, str]:
    """Versions that a calibration must share: of the image, or of the packages on this computer, which are looked up, not imported."""
    if plan.spec.backend is Backend.LOCAL:
        on_cores = {"processor": _processor()} if _chip(plan.spec, this_host()) == "cpu" else {}
        return {**_installed("torch", "torch_npu"), **on_cores}
    if not plan.wants_npus:
        return {}
    return {"cann": plan.spec.image.cann, "torch_npu": plan.spec.image.torch_npu}


def _processor() -> str:
    """Model and cores of this computer's processor, since "cpu" may be any; an empty model where the system does not say."""
    model = ""
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        model = next((line.partition(":")[2].strip() for line in file if line.lower().startswith(("model name", "cpu part"))), "")
    return f"{model} x {this_host().cores}".strip()


def _installed(*packages: str) -> dict[str, str]:
    from importlib import metadata

    found = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def over_budget(result: Estimate) -> list[str]:
    """Sentences about each limit that the estimate exceeds; none if it keeps them."""
    budget, found = result.inputs.budget, []
    hours, total = result.hours, result.cost.total
    quantile = "p90" if budget.basis == "p90" or hours.p50 is None else "p50"
    value = getattr(hours, quantile)
    if budget.max_hours is not None and value > budget.max_hours:
        found.append(_("{hours:.3g} h ({quantile}) are more than max_hours {limit:g}").format(hours=value, quantile=quantile.upper(), limit=budget.max_hours))
    if budget.max_total is not None and total is not None:
        cost = getattr(total, quantile)
        if cost > budget.max_total:
            found.append(
                _("{cost:,.0f} {currency} ({quantile}) are more than budget.max_total {limit:,.0f}").format(
                    cost=cost, currency=result.cost.currency, quantile=quantile.upper(), limit=budget.max_total
                )
            )
    return found


def check_budget(result: Estimate) -> None:
    """Refuses a job that its budget does not allow, before anything is built.

    Raises:
        BudgetError: The estimate exceeds a limit (exit 8).
    """
    found = over_budget(result)
    if found:
        raise BudgetError("; ".join(found), where="budget", hint=_("see what would change it: nanochat-npu plan SPEC, then raise the limit or pull a lever"))


def is_too_large(result: Estimate) -> bool:
    """True if a training step needs more memory than a rank has; never for a job that only fetches data or makes a tokenizer."""
    return result.memory.verdict == "oom" and not {Stage.PRETRAIN, Stage.SFT, Stage.RL}.isdisjoint(result.inputs.run.stages)


def check_memory(result: Estimate) -> None:
    """Refuses a job whose memory does not fit; one that is only tight may run.

    Raises:
        SpecConflictError: The predicted peak exceeds what a rank may use (exit 3).
    """
    memory = result.memory
    if not is_too_large(result) or memory.usable_bytes is None:
        return
    message = _("memory does not fit: {peak:.1f} GB per rank, {usable:.1f} GB can be used").format(peak=memory.peak_bytes / 1e9, usable=memory.usable_bytes / 1e9)
    way_out = f"--set {suggested_set(result)}" if memory.suggested_batch else _("a smaller depth") if result.inputs.chip == "cpu" else _("a smaller depth, or more NPUs")
    raise SpecConflictError(message, where="run.pretrain.device_batch", hint=_("way out: {way_out}; to submit it all the same: --force").format(way_out=way_out))
