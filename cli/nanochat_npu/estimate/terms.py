"""The time of a job, term by term: likely seconds of everything that happens while it holds its NPUs."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from nanochat.contract import DataSource, Stage
from nanochat_npu.estimate.hardware import StackClass, accelerator, link_bytes_per_s
from nanochat_npu.estimate.inputs import Inputs

__all__ = [
    "CORE_TASKS", "EVAL_SPEEDUP", "FULL_CORE_EXAMPLES", "Group", "Rates", "Term", "checkpoint_bytes", "core_s", "evaluations", "exchanged_bytes", "overhead_s", "rates", "save_count",
    "save_interval_s", "terms", "validation_tokens",
]

Group = Literal["speed", "network", "overhead"]
"""What a term's error is made of: the speed of the device, the links, or everything around."""

EVAL_SPEEDUP = 3.0
"""A forward pass alone is a third of a training step."""
CORE_EXAMPLE_S = 0.034
"""Host time of one CORE example (44 s and 84 s of CORE on A3 at d20 and d32, 500 per task: two equations)."""
CORE_EXAMPLE_TOKENS = 1670
CORE_TASKS = 22
FULL_CORE_EXAMPLES = 55_000
"""All examples of CORE: six full evaluations of about 270 s on eight H100 (karpathy/nanochat PR 492)."""
TOKENIZER_CHARS_PER_S = 26e6
"""rustbpe on a Kunpeng host: 20 G characters in 765 s (leideng/nanochat-ascend, tok_eval_results)."""
SHARD_GB = 0.1
SAMPLE_TOKENS = 7 * 16
"""Tokens that one round of samples decodes."""
DECODE_LAYER_S = 0.4e-3
"""Eager decoding of one token takes this per layer on an NPU: launch-bound, assumed."""
CHAT_EXAMPLES = 26_000
"""Examples of the chat evaluations (ARC, MMLU, GSM8K, HumanEval, SpellingBee)."""
GSM8K_TRAIN = 7_473
TOY_CONVERSATION_TOKENS = 400_000
REPORT_S = 5.0
NPU_START_S = 120.0
"""Processes, devices, HCCL and first step: logs show 60 s on H100, 204 s on 16 dies of A3 with a resume."""
CPU_START_S = 6.0
CPU_RANK_START_S = 2.0
"""Importing torch, shared by the ranks of a computer; measured on two cores."""


@dataclass(frozen=True)
class Term:
    """One line of the time table.

    Attributes:
        key: ``stage.what``, for ``--explain-estimate`` and JSON.
        seconds: Likely wall-clock seconds.
        group: Which uncertainty it shares.
        values: What the formula was filled with.
    """

    key: str
    seconds: float
    group: Group
    values: dict[str, float]


@dataclass(frozen=True)
class Rates:
    """Seconds of one optimiser update, by what they are spent on.

    `eval_speedup` is how much faster validation goes through tokens than training.
    """

    matmul_s: float
    vector_s: float
    vocab_s: float
    optimizer_s: float
    communication_s: float
    tokens_per_step: int
    eval_speedup: float = EVAL_SPEEDUP

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.matmul_s + self.vector_s + self.vocab_s + self.optimizer_s + self.communication_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second over all ranks."""
        return self.tokens_per_step / self.step_s

    def scaled(self, factor: float) -> "Rates":
        """Every part multiplied, as a calibration asks for."""
        return replace(
            self, matmul_s=self.matmul_s * factor, vector_s=self.vector_s * factor, vocab_s=self.vocab_s * factor, optimizer_s=self.optimizer_s * factor,
            communication_s=self.communication_s * factor,
        )


def _muon_flops(inputs: Inputs) -> float:
    """FLOPs of orthogonalising every matrix once: 5 iterations of 4 m^2 n + 2 m^3, m <= n, on the rank that has the most."""
    width, depth = inputs.shape.width, inputs.shape.depth
    square = 5 * 6.0 * width**3
    wide = 5 * (4.0 * width * width * (4 * width) + 2.0 * width**3)
    world = inputs.world_size
    return math.ceil(4 * depth / world) * square + math.ceil(2 * depth / world) * wide


def rates(inputs: Inputs, stack: StackClass) -> Rates:
    """Time of one step from counts, chip and stack: t = work / speed, plus bytes / bandwidth, nothing overlapped.

    Attention counts as full and causal (half the work): whether a windowed kernel gains anything on NPUs is not measured.
    Gradients are reduced after the backward pass and parameters gathered after the update, so both are exposed.
    """
    chip, shape = accelerator(inputs.chip), inputs.shape
    cores = inputs.cores_per_rank if inputs.chip == "cpu" else 1.0
    flops_per_s = chip.cube_peak_flops * stack.matmul_frac * cores
    rank_tokens = inputs.horizon.tokens_per_step / inputs.world_size
    attention = 12.0 * shape.width * shape.depth * shape.sequence_len / 2
    params = shape.parameters
    world = inputs.world_size
    link = link_bytes_per_s(inputs.chip, inputs.nodes, inputs.ranks_per_node)
    return Rates(
        matmul_s=rank_tokens * (6.0 * params.scaling + attention) / flops_per_s,
        vector_s=rank_tokens * stack.layer_bytes * shape.depth * shape.width / chip.stream_bytes_per_s,
        vocab_s=rank_tokens * stack.vocab_bytes * shape.padded_vocab / chip.stream_bytes_per_s,
        optimizer_s=_muon_flops(inputs) / flops_per_s,
        communication_s=2.0 * exchanged_bytes(inputs) * (world - 1) / world / link if world > 1 else 0.0,
        tokens_per_step=inputs.horizon.tokens_per_step,
    )


def exchanged_bytes(inputs: Inputs) -> float:
    """Bytes that are reduced, and gathered again, in each step: gradients in their parameters' own types."""
    params = inputs.shape.parameters
    return 4.0 * params.scaling + 2.0 * (params.wte + params.value_embeds)


