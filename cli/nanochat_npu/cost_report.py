"""The ledger as a report: one line per job, or sums by week, project or queue; estimate against actual by term."""

import csv
import io
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from nanochat_npu.i18n import _
from nanochat_npu.ledger import Entry, week_of
from nanochat_npu.planviews import words
from nanochat_npu.tables import Section

__all__ = ["GroupBy", "by_job", "grouped", "grouped_csv", "terms_of", "to_csv"]

_MATCHING = {"pulling_s": ("image_pull",), "start_up_s": ("start",), "training_s": ("matmul", "vector", "vocabulary", "optimizer", "communication", "train", "load"), "saving_s": ("saves",)}
"""Measured term -> estimated terms that it answers; everything else that was estimated is evaluating."""


class GroupBy(StrEnum):
    """What a report adds up over."""

    JOB = "job"
    WEEK = "week"
    PROJECT = "project"
    QUEUE = "queue"


def _sums(entries: Sequence[Entry]) -> tuple[dict[str, float], int]:
    """Sums by currency, and how many paid jobs have no price."""
    sums: dict[str, float] = {}
    for entry in entries:
        if entry.cost is not None and entry.currency:
            sums[entry.currency] = sums.get(entry.currency, 0.0) + entry.cost
    return sums, sum(1 for entry in entries if entry.billed_npus and entry.cost is None and entry.state != "OPEN")


def _amount(entries: Sequence[Entry]) -> str:
    """Sums by currency; a job without a price is counted, never added as 0."""
    sums, unpriced = _sums(entries)
    texts = [words.money(value, currency) for currency, value in sorted(sums.items())]
    if unpriced:
        texts.append(_("{n} not priced").format(n=unpriced))
    return " + ".join(texts) or "-"


def _ratio(entry: Entry) -> str:
    return f"{100 * (entry.hours / entry.hours_p50 - 1):+.0f} %" if entry.hours and entry.hours_p50 and entry.state == "SUCCEEDED" else "-"


def by_job(entries: Sequence[Entry]) -> Section:
    """One line for each submission, and the sum."""
    table = [
        (
            entry.job, week_of(entry.submitted_s), entry.state, words.hours(entry.hours_p50) if entry.hours_p50 is not None else "-",
            words.hours(entry.hours) if entry.hours is not None else "-", _ratio(entry), _amount([entry]),
        )
        for entry in entries
    ]
    if entries:
        hours = sum(entry.hours or 0.0 for entry in entries)
        table.append((_("all"), "", "", "", words.hours(hours), "", _amount(entries)))
    header = (_("job"), _("week"), _("state"), _("estimated"), _("took"), _("off by"), _("cost"))
    return Section("jobs", header=header, table=tuple(table), value=[_value(entry) for entry in entries])


def _value(entry: Entry) -> dict[str, Any]:
    return {**vars(entry), "week": week_of(entry.submitted_s), "terms": [{"term": t, "estimated_s": e, "actual_s": a} for t, e, a in _pairs(entry)]}


def _key(entry: Entry, group: GroupBy) -> str:
    return {GroupBy.WEEK: week_of(entry.submitted_s), GroupBy.PROJECT: entry.project, GroupBy.QUEUE: entry.queue, GroupBy.JOB: entry.job}[group]


