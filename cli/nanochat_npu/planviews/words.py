"""Sentences for what the estimate gives as keys and numbers. Every text is looked up when it is shown."""

from collections.abc import Callable

from nanochat_npu.estimate import Estimate, Stack
from nanochat_npu.estimate.levers import Lever, Warn
from nanochat_npu.i18n import _

__all__ = ["basis", "cost_line", "hours", "lever_text", "memory_part", "money", "term_text", "tier_text", "warn_text"]


def hours(value: float) -> str:
    """Hours as a person reads them: ``4 min``, ``3.2 h``, ``61 h``."""
    if abs(value) < 1 / 60:
        return _("{n} s").format(n=f"{value * 3600:.0f}")
    if abs(value) < 1:
        return _("{n} min").format(n=f"{value * 60:.1f}" if abs(value) < 1 / 6 else f"{value * 60:.0f}")
    return _("{n} h").format(n=f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}")


def money(value: float, currency: str | None) -> str:
    """An amount with its currency."""
    digits = 0 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f} {currency or ''}".rstrip()


def cost_line(key: str) -> str:
    """Name of a line of the cost."""
    return {"npus": _("NPUs"), "storage": _("checkpoints kept"), "electricity": _("electricity"), "price_range": _("price range")}[key]


def memory_part(key: str) -> str:
    """Name of a part of the memory."""
    return {
        "process": _("process"), "weights": _("weights"), "gradients": _("gradients"), "bf16_copies": _("bf16 copies"), "optimizer": _("optimizer"),
        "activations": _("activations"), "logits": _("logits"), "hccl_buffers": _("HCCL buffers"), "reserve": _("allocator's reserve"),
    }[key]


def _what(key: str) -> str:
    texts = {
        "image_pull": _("image pull"), "processes": _("start-up"), "download": _("download"), "prepare": _("prepare"), "train": _("training"),
        "matmul": _("matmuls, attention"), "vector": _("vector operations"), "vocabulary": _("embedding, loss"), "optimizer": _("optimizer"),
        "communication": _("communication"), "validation": _("validation"), "samples": _("samples"), "saves": _("checkpoints"), "tasks": _("tasks"),
        "rollouts": _("rollouts"), "evaluation": _("evaluation"), "write": _("write"),
    }
    return texts[key]


_WHOLE = {"load.others": lambda: _("other work on this computer"), "end.processes": lambda: _("winding up")}


def term_text(key: str) -> str:
    """Name of a line of the time table."""
    if key == "allowance":
        return _("stalls, failures, lost work")
    if key in _WHOLE:
        return _WHOLE[key]()
    stage, _dot, what = key.partition(".")
    return f"{stage}: {_what(what)}" if stage != "start" else _what(what)


def tier_text(result: Estimate) -> str:
    """The tier in a few words, for headings."""
    return {
        "A": _("tier A: calibrated, this shape"), "B": _("tier B: calibrated at another shape"), "C": _("tier C: uncalibrated, published figures"),
        "D": _("tier D: uncalibrated, stack unknown: a range and no point"),
    }[result.tier]


def _c_basis(result: Estimate) -> str:
    if result.inputs.chip == "cpu":
        return _("uncalibrated: one kind of processor was measured, yours may differ by half; measure it: nanochat-npu calibrate SPEC")
    if result.inputs.stack is Stack.FUSED:
        return _("uncalibrated: ten small models of MindSpeed and MindFormers on 910B; nobody has published nanochat with fused kernels on NPUs")
    return _("uncalibrated: two eager nanochat runs on 910C dies, scaled to the peak of {chip}; no nanochat run on a 910B is published").format(
        chip=result.inputs.chip
    )


