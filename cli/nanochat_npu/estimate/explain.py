"""Formula, inputs and sources of every term that the plan shows, for ``--explain-estimate``."""

from dataclasses import dataclass

from nanochat_npu.estimate.draws import DRAWS, MTBF_LN_SD, STALL_MEAN
from nanochat_npu.estimate.hardware import STACKS, Source, accelerator, link_bytes_per_s, link_sources, stack_class
from nanochat_npu.estimate.memory import FITS_FRAC, TIGHT_FRAC
from nanochat_npu.estimate.memory import SOURCES as MEMORY_SOURCES
from nanochat_npu.estimate.model import Estimate
from nanochat_npu.estimate.terms import exchanged_bytes

__all__ = ["Explanation", "explain", "explainable", "is_assumed"]


@dataclass(frozen=True)
class Explanation:
    """How a figure came about: `formula` in the symbols of `values`."""

    key: str
    formula: str
    values: dict[str, float | str]
    sources: tuple[Source, ...]


_LOGS = Source("training logs of nanochat: PR 190, PR 492, leideng/nanochat-ascend d20 and d32", "2026-08")
_ASSUMED = Source("assumed: no figure for a 910B cluster is published", "2026-11", "assumed")
_MTBF = Source("910B: 9,200 to 240,000 h per NPU, two readings of Huawei's press figures; Llama 3 on H100: 50,700 h (arXiv:2407.21783)", "2026-08", "secondary")

_FORMULAS: dict[str, tuple[str, tuple[Source, ...]]] = {
    "start.image_pull": ("image_gb / gb_per_s, all nodes at once; a cached image takes seconds", (_ASSUMED,)),
    "start.processes": ("start_s: processes, device, HCCL, first step", (_LOGS,)),
    "data.download": ("shards x shard_gb / gb_per_s", (Source("ClimbMix: 6,543 shards of about 100 MB", "2026-07"), _ASSUMED)),
    "data.prepare": ("2 s + 0.2 ms per document", (Source("measured on one CPU core", "2026-11"),)),
    "tokenizer.train": ("1 s + chars / chars_per_s", (Source("rustbpe: 20 G characters in 765 s on a Kunpeng host", "2026-07"),)),
    "pretrain.matmul": ("steps x (tokens_per_step / ranks) x (6 N + 6 L d T) / (cube peak x matmul_frac)", ()),
    "pretrain.vector": ("steps x (tokens_per_step / ranks) x layer_bytes x L x d / stream_bytes_per_s", ()),
    "pretrain.vocabulary": ("steps x (tokens_per_step / ranks) x vocab_bytes x V / stream_bytes_per_s", ()),
    "pretrain.optimizer": ("steps x 5 x (4 m^2 n + 2 m^3) FLOPs for each matrix of the busiest rank", (Source("Muon as in karpathy/nanochat 92d63d4 optim.py", "2026-07", "derived"),)),
    "pretrain.communication": ("steps x 2 x bytes x (n - 1) / n / link; not overlapped with the backward pass", ()),
    "pretrain.validation": ("evals x eval_tokens / (speedup x tokens_per_s); evals = steps / eval_every + 2", (_LOGS,)),
    "pretrain.samples": ("samples x 112 decoded tokens x L x 0.4 ms", (_ASSUMED,)),
    "pretrain.tasks": ("0.2 s x L for the questions of source toy, before the first step", (Source("measured on two CPU cores at d2", "2026-11"),)),
    "pretrain.saves": ("saves x checkpoint_gb / gb_per_s", (_ASSUMED,)),
    "eval.validation": ("evals x eval_tokens / (speedup x tokens_per_s)", (_LOGS,)),
    "eval.tasks": (
        "examples / ranks x (s_per_example + tokens_per_example x ranks / (3 x tokens_per_s)); 0.2 s x L for the questions of source toy", (_LOGS,),
    ),
    "sft.train": ("steps x tokens_per_step / tokens_per_s", (Source("one epoch of the chat mixture: 444 M tokens (847 steps of 2^19, leideng/nanochat-ascend d20)", "2026-07"),)),
    "sft.validation": ("evals x eval_tokens / (speedup x tokens_per_s)", (_LOGS,)),
    "sft.saves": ("saves x checkpoint_gb / gb_per_s", (_ASSUMED,)),
    "rl.rollouts": ("steps x passes x new_tokens x L x 0.4 ms", (Source("users report RL on 910B 2-3 x slower than on A100 (Ascend/pytorch#91)", "2026-07", "secondary"), _ASSUMED)),
    "rl.train": ("steps x examples x samples x 2 x new_tokens / tokens_per_s", (_ASSUMED,)),
    "rl.evaluation": ("evals x passes x new_tokens x L x 0.4 ms", (_ASSUMED,)),
    "rl.saves": ("saves x checkpoint_gb / gb_per_s", (_ASSUMED,)),
    "report.write": ("5 s", (_ASSUMED,)),
    "end.processes": ("end_s: from the last event until the processes are gone", (Source("measured by the calibration", "", "measured"),)),
    "load.others": (
        "exposed_s x (slowdown / slowdown_calibrated - 1); slowdown: half way (geometric) from the calibration's to this load's, less in jobs over an hour",
        (Source("load average of this computer now, and when it was calibrated; 1 + 0.15 x load / cores (dev/bench_calibration.py)", "", "measured"),),
    ),
}