def grouped(entries: Sequence[Entry], group: GroupBy) -> Section:
    """Sums by week, project or queue; `cost` of the value is an amount for each currency."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(_key(entry, group), []).append(entry)
    table, value = [], []
    for key, members in sorted(groups.items()):
        hours = sum(entry.hours or 0.0 for entry in members)
        npu_hours = sum((entry.hours or 0.0) * entry.billed_npus for entry in members)
        table.append((key or "-", str(len(members)), words.hours(hours), f"{npu_hours:,.1f}", _amount(members)))
        sums, unpriced = _sums(members)
        value.append({group.value: key, "jobs": len(members), "hours": hours, "npu_hours": npu_hours, "cost": sums, "unpriced_jobs": unpriced})
    header = (_(group.value), _("jobs"), _("took"), _("NPU-hours"), _("cost"))
    return Section(group.value, header=header, table=tuple(table), value=value)


def _pairs(entry: Entry) -> list[tuple[str, float, float | None]]:
    """Estimated and actual seconds by measured term."""
    sums = dict.fromkeys(("pulling_s", "start_up_s", "training_s", "saving_s", "evaluating_s"), 0.0)
    for key, seconds in entry.estimated.items():
        stage, _dot, what = key.partition(".")
        name = next((n for n, parts in _MATCHING.items() if stage in parts or what in parts), "evaluating_s")
        if key != "allowance":
            sums["evaluating_s" if stage == "tokenizer" else name] += seconds
    pairs: list[tuple[str, float, float | None]] = [(name, seconds, entry.actual.get(name)) for name, seconds in sums.items()]
    if sums["pulling_s"] == 0 and not entry.actual.get("pulling_s"):
        pairs = [pair for pair in pairs if pair[0] != "pulling_s"]
    lost = entry.actual.get("lost_s", 0.0) + entry.actual.get("idle_s", 0.0) if entry.actual else None
    return [*pairs, ("allowance", entry.estimated.get("allowance", 0.0), lost)]


def terms_of(entry: Entry) -> Section:
    """Estimate against actual of one job, by term."""
    names = {
        "pulling_s": _("image pull"), "start_up_s": _("start-up"), "training_s": _("training"), "saving_s": _("checkpoints"), "evaluating_s": _("evaluation, other stages"),
        "allowance": _("stalls, failures, lost work"),
    }
    table = [(names[t], words.hours(e / 3600), words.hours(a / 3600) if a is not None else "-") for t, e, a in _pairs(entry)]
    waited = entry.actual.get("pending_s")
    if waited is not None:
        table.append((_("waiting (not paid for)"), "-", words.hours(waited / 3600)))
    if entry.hours is not None:
        low, high = words.hours(entry.hours_p10), words.hours(entry.hours_p90)
        inside = entry.hours_p10 <= entry.hours <= entry.hours_p90
        estimated = f"{low}–{high}"
        table.append((_("all, P10–P90"), estimated, words.hours(entry.hours) + (" " + (_("inside") if inside else _("outside")))))
    return Section("terms", entry.job, header=(_("term"), _("estimated"), _("took")), table=tuple(table), value=_value(entry))


def grouped_csv(entries: Sequence[Entry], group: GroupBy) -> str:
    """Sums by week, project or queue as CSV, one column for each currency."""
    values = grouped(entries, group).value
    currencies = sorted({currency for value in values for currency in value["cost"]})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([group.value, "jobs", "hours", "npu_hours", *(f"cost_{currency}" for currency in currencies), "unpriced_jobs"])
    for value in values:
        amounts = [value["cost"].get(currency, "") for currency in currencies]
        writer.writerow([value[group.value], value["jobs"], value["hours"], value["npu_hours"], *amounts, value["unpriced_jobs"]])
    return out.getvalue()


def to_csv(entries: Sequence[Entry]) -> str:
    """All lines as CSV, one column per field, per measured term and per estimated one."""
    terms = ("pending_s", "pulling_s", "start_up_s", "training_s", "evaluating_s", "saving_s", "idle_s", "lost_s")
    plain = [name for name in vars(entries[0]) if name not in ("estimated", "actual", "details")] if entries else ["job"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    estimated = ("pulling_s", "start_up_s", "training_s", "evaluating_s", "saving_s", "allowance")
    writer.writerow([*plain, "week", *terms, *(f"estimated_{term.removesuffix('_s')}_s" for term in estimated)])
    for entry in entries:
        pairs = {term: seconds for term, seconds, _actual in _pairs(entry)}
        writer.writerow([
            *(getattr(entry, name) for name in plain), week_of(entry.submitted_s), *(entry.actual.get(term, "") for term in terms),
            *(pairs.get(term, 0.0) for term in estimated),
        ])
    return out.getvalue()