def basis(result: Estimate) -> str:
    """What the time rests on, in a sentence or two."""
    record = result.match.calibration
    if record is not None:
        text = _("{steps} steps of d{depth} at {world} ranks measured on {date} ({host})").format(
            steps=record.steps, depth=record.depth, world=record.world_size, date=record.measured_on, host=record.host or record.chip
        )
        if record.cheap:
            text += "; " + _("few steps, so the interval is twice as wide")
    elif result.inputs.stack is Stack.UNKNOWN:
        text = _("uncalibrated: the stack is not known; from fused to eager, which differ by a factor of 2.4")
    elif result.tier == "D":
        text = _("uncalibrated: {stack} was never measured on an NPU in public; from fused to eager").format(stack=result.inputs.stack)
    else:
        text = _c_basis(result)
    if result.inputs.nodes > 1 and result.tier != "A" and result.inputs.chip != "cpu":
        text += "; " + _("links between nodes: uncalibrated (no HCCL figure over RoCE is published)")
    loads = result.contention.values if result.contention is not None else {}
    if "load_now" in loads and "load_calibrated" in loads:
        text += "; " + _("load average of others {then:.1f} then, {now:.1f} now").format(then=loads["load_calibrated"], now=loads["load_now"])
    elif "load_now" in loads:
        text += "; " + _("load average of others {now:.1f}").format(now=loads["load_now"])
    if result.history.jobs:
        text += "; " + _("adjusted by {n} past jobs of yours ({percent:+.0f} %)").format(n=result.history.jobs, percent=100 * result.history.bias)
    return text


_LEVERS: dict[str, Callable[[Lever], str]] = {
    "fused": lambda lever: _("fused kernels instead of eager"),
    "eval_interval": lambda lever: _("validate every {to:.0f} steps instead of {from_:.0f}").format(to=lever.values["to"], from_=lever.values["from"]),
    "eval_tokens": lambda lever: _("validate on {to:.1f} M tokens instead of {from_:.1f} M").format(
        to=lever.values["to"] / 1e6, from_=lever.values["from"] / 1e6
    ),
    "whole_node": lambda lever: _("{to:.0f} NPUs instead of {from_:.0f}").format(to=lever.values["to"], from_=lever.values["from"]),
    "more_nodes": lambda lever: _("{to:.0f} nodes instead of {from_:.0f}").format(to=lever.values["to"], from_=lever.values["from"]),
    "batch": lambda lever: _("twice the batch (another loss curve)"),
    "save_interval": lambda lever: _("save every {to:.0f} min instead of {from_:.0f} (Young/Daly)").format(
        to=lever.values["to_minutes"], from_=lever.values["from_minutes"]
    ),
    "window": lambda lever: _("if the kernel skips what windows mask"),
}


def lever_text(lever: Lever) -> str:
    """What a lever does, in a few words."""
    return _LEVERS[lever.key](lever)


_REASONS = {"chip": lambda: _("another chip"), "stack": lambda: _("another stack"), "processor": lambda: _("another processor"), "impossible": lambda: _("faster than the chip can be")}


def _passed_over(reason: str) -> str:
    kind, _colon, value = reason.partition(":")
    what = _REASONS[kind]() if kind in _REASONS else _("another version of {name}").format(name=kind)
    return _("a calibration is not used: {what} ({value}); tier C").format(what=what, value=value)


_WARNINGS: dict[str, Callable[[dict[str, float | str]], str]] = {
    "saves_only_at_end": lambda v: _("only the end is saved: a failure loses up to {hours} of training; run.checkpoint.every_minutes=30").format(
        hours=hours(float(v["hours"]))
    ),
    "data_on_npus": lambda v: _("stage data holds the NPUs for {hours} ({npu_hours:.1f} NPU-hours): run it as a CPU job first").format(
        hours=hours(float(v["hours"])), npu_hours=v["npu_hours"]
    ),
    "own_conversations": lambda v: _("your conversations are not counted: {tokens:,} tokens are assumed; run.sft.steps says how many steps they are").format(**v),
    "world_not_power_of_two": lambda v: _("{world_size} ranks are no power of two: the batch becomes {tokens_per_step:,} tokens to divide").format(**v),
    "vocab_does_not_divide": lambda v: _("a vocabulary of {vocab} does not divide by {world_size} ranks: moments are sharded unevenly").format(**v),
    "roce_share": lambda v: _("{share:.0%} of a step is communication between nodes (uncalibrated)").format(**v),
    "host_stalls": lambda v: _("host stalls: the mean step takes {factor:.2f} x the median; look at data loader, logging, other jobs").format(**v),
    "calibration_passed_over": lambda v: _passed_over(str(v["reason"])),
    "whole_nodes_billed": lambda v: _("whole nodes are paid: {billed} NPUs for {used} that are used").format(**v),
    "old_price": lambda v: _("the price is {days} days old").format(**v),
    "stage_memory": lambda v: _("stage {stage} with batch {batch} needs {gb:.0f} GB: it will not fit").format(**v),
}


def warn_text(warning: Warn) -> str:
    """A warning as a sentence."""
    return _WARNINGS[warning.key](warning.values)
