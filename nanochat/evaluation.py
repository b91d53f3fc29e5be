"""What a model is measured by: bits per byte of the validation text, and answers to tasks. Shared by several stages.

A failure on one rank must not leave the others in a collective, so every rank measures its share without speaking to
anybody, and the shares, or what went wrong, are gathered afterwards.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch

from nanochat.context import SURVIVABLE, Context
from nanochat.contract import DataSource
from nanochat.data import Batch, Place, validation_batches
from nanochat.engine import Engine, Sampling
from nanochat.model import GPT
from nanochat.rollouts import Rollouts, pass_at_k
from nanochat.tasks.choices import ChoiceTask, score_choices
from nanochat.tasks.common import Score, Task, score
from nanochat.tasks.toy import toy_tasks
from nanochat.tokenizer import Tokenizer

__all__ = ["EvaluationFailed", "Evaluator", "nats_and_bytes"]

SAMPLE_PROMPTS = ("", "The capital of France is", "If yesterday was Friday, then tomorrow will be", "The opposite of hot is")
TOY_PROMPTS = ("", "What is 2 + 3?", "It was a sunny day. Pim")
SAMPLE_TOKENS = 32

T = TypeVar("T")


class EvaluationFailed(RuntimeError):
    """An evaluation failed on some rank; the model and its checkpoints are as they were."""


@torch.inference_mode()
def nats_and_bytes(model: GPT, batches: Iterable[Batch], token_bytes: torch.Tensor, *, check: Callable[[], None] = lambda: None) -> tuple[float, int]:
    """Nats and bytes over the targets that stand for bytes; special tokens and -1 count for nothing.

    Args:
        model: In evaluation mode.
        batches: Inputs and targets (B, T).
        token_bytes: Bytes of each token id (V,), on the model's device.
        check: Called before every batch; raises where a stop was asked for.
    """
    nats, total_bytes = 0.0, 0
    for batch in batches:
        check()
        inputs, targets = batch.inputs.to(model.device), batch.targets.to(model.device)
        losses = model(inputs, targets, reduction="none")
        sizes = token_bytes[targets.clamp(min=0)] * (targets >= 0)
        nats += float((losses * (sizes > 0)).sum())
        total_bytes += int(sizes.sum())
    return nats, total_bytes


@dataclass(frozen=True)
class Evaluator:
    """Measures a model of this job on all ranks together, and tells the results as events."""

    context: Context
    tokenizer: Tokenizer
    place: Place | None
    """Of the rows for bpb; None where that is not measured."""
    eval_tokens: int
    model_stage: str | None = None
    """Stage that made the model, where that is not the stage that runs."""

    def bpb(self, model: GPT, step: int, open_batches: Callable[[], Iterable[Batch]] | None = None) -> float:
        """Bits per byte on the validation text, or on this rank's share of other batches.

        Raises:
            EvaluationFailed: On every rank, if it failed on one.
        """
        sizes = torch.tensor(self.tokenizer.token_bytes(), device=model.device)

        def own() -> tuple[float, int]:
            batches = open_batches() if open_batches else self._validation()
            return nats_and_bytes(model, batches, sizes, check=self.context.tick)

        parts = self.together("bpb", own)
        nats, size = sum(part[0] for part in parts), sum(part[1] for part in parts)
        value = nats / (math.log(2) * size) if size else math.nan
        self.tell(step=step, name="bpb", value=value)
        return value

    def _validation(self) -> Iterable[Batch]:
        if self.place is None:
            raise LookupError("no rows to measure bpb on")
        return validation_batches(
            self.context.run_file, self.tokenizer, self.place, self.context.job_dir, eval_tokens=self.eval_tokens
        )

    def answers(self, model: GPT, task: Task, step: int, limit: int | None = None, max_new_tokens: int = 64) -> Score:
        """Answers to a task, each rank its share; multiple choice by the likeliest letter, anything else as it is written.

        Raises:
            EvaluationFailed: On every rank, if it failed on one.
        """
        peers = self.context.peers
        engine = Engine(model, self.tokenizer, fixed=True)

        def own() -> dict[str, Any]:
            if isinstance(task, ChoiceTask):
                chosen = range(peers.rank, min(len(task), limit or len(task)), peers.size)
                return asdict(score_choices(model, self.tokenizer, task, chosen, check=self.context.tick))
            return asdict(
                score(engine, task, rank=peers.rank, world_size=peers.size, limit=limit, max_new_tokens=max_new_tokens)
            )

        parts = self.together(task.name, own)
        total = Score(
            task.name, sum(part["correct"] for part in parts), sum(part["total"] for part in parts),
            tuple(tuple(entry) for part in parts for entry in part["wrong"])[:5],
        )
        self.tell(step=step, name=task.name, value=total.accuracy, correct=total.correct, total=total.total)
        return total

    def toy_answers(self, model: GPT, step: int) -> dict[str, Score]:
        """Scores of the tiny world's tasks by name."""
        return {task.name: self.answers(model, task, step, max_new_tokens=24) for task in toy_tasks()}

    def pass_at(self, rollouts: Rollouts, step: int, examples: int, k: int) -> dict[str, float]:
        """pass@1 and pass@k on the first examples of a task with rewards; each rank has its share.

        Raises:
            EvaluationFailed: On every rank, if it failed on one.
        """
        chosen = range(rollouts.rank, min(examples, len(rollouts.task)), rollouts.world_size)

        def own() -> list[int]:
            solved = []
            for example in chosen:
                self.context.tick()
                solved += rollouts.solved([example])
            return solved

        solved = [count for part in self.together("pass@k", own) for count in part]
        values = {}
        for budget in sorted({1, k}):
            values[f"pass@{budget}"] = sum(pass_at_k(rollouts.samples, count, budget) for count in solved) / len(solved)
            self.tell(step=step, name=f"pass@{budget}", value=values[f"pass@{budget}"], total=len(solved))
        return values

    def samples(self, model: GPT, step: int) -> None:
        """Tell a few continuations of those prompts that leave room for one; rank 0 only."""
        engine = Engine(model, self.tokenizer, fixed=True)
        prompts = TOY_PROMPTS if self.context.run.data.source is DataSource.TOY else SAMPLE_PROMPTS
        ids = {prompt: [self.tokenizer.bos_id, *self.tokenizer.encode(prompt)] for prompt in prompts}
        ids = {prompt: tokens for prompt, tokens in ids.items() if len(tokens) < engine.context}
        sampling = Sampling(max_new_tokens=SAMPLE_TOKENS, temperature=0.0)
        for prompt, completion in zip(ids, engine.complete(list(ids.values()), sampling), strict=True):
            self.context.events.emit("sample", step=step, prompt=prompt, text=engine.text(completion))

    def together(self, name: str, own: Callable[[], T]) -> list[T]:
        """Every rank's result in order of ranks."""
        try:
            report: dict[str, object] = {"result": own()}
        except SURVIVABLE as error:
            report = {"error": f"rank {self.context.peers.rank}: {type(error).__name__}: {error}"}
        self.context.heart.waiting(self.context.events.stage, self.context.events.step)
        reports = self.context.peers.gather(report)
        problem = next((entry["error"] for entry in reports if "error" in entry), None)
        if problem is not None:
            raise EvaluationFailed(f"{name}: {problem}")
        return [entry["result"] for entry in reports]  # type: ignore[misc]

    def tell(self, **fields: object) -> None:
        """An event ``eval`` of rank 0."""
        if self.context.is_first:
            self.context.events.emit("eval", **fields, **({"model": self.model_stage} if self.model_stage else {}))
