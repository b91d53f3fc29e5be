"""What `status` adds from the ledger: time left, projected cost, and whether the job leaves its estimate."""

from nanochat_npu.accounts import Projection, project
from nanochat_npu.backends import ACTIVE
from nanochat_npu.i18n import _
from nanochat_npu.jobs import home_dir
from nanochat_npu.ledger import Entry, Ledger, LedgerError
from nanochat_npu.planviews import words
from nanochat_npu.progress import Progress
from nanochat_npu.tables import Section
from nanochat_npu.views import Snapshot

__all__ = ["done_fraction", "estimate_section"]


_NOT_WORK = frozenset({"allowance", "load.others", "end.processes"})
"""Estimated seconds that no stage does."""


def done_fraction(progress: Progress, estimated: dict[str, float]) -> float:
    """Fraction of the estimated work that is behind: stages that ended count whole, the one that runs by its steps."""
    sums: dict[str, float] = {}
    for key, seconds in estimated.items():
        if key not in _NOT_WORK:
            sums[key.partition(".")[0]] = sums.get(key.partition(".")[0], 0.0) + seconds
    total = sum(sums.values())
    behind = sums.pop("start", 0.0)
    seen: dict[str, int] = {}
    for run in progress.runs:
        seen[run.name] = seen.get(run.name, 0) + 1
        name = run.name if seen[run.name] == 1 else f"{run.name}{seen[run.name]}"
        share = 1.0 if run.status in ("end", "skip") else (run.step / run.steps if run.step and run.steps else 0.0)
        behind += share * sums.get(name, 0.0)
    return min(1.0, behind / total) if total else 0.0


def estimate_section(snapshot: Snapshot) -> Section | None:
    """Estimate against what is seen so far; None for a job without a line in the ledger here."""
    job = snapshot.job
    try:
        entry = Ledger.of(home_dir()).latest(job.name, job.submission_id)
    except LedgerError:
        return None
    if entry is None:
        return None
    rows = [(_("estimated"), _range(entry))]
    projection = None
    if job.state in ACTIVE and snapshot.elapsed_s:
        projection = project(entry, elapsed_s=snapshot.elapsed_s, done=done_fraction(snapshot.progress, entry.estimated))
    so_far = _cost_so_far(entry, snapshot)
    if so_far is not None:
        rows.append((_("cost so far"), words.money(so_far, entry.currency)))
    if projection is not None:
        rows.append((_("heading for"), _("{hours} in all, {left} left").format(hours=words.hours(projection.hours), left=words.hours(projection.left_h))))
        if projection.cost is not None:
            rows.append((_("projected cost"), words.money(projection.cost, entry.currency)))
        if projection.outside is not None:
            rows.append(("!", _outside(projection)))
    return Section("estimate", _("Estimate"), rows=tuple(rows), value=_value(entry, projection))


def _cost_so_far(entry: Entry, snapshot: Snapshot) -> float | None:
    """At the price of the plan; None without one, and for a computer of one's own."""
    if entry.cost is not None:
        return entry.cost
    if entry.price is None or not entry.billed_npus or not snapshot.elapsed_s:
        return None
    return snapshot.elapsed_s / 3600 * entry.billed_npus * entry.price


def _range(entry: Entry) -> str:
    middle = words.hours(entry.hours_p50) if entry.hours_p50 is not None else "–"
    return _("{low} / {middle} / {high}, tier {tier}").format(low=words.hours(entry.hours_p10), middle=middle, high=words.hours(entry.hours_p90), tier=entry.tier)


def _outside(projection: Projection) -> str:
    if projection.outside == "late":
        return _("slower than the P90 of its estimate: look at nanochat-npu logs, or calibrate anew")
    return _("faster than the P10 of its estimate")


def _value(entry: Entry, projection: Projection | None) -> dict[str, object]:
    found: dict[str, object] = {"time_h": {"p10": entry.hours_p10, "p50": entry.hours_p50, "p90": entry.hours_p90}, "tier": entry.tier}
    if projection is not None:
        found |= {"projected_h": projection.hours, "left_h": projection.left_h, "projected_cost": projection.cost, "currency": entry.currency, "outside": projection.outside}
    return found
