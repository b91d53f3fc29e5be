"""The terms of a whole job: what each stage takes, in the order in which they run."""

import math

from nanochat.contract import DataSource, Stage
from nanochat_npu.estimate.inputs import Inputs
from nanochat_npu.estimate.terms import (
    CORE_EXAMPLE_S,
    CORE_EXAMPLE_TOKENS,
    CORE_TASKS,
    FULL_CORE_EXAMPLES,
    Rates,
    Term,
    checkpoint_bytes,
    core_s,
    evaluations,
    save_count,
    save_interval_s,
)

__all__ = ["STAGES", "terms", "validation_tokens"]

TOKENIZER_CHARS_PER_S = 26e6
"""rustbpe on a Kunpeng host: 20 G characters in 765 s (leideng/nanochat-ascend, tok_eval_results)."""
SHARD_GB = 0.1
SAMPLE_TOKENS = 7 * 16
"""Tokens that one round of samples decodes."""
DECODE_LAYER_S = 0.4e-3
"""Eager decoding of one token takes this per layer on an NPU: launch-bound, assumed."""
TOY_QUESTIONS_LAYER_S = 0.2
"""A round of the 309 questions of source toy, per layer: 0.23 to 0.57 s at d2 on two cores (``dev/bench_calibration.py``, events)."""
CHAT_EXAMPLES = 26_000
"""Examples of the chat evaluations (ARC, MMLU, GSM8K, HumanEval, SpellingBee)."""
GSM8K_TRAIN = 7_473
REPORT_S = 5.0
NPU_START_S = 120.0
"""Processes, devices, HCCL and first step: logs show 60 s on H100, 204 s on 16 dies of A3 with a resume."""
CPU_START_S = 6.0
CPU_RANK_START_S = 2.0
"""Importing torch, shared by the ranks of a computer; measured on two cores."""


def terms(inputs: Inputs, step: Rates) -> tuple[Term, ...]:
    """All terms of a job in the order they happen; failures are added by the simulation."""
    result = _start_terms(inputs)
    previous: Stage | None = None
    counts: dict[Stage, int] = {}
    for stage in inputs.run.stages:
        counts[stage] = counts.get(stage, 0) + 1
        suffix = "" if counts[stage] == 1 else str(counts[stage])
        for term in STAGES[stage](inputs, step, previous):
            stage_name, _, what = term.key.partition(".")
            result.append(Term(f"{stage_name}{suffix}.{what}", term.seconds, term.group, term.values))
        if stage in (Stage.PRETRAIN, Stage.SFT, Stage.RL):
            previous = stage
    if inputs.site.end_s:
        result.append(Term("end.processes", inputs.site.end_s, "overhead", {"end_s": inputs.site.end_s}))
    return tuple(result)


def _start_terms(inputs: Inputs) -> list[Term]:
    site = inputs.site
    found = []
    if inputs.pulls_image:
        values = {"image_gb": site.image_gb, "gb_per_s": site.pull_gb_per_s}
        found.append(Term("start.image_pull", site.image_gb / site.pull_gb_per_s, "overhead", values))
    usual = NPU_START_S if inputs.chip != "cpu" else CPU_START_S + CPU_RANK_START_S * inputs.world_size
    start = site.start_s if site.start_s is not None else usual
    found.append(Term("start.processes", start, "overhead", {"start_s": start}))
    return found


def _data(inputs: Inputs, step: Rates, previous: Stage | None) -> list[Term]:
    source = inputs.run.data.source
    shards = inputs.run.data.shards or 0
    if source in (DataSource.TOY, DataSource.FOLDER):
        documents = inputs.run.data.toy_documents if source is DataSource.TOY else 0
        return [Term("data.prepare", 2.0 + documents * 0.2e-3, "overhead", {"documents": documents})]
    values = {"shards": float(shards), "shard_gb": SHARD_GB, "gb_per_s": inputs.site.download_gb_per_s}
    return [Term("data.download", shards * SHARD_GB / inputs.site.download_gb_per_s, "overhead", values)]


