#!/usr/bin/env python3
"""Prints how well the time formula predicts published throughputs of architectures that it never saw.

    python dev/validate_estimator.py [tests/data/estimator_validation.csv] [--sensitivity]

Error is |predicted time / actual time - 1|. Whole architectures (layers, width, ffn, vocabulary) are left out, in all
families at once. Beside ours: 20 % MFU with 6 N of all parameters, the same with exact FLOPs, and one MFU per family.
Intervals are P10-P90 of what the *other* families of the same vendor got wrong, and what the fit itself claims.
"""

import argparse
import csv
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from nanochat_npu.estimate.fit import Observation, Options, Prediction, leave_out

DATA = Path(__file__).parent.parent / "tests" / "data" / "estimator_validation.csv"
ASCEND = ("mindspeed", "mindformers", "flagperf-800t", "nanochat-a3")
_Z80 = 1.2816


@dataclass(frozen=True)
class Scores:
    """Errors of the methods on the same rows, and how often the intervals held."""

    ours: list[float]
    simple: list[float]
    exact: list[float]
    constant: list[float]
    covered: list[bool]
    claimed: list[bool]


def is_ascend(family: str) -> bool:
    """True for rows measured on Ascend NPUs."""
    return family.startswith(ASCEND)


def platform_of(family: str) -> str:
    """Families that share constants: one kind of chip under one kind of software."""
    if family == "nanochat-a3-eager":
        return "ascend-eager"
    if is_ascend(family):
        return "ascend-fused"
    return family.replace("-40gb", "").replace("-80gb", "")


def read(path: Path) -> list[Observation]:
    """Rows that can be fitted; those marked otherwise, or without a speed, are left aside."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    needed = ("tps_dev", "params", "mm", "attn_full", "peak", "L", "d", "V")
    return [_observation(row) for row in rows if row["use"] == "fit" and all(_number(row, name) > 0 for name in needed)]


def _number(row: dict[str, str], key: str, default: float = 0.0) -> float:
    return float(row[key]) if row.get(key) not in ("", None) else default


def _observation(row: dict[str, str]) -> Observation:
    return Observation(
        platform=platform_of(row["family"]), family=row["family"], seconds=1 / _number(row, "tps_dev"), params=_number(row, "params"),
        matmul_params=_number(row, "mm"), attention_flops=_number(row, "attn_full"), peak_flops=_number(row, "peak"), depth=_number(row, "L"),
        width=_number(row, "d"), ffn=_number(row, "ffn"), vocab=_number(row, "V"), sequence_len=_number(row, "seq_len", 2048) or 2048,
        recompute=_number(row, "recompute"), parallel=(max(1.0, _number(row, "tp", 1)), max(1.0, _number(row, "pp", 1)), max(1.0, _number(row, "cp", 1))),
        grad_accum=max(1.0, _number(row, "ga", 1)), devices=_number(row, "n_devices", 8) or 8, batch_tokens=_number(row, "global_batch_tokens") or None,
        code_line=1.0 if re.search(r"\bLegacy\b", row["notes"]) else 0.0,
    )


def _flops(row: Observation) -> float:
    return 6 * row.matmul_params + row.attention_flops


def _constant_mfu(row: Observation, rows: Sequence[Observation]) -> float | None:
    """Seconds per token by the median MFU of the family's other architectures."""
    others = defaultdict(list)
    for other in rows:
        if other.family == row.family and other.architecture != row.architecture:
            others[other.architecture].append(_flops(other) / other.seconds / other.peak_flops)
    return _flops(row) / (median(map(median, others.values())) * row.peak_flops) if others else None