def is_assumed(key: str) -> bool:
    """True if nothing but assumptions stands behind a term."""
    return all(source.trust == "assumed" for source in _FORMULAS[_base(key)][1]) and bool(_FORMULAS[_base(key)][1])


def _base(key: str) -> str:
    stage, _, what = key.partition(".")
    return f"{stage.rstrip('0123456789')}.{what}"


def explainable(result: Estimate) -> tuple[str, ...]:
    """What `explain` knows for this job."""
    return ("time", *(term.key for term in result.terms), "allowance", "memory", "cost", "uncertainty")


def explain(result: Estimate, key: str) -> Explanation | None:
    """How one figure came about, or None if there is no such figure. ``communication`` will do for ``pretrain.communication``."""
    special = {"time": _time, "allowance": _allowance, "memory": _memory, "cost": _cost, "uncertainty": _uncertainty}.get(key)
    if special is not None:
        return special(result)
    term = next((term for term in result.terms if key in (term.key, term.key.partition(".")[2])), None)
    if term is None:
        return None
    key = term.key
    formula, sources = _FORMULAS[_base(key)]
    values: dict[str, float | str] = {**term.values, **_speed_values(result, key), "seconds": term.seconds}
    return Explanation(key, formula, values, sources + _speed_sources(result, key))


def _speed_values(result: Estimate, key: str) -> dict[str, float | str]:
    inputs, chip = result.inputs, accelerator(result.inputs.chip)
    stack = stack_class(inputs.stack, inputs.chip)
    if not key.startswith("pretrain.") or stack is None:
        return {}
    common: dict[str, float | str] = {"tokens_per_step": inputs.horizon.tokens_per_step, "ranks": inputs.world_size}
    shape = inputs.shape
    extra: dict[str, dict[str, float | str]] = {
        "pretrain.matmul": {"N": shape.parameters.scaling, "L": shape.depth, "d": shape.width, "T": shape.sequence_len, "cube_peak_tflops": chip.cube_peak_flops / 1e12, "matmul_frac": stack.matmul_frac},
        "pretrain.vector": {"layer_bytes": stack.layer_bytes, "L": shape.depth, "d": shape.width, "stream_bytes_per_s": chip.stream_bytes_per_s},
        "pretrain.communication": {
            "bytes": exchanged_bytes(inputs), "n": inputs.world_size,
            "link_gb_per_s": link_bytes_per_s(inputs.chip, inputs.nodes, inputs.ranks_per_node) / 1e9 if inputs.world_size > 1 else "none",
        },
        "pretrain.optimizer": {"m": shape.width, "matrices": 6 * shape.depth, "ranks": inputs.world_size, "cube_peak_tflops": chip.cube_peak_flops / 1e12, "matmul_frac": stack.matmul_frac},
        "pretrain.vocabulary": {"vocab_bytes": stack.vocab_bytes, "V": shape.padded_vocab, "stream_bytes_per_s": chip.stream_bytes_per_s},
    }
    return {**common, **extra[key]} if key in extra else {}