def _tokenizer(inputs: Inputs, step: Rates, previous: Stage | None) -> list[Term]:
    chars = float(inputs.run.tokenizer.max_chars)
    if inputs.run.data.source is DataSource.TOY:
        chars = min(chars, inputs.run.data.toy_documents * 600.0)
    return [Term("tokenizer.train", 1.0 + chars / TOKENIZER_CHARS_PER_S, "overhead", {"chars": chars, "chars_per_s": TOKENIZER_CHARS_PER_S})]


def validation_tokens(inputs: Inputs) -> int:
    """Tokens of one validation run of pretraining."""
    return _eval_tokens(inputs, inputs.run.pretrain.eval_tokens)


def _eval_tokens(inputs: Inputs, asked: int) -> int:
    """Validation tokens of one run; a toy corpus has a few hundred thousand at most."""
    return min(asked, 300_000) if inputs.run.data.source is DataSource.TOY else asked


def _pretrain(inputs: Inputs, step: Rates, previous: Stage | None) -> list[Term]:
    pretrain, horizon = inputs.run.pretrain, inputs.horizon
    steps = min(horizon.steps, pretrain.stop_at_step or horizon.steps)
    train_s = steps * step.step_s
    common = {"steps": float(steps)}
    found = [
        Term("pretrain.matmul", steps * step.matmul_s, "speed", common | {"s_per_step": step.matmul_s}),
        Term("pretrain.vector", steps * step.vector_s, "speed", common | {"s_per_step": step.vector_s}),
        Term("pretrain.vocabulary", steps * step.vocab_s, "speed", common | {"s_per_step": step.vocab_s}),
        Term("pretrain.optimizer", steps * step.optimizer_s, "speed", common | {"s_per_step": step.optimizer_s}),
        Term("pretrain.communication", steps * step.communication_s, "network", common | {"s_per_step": step.communication_s}),
    ]
    evals, eval_tokens = evaluations(steps, pretrain.eval_every), _eval_tokens(inputs, pretrain.eval_tokens)
    found.append(_validation("pretrain", evals, eval_tokens, step))
    found.append(_samples(inputs, steps))
    found.append(_saves("pretrain", inputs, train_s, step))
    if inputs.run.data.source is DataSource.TOY:
        found.append(_toy_questions("pretrain", inputs))
    return found


def _toy_questions(stage: str, inputs: Inputs) -> Term:
    each = TOY_QUESTIONS_LAYER_S * inputs.shape.depth
    return Term(f"{stage}.tasks", each, "overhead", {"rounds": 1.0, "s_each": each})


def _validation(stage: str, evals: int, eval_tokens: int, step: Rates) -> Term:
    values = {"evals": float(evals), "eval_tokens": float(eval_tokens), "tokens_per_s": step.tokens_per_s, "speedup": step.eval_speedup}
    return Term(f"{stage}.validation", evals * eval_tokens / (step.eval_speedup * step.tokens_per_s), "speed", values)