def _quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    return ordered[low] + (at - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def evaluate(rows: Sequence[Observation], options: Options | None = None) -> dict[str, Scores]:
    """Scores by family, whole architectures left out."""
    results = leave_out(rows, options)
    missed = defaultdict(list)
    for row, prediction in results:
        missed[row.family].append(math.log(row.seconds / prediction.seconds))
    found: dict[str, Scores] = {}
    for row, prediction in results:
        scores = found.setdefault(row.family, Scores([], [], [], [], [], []))
        _score(row, prediction, rows, scores, _others(row.family, missed))
    return found


def _others(family: str, missed: dict[str, list[float]]) -> list[float]:
    same_vendor = [r for name, rs in missed.items() if name != family and is_ascend(name) == is_ascend(family) for r in rs]
    return same_vendor or [r for name, rs in missed.items() if name != family for r in rs]


def _score(row: Observation, prediction: Prediction, rows: Sequence[Observation], scores: Scores, others: Sequence[float]) -> None:
    scores.ours.append(prediction.seconds / row.seconds - 1)
    scores.simple.append(6 * row.params / (0.2 * row.peak_flops) / row.seconds - 1)
    scores.exact.append(_flops(row) / (0.2 * row.peak_flops) / row.seconds - 1)
    constant = _constant_mfu(row, rows)
    if constant is not None:
        scores.constant.append(constant / row.seconds - 1)
    off = math.log(row.seconds / prediction.seconds)
    scores.covered.append(_quantile(others, 0.1) <= off <= _quantile(others, 0.9))
    scores.claimed.append(abs(off) <= _Z80 * prediction.ln_sd)


def pooled(found: dict[str, Scores], *, ascend: bool | None = None) -> Scores:
    """Scores of several families together: all, Ascend's, or the others."""
    chosen = [s for family, s in found.items() if ascend is None or is_ascend(family) == ascend]
    return Scores(*([value for s in chosen for value in getattr(s, name)] for name in ("ours", "simple", "exact", "constant", "covered", "claimed")))


def median_error(errors: Sequence[float]) -> float:
    """Median of the absolute errors, as a fraction."""
    return median(map(abs, errors))


def _line(name: str, scores: Scores) -> str:
    def pair(errors: Sequence[float]) -> str:
        return f"{100 * median_error(errors):6.1f} {100 * _quantile([abs(e) for e in errors], 0.9):6.1f}" if errors else "     -      -"

    share = 100 * sum(scores.covered) / len(scores.covered)
    claimed = 100 * sum(scores.claimed) / len(scores.claimed)
    return f"{name:26s} {len(scores.ours):4d} {pair(scores.ours)}   {pair(scores.constant)}   {pair(scores.exact)}   {pair(scores.simple)}   {share:4.0f}  {claimed:4.0f}"


def table(found: dict[str, Scores]) -> str:
    """Medians and P90s of the errors in percent, by family and pooled, and the coverage of the 80 % intervals."""
    head = f"{'':26s} {'':4s} {'ours':>13s}   {'family MFU':>13s}   {'20 %, exact':>13s}   {'20 %, 6 N':>13s}   coverage"
    sub = f"{'family':26s} {'rows':>4s}" + "   ".join([" median    P90"] * 4).rjust(62) + "   others claimed"
    lines = [head, sub]
    lines += [_line(family, scores) for family, scores in sorted(found.items(), key=lambda item: (not is_ascend(item[0]), item[0]))]
    lines += ["", _line("Ascend", pooled(found, ascend=True)), _line("other chips", pooled(found, ascend=False)), _line("all", pooled(found))]
    return "\n".join(lines)


def sensitivity(rows: Sequence[Observation]) -> str:
    """The pooled medians with each width halved and doubled: a result that hangs on one of them would show here."""
    lines = [f"{'changed width':28s} {'Ascend':>7s} {'all':>7s}"]
    for name in ("row_sd", "family_sd", "likeness_sd", "noise_sd", "length"):
        for factor in (0.5, 2.0):
            base = Options()
            found = evaluate(rows, replace(base, **{name: getattr(base, name) * factor}))
            ascend, everything = (100 * median_error(pooled(found, ascend=which).ours) for which in (True, None))
            lines.append(f"{name + ' x ' + str(factor):28s} {ascend:7.1f} {everything:7.1f}")
    return "\n".join(lines)


def main() -> None:
    """Reads the table of published throughputs and prints the errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("csv", nargs="?", type=Path, default=DATA)
    parser.add_argument("--sensitivity", action="store_true", help="also with every width halved and doubled (minutes)")
    options = parser.parse_args()
    rows = read(options.csv)
    print(table(evaluate(rows)))
    if options.sensitivity:
        print("\n" + sensitivity(rows))


if __name__ == "__main__":
    main()