def _speed_sources(result: Estimate, key: str) -> tuple[Source, ...]:
    inputs = result.inputs
    record = result.match.calibration
    if not key.startswith("pretrain."):
        return ()
    measured = (Source(f"calibrated: {record.steps} steps of d{record.depth} on {record.host or record.chip}, tier {result.tier}", record.measured_on),) if record else ()
    if key == "pretrain.communication":
        return measured + (link_sources(inputs.chip, inputs.nodes) if inputs.world_size > 1 else ())
    if key in ("pretrain.matmul", "pretrain.vector", "pretrain.vocabulary"):
        stack = stack_class(inputs.stack, inputs.chip)
        published = stack.sources if stack else tuple(s for known in STACKS.values() for s in known.sources)
        return measured + published + accelerator(inputs.chip).sources[:1]
    return measured


def _time(result: Estimate) -> Explanation:
    values: dict[str, float | str] = {f"{term.key}_h": term.seconds / 3600 for term in result.terms}
    values["allowance_h"] = result.allowance_s / 3600 if result.allowance_s is not None else "range"
    values |= {"p10_h": result.hours.p10, "p50_h": result.hours.p50 if result.hours.p50 is not None else "none", "p90_h": result.hours.p90}
    formula = "sum of the terms + allowance = P50; P10 and P90 from 10,000 seeded draws of their errors (see uncertainty)"
    return Explanation("time", formula, values, result.sources)


def _allowance(result: Estimate) -> Explanation:
    failures = result.failures
    values: dict[str, float | str] = {
        "stall_mean": STALL_MEAN, "mtbf_of_all_npus_h": failures.mtbf_s / 3600, "one_failure_s": failures.cost_s, "lost_frac": failures.lost_frac, "seconds": result.allowance_s if result.allowance_s is not None else "range",
    }
    return Explanation("allowance", "median of the draws - sum of the terms: one-sided host stalls, failures, work lost since the last save", values, (_MTBF,))


def _memory(result: Estimate) -> Explanation:
    memory = result.memory
    values: dict[str, float | str] = {f"{name}_gb": size / 1e9 for name, size in memory.parts.items()}
    values |= {"peak_gb": memory.peak_bytes / 1e9, "usable_gb": memory.usable_bytes / 1e9 if memory.usable_bytes else "unknown", "fits_frac": FITS_FRAC, "tight_frac": TIGHT_FRAC}
    values |= {f"kept_free_{name}_gb": size / 1e9 for name, size in memory.headroom.items()}
    if memory.counted_bytes is not None:
        values["counted_gb"] = memory.counted_bytes / 1e9
    formula = "weights + gradients + bf16 copies + moments / ranks + c_a x tokens x L x d + c_l x tokens x V; tokens = device_batch x T"
    stack = stack_class(result.inputs.stack, result.inputs.chip)
    return Explanation("memory", formula, values, MEMORY_SOURCES + (stack.sources if stack else ()) + accelerator(result.inputs.chip).sources[1:2])


def _cost(result: Estimate) -> Explanation:
    price = result.inputs.price
    values: dict[str, float | str] = {"billed_npus": result.inputs.billed_npus, "price": price.likely if price else "not set"}
    sources = (Source(price.source or "given by the spec", price.dated.isoformat() if price.dated else "", "price"),) if price else ()
    return Explanation("cost", "hours x billed NPUs x price, drawn together; a P90 of cost is not P90 time x P90 price", values, sources)


def _uncertainty(result: Estimate) -> Explanation:
    values: dict[str, float | str] = {"draws": DRAWS, "tier": result.tier, "past_jobs": result.history.jobs, "bias_ln": result.history.bias, "mtbf_ln_sd": MTBF_LN_SD, "stall_mean": STALL_MEAN}
    formula = "log-normal speed, links and overhead, one-sided stalls, Poisson failures; 10,000 seeded draws in a Latin hypercube"
    return Explanation("uncertainty", formula, values, (Source("leave-one-architecture-out residuals on 910B: P10/P90 of actual over predicted 0.87 / 1.22", "2026-08", "derived"), _MTBF))