def _samples(inputs: Inputs, steps: int) -> Term:
    every = inputs.run.pretrain.sample_every
    count = 1 + (steps // every if every else 0)
    each = SAMPLE_TOKENS * inputs.shape.depth * DECODE_LAYER_S
    return Term("pretrain.samples", count * each, "overhead", {"samples": float(count), "s_each": each})


def _saves(stage: str, inputs: Inputs, train_s: float, step: Rates) -> Term:
    each = checkpoint_bytes(inputs) / 1e9 / inputs.site.storage_gb_per_s
    count = save_count(train_s, save_interval_s(inputs, train_s, step.step_s))
    values = {"saves": float(count), "checkpoint_gb": checkpoint_bytes(inputs) / 1e9, "gb_per_s": inputs.site.storage_gb_per_s}
    return Term(f"{stage}.saves", count * each, "overhead", values)


_QUICK_TASKS = frozenset({"auto", "bpb", "samples", "toy"})
"""Evaluations that take next to nothing beside bits per byte; what else is named is many examples."""


def _eval_examples(inputs: Inputs, previous: Stage | None) -> int:
    """Examples of CORE, and of the chat tasks, that a stage eval goes through. auto means CORE only where its bundle is given."""
    settings = inputs.run.eval
    tasks, cap = set(settings.tasks), settings.max_per_task
    examples = 0
    if "core" in tasks or ("auto" in tasks and settings.bundle is not None and previous is not Stage.SFT):
        examples += min(FULL_CORE_EXAMPLES, CORE_TASKS * cap) if cap else FULL_CORE_EXAMPLES
    named = tasks - _QUICK_TASKS - {"core"}
    if named:
        whole = CHAT_EXAMPLES if "chatcore" in named else CHAT_EXAMPLES // 5 * len(named)
        examples += min(whole, cap * (5 if "chatcore" in named else len(named))) if cap else whole
    return examples


def _eval(inputs: Inputs, step: Rates, previous: Stage | None) -> list[Term]:
    found = [_validation("eval", 1, _eval_tokens(inputs, inputs.run.pretrain.eval_tokens), step)]
    examples = _eval_examples(inputs, previous)
    if not examples and inputs.run.data.source is DataSource.TOY:
        return [*found, _toy_questions("eval", inputs)]
    if not examples:
        decoded = 200.0
        return [*found, Term("eval.tasks", decoded * inputs.shape.depth * DECODE_LAYER_S, "overhead", {"decoded_tokens": decoded})]
    values = {"examples": float(examples), "s_per_example": CORE_EXAMPLE_S, "tokens_per_example": float(CORE_EXAMPLE_TOKENS), "tokens_per_s": step.tokens_per_s}
    return [*found, Term("eval.tasks", core_s(examples, inputs.world_size, step.tokens_per_s), "overhead", values)]


def _sft(inputs: Inputs, step: Rates, previous: Stage | None) -> list[Term]:
    sft = inputs.run.sft
    epoch = inputs.conversations_tokens
    batch = sft.tokens_per_step or step.tokens_per_step
    steps = sft.steps or max(1, round(epoch / batch))
    train_s = steps * batch / step.tokens_per_s
    values = {"steps": float(steps), "tokens_per_step": float(batch), "tokens_per_s": step.tokens_per_s}
    return [
        Term("sft.train", train_s, "speed", values),
        _validation("sft", evaluations(steps, sft.eval_every), _eval_tokens(inputs, sft.eval_tokens), step),
        _saves("sft", inputs, train_s, step),
    ]


def _rl(inputs: Inputs, step: Rates, previous: Stage | None) -> list[Term]:
    rl = inputs.run.rl
    steps = rl.steps or max(1, GSM8K_TRAIN // rl.examples_per_step)
    sequences = math.ceil(rl.examples_per_step * rl.samples / inputs.world_size)
    passes = math.ceil(sequences / rl.device_batch)
    decode_s = passes * rl.max_new_tokens * inputs.shape.depth * DECODE_LAYER_S
    train_s = rl.examples_per_step * rl.samples * 2 * rl.max_new_tokens / step.tokens_per_s
    evals = 1 + (steps // rl.eval_every if rl.eval_every else 0)
    eval_passes = math.ceil(rl.eval_examples * rl.pass_k / inputs.world_size / rl.device_batch)
    eval_s = evals * eval_passes * rl.max_new_tokens * inputs.shape.depth * DECODE_LAYER_S
    return [
        Term("rl.rollouts", steps * decode_s, "overhead", {"steps": float(steps), "passes": float(passes), "new_tokens": float(rl.max_new_tokens)}),
        Term("rl.train", steps * train_s, "speed", {"steps": float(steps), "s_per_step": train_s}),
        Term("rl.evaluation", eval_s, "overhead", {"evals": float(evals), "passes": float(eval_passes)}),
        _saves("rl", inputs, steps * (decode_s + train_s), step),
    ]


def _report(inputs: Inputs, step: Rates, previous: Stage | None) -> list[Term]:
    return [Term("report.write", REPORT_S, "overhead", {})]


STAGES = {
    Stage.DATA: _data, Stage.TOKENIZER: _tokenizer, Stage.PRETRAIN: _pretrain, Stage.SFT: _sft, Stage.RL: _rl, Stage.EVAL: _eval, Stage.REPORT: _report,
}
"""Terms of each stage; a test holds it total over `Stage`."""