def checkpoint_bytes(inputs: Inputs) -> float:
    """Size of one checkpoint with the optimizer's state."""
    params = inputs.shape.parameters
    tables = params.wte + params.value_embeds
    weights = 4.0 * params.scaling + 2 * tables
    return weights + 4.0 * params.matrices + 8 * params.lm_head + 4 * tables


def evaluations(steps: int, every: int) -> int:
    """Validation runs of a training: before the first step, every so many, after the last."""
    return 2 if every == 0 else steps // every + 2


def save_interval_s(inputs: Inputs, train_s: float, step_s: float) -> float:
    """Seconds of training between two checkpoints; all of it if only the end is saved."""
    checkpoint = inputs.run.checkpoint
    candidates = [train_s]
    if checkpoint.every_steps:
        candidates.append(checkpoint.every_steps * step_s)
    if checkpoint.every_minutes:
        candidates.append(checkpoint.every_minutes * 60)
    return max(step_s, min(candidates))


def save_count(train_s: float, interval_s: float) -> int:
    """Checkpoints of a stage, the last one included; one that would fall on the end is not written twice."""
    return max(1, math.ceil(train_s / interval_s - 1e-9)) if interval_s > 0 else 1


def core_s(examples: float, world_size: int, tokens_per_s: float) -> float:
    """One CORE evaluation: every example costs host time and a forward pass over its few-shot prompts."""
    return math.ceil(examples / world_size) * (CORE_EXAMPLE_S + CORE_EXAMPLE_TOKENS * world_size / (EVAL_SPEEDUP * tokens_per_s))


def overhead_s(
    *, tokens_per_s: float, evals: int, eval_tokens: int, cores: int = 0, core_each_s: float = 0.0, saves: int = 0, save_each_s: float = 0.0, start_s: float = 0.0
) -> float:
    """Wall clock of a pretraining beyond its logged training time: start-up, validation, CORE and saves.

    Args:
        tokens_per_s: Training speed over all ranks.
        evals: Validation runs.
        eval_tokens: Tokens of one validation run.
        cores: CORE evaluations.
        core_each_s: Seconds of one of them.
        saves: Checkpoints.
        save_each_s: Seconds of one of them.
        start_s: Process start until the first step.
    """
    return start_s + evals * eval_tokens / (EVAL_SPEEDUP * tokens_per_s) + cores * core_each_s + saves * save_each_s


def terms(inputs: Inputs, step: Rates) -> tuple[Term, ...]:
    """All terms of a job in the order they happen; failures are added by the simulation."""
    result = _start_terms(inputs)
    previous: Stage | None = None
    counts: dict[Stage, int] = {}
    for stage in inputs.run.stages:
        counts[stage] = counts.get(stage, 0) + 1
        suffix = "" if counts[stage] == 1 else str(counts[stage])
        for term in _STAGES[stage](inputs, step, previous):
            stage_name, _, what = term.key.partition(".")
            result.append(Term(f"{stage_name}{suffix}.{what}", term.seconds, term.group, term.values))
        if stage in (Stage.PRETRAIN, Stage.SFT, Stage.RL):
            previous = stage
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
    return found


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
    if not examples:
        decoded = 200.0
        return [*found, Term("eval.tasks", decoded * inputs.shape.depth * DECODE_LAYER_S, "overhead", {"decoded_tokens": decoded})]
    values = {"examples": float(examples), "s_per_example": CORE_EXAMPLE_S, "tokens_per_example": float(CORE_EXAMPLE_TOKENS), "tokens_per_s": step.tokens_per_s}
    return [*found, Term("eval.tasks", core_s(examples, inputs.world_size, step.tokens_per_s), "overhead", values)]


def _sft(inputs: Inputs, step: Rates, previous: Stage | None) -> list[Term]:
    sft = inputs.run.sft
    toy = inputs.run.data.source is DataSource.TOY
    epoch = TOY_CONVERSATION_TOKENS if toy else inputs.conversations_tokens
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


_STAGES = {
    Stage.DATA: _data, Stage.TOKENIZER: _tokenizer, Stage.PRETRAIN: _pretrain, Stage.SFT: _sft, Stage.RL: _rl, Stage.EVAL: _eval, Stage.REPORT: _report,
}
"""Terms of each stage; a test holds it total over `Stage`."""
