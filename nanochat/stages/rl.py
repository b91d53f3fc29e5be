"""Stage rl: reinforcement learning of a model that answers, on any task with rewards.

REINFORCE with the mean reward of an example's samples as its baseline, in GRPO's manner (arXiv:2402.03300) without what upstream
nanochat left out too (karpathy/nanochat 92d63d4, ``scripts/chat_rl.py``): no reference model and KL term, no ratio and clipping (one
update for each batch of samples, so the ratio is 1), no division by the rewards' deviation. Every chosen token counts the same:
the loss is divided by the tokens of the whole step over all ranks (arXiv:2503.14476, section 3.3), where upstream divides within
each forward pass. So neither the world size nor the device batch changes the update.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nanochat.artifacts import about, find_checkpoint, load_tokenizer, require_fit, shape_of
from nanochat.checkpoint import Checkpoints
from nanochat.checkpoint_files import load_weights
from nanochat.context import Context
from nanochat.contract import RlConfig, Stage
from nanochat.engine import Engine, Sampling
from nanochat.errors import BadConfig
from nanochat.evaluation import Evaluator
from nanochat.loop import Loop, Plan
from nanochat.model import GPT, build
from nanochat.optim import LearningRates, MuonAdamW, build_optimizer
from nanochat.rollouts import Group, Rollouts, Row, micro_batches
from nanochat.schedule import LinearSchedule, Rates, Schedule
from nanochat.tasks.rewards import open_reward_task
from nanochat.tokenizer import Tokenizer

__all__ = ["check", "run"]

STAGE = Stage.RL.value
BASES = (Stage.SFT.value, Stage.PRETRAIN.value)
SCALAR_LR = 0.5
"""Upstream's default; it gives no setting for it."""


def check(context: Context) -> None:
    """There is a model to go on from, and a task with examples and rewards.

    Raises:
        BadData: No model, no tokenizer, or the task's data is missing.
        BadConfig: The model is another than the run config says, the task is not known, or there are more ranks than examples in a step.
    """
    require_fit(context, find_checkpoint(context, BASES), load_tokenizer(context))
    for split in ("train", "val"):
        open_reward_task(context.run, split)
    if context.run.rl.examples_per_step < context.comm.size:
        raise BadConfig(
            f"{context.run.rl.examples_per_step} examples per step for {context.comm.size} ranks", where="run.rl.examples_per_step",
            hint=f"set it to {context.comm.size} or a multiple",
        )


def run(context: Context) -> dict[str, Any]:
    """Train; gives back the last loss, pass@k before and after, and tokens."""
    config = context.run.rl
    tokenizer = load_tokenizer(context)
    base = find_checkpoint(context, BASES)
    shape = shape_of(base)
    model = build(shape, context.device.compute_dtype(context.run.dtype), context.device.torch)
    model.load_state_dict(load_weights(base))
    optimizer = build_optimizer(model, LearningRates(config.embedding_lr, config.unembedding_lr, config.matrix_lr, SCALAR_LR), context.comm)
    checkpoints = Checkpoints(
        context.job_dir, STAGE, context.peers, context.events, context.run.checkpoint, about(context, shape, tokenizer)
    )
    manifest = checkpoints.restore(optimizer, model.load_state_dict) if context.run.resume != "never" else None
    loop = PolicyLoop(context, model, optimizer, _rollouts(context, model, tokenizer, "train"), checkpoints)
    evaluation = _rollouts(context, model, tokenizer, "val", max(config.pass_k, 2))
    evaluator = Evaluator(context, tokenizer, None, 0)
    loop.evaluate = lambda step: evaluator.pass_at(evaluation, step, config.eval_examples, config.pass_k)
    if manifest is not None:
        loop.resume(manifest)
    return loop.run()


def _rollouts(context: Context, model: GPT, tokenizer: Tokenizer, split: str, samples: int | None = None) -> Rollouts:
    config = context.run.rl
    sampling = Sampling(config.max_new_tokens, config.temperature, config.top_k, seed=context.run.seed)
    task = open_reward_task(context.run, split)
    return Rollouts(Engine(model, tokenizer), task, sampling, samples or config.samples, context.comm.rank, context.comm.size)


class _Counted:
    """The place in the data: a rollout depends on the step alone, so there is nothing to remember."""

    def __init__(self, examples: int, examples_per_step: int) -> None:
        self._examples, self._per_step, self.steps = examples, examples_per_step, 0

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Not used: rows are sampled, not read."""
        raise LookupError("rollouts are drawn by the step")

    def state_dict(self) -> Any:
        """Steps done."""
        return {"steps": self.steps}

    def load_state_dict(self, states: list[Any]) -> None:
        """Go on after so many steps."""
        self.steps = int(states[0]["steps"])

    @property
    def epoch(self) -> int:
        """How often all examples have been used."""
        return self.steps * self._per_step // self._examples


class _Informed:
    """A schedule that rests where a step has nothing to teach: Muon and AdamW make steps of full size of whatever is left in their moments.

    Args:
        schedule: What holds otherwise.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self.resting = schedule, False

    def at(self, step: int) -> Rates:
        """Rates of update number `step`, counted from 0."""
        rates = self._schedule.at(step)
        return replace(rates, lr_scale=0.0) if self.resting else rates


class PolicyLoop(Loop):
    """The training loop with samples in the place of rows of text.

    Args:
        context: This rank.
        model: The policy.
        optimizer: Its optimizer.
        rollouts: Draw the samples.
        checkpoints: Of the stage.
    """

    def __init__(self, context: Context, model: GPT, optimizer: MuonAdamW, rollouts: Rollouts, checkpoints: Checkpoints) -> None:
        config = context.run.rl
        steps = config.steps or max(1, len(rollouts.task) // config.examples_per_step)
        plan = Plan(
            steps=steps, tokens_per_step=0, grad_accum=1, eval_every=config.eval_every, stop_at_step=None,
            max_session_s=context.run.pretrain.max_session_s, checkpoint=context.run.checkpoint,
        )
        self.counted = _Counted(len(rollouts.task), config.examples_per_step)
        self.informed = _Informed(LinearSchedule(steps, config.init_lr_frac))
        super().__init__(context, model, optimizer, self.informed, self.counted, plan, checkpoints)
        self.config: RlConfig = config
        self.rollouts = rollouts
        self._tokens, self._facts = 0, dict[str, Any]()

    def step_tokens(self) -> int:
        """Tokens that were sampled in the last step, over all ranks."""
        return self._tokens

    def step_facts(self) -> dict[str, Any]:
        """Mean reward and answer length of the last step."""
        return self._facts

    def forward_backward(self) -> Tensor:
        """This rank's share of the loss; its samples are drawn first."""
        step, stage = self.counters.step, self.context.events.stage
        self.model.eval()
        groups: list[Group] = []
        for example in self.rollouts.examples(step, self.config.examples_per_step):
            self.context.heart.busy(stage, step + 1)
            groups += self.rollouts.draw(step, [example])
        self.model.train()
        rows = [row for group in groups for row in group.rows]
        self.context.heart.waiting(stage, step + 1)
        tokens = self._agree(groups, rows)
        self.context.heart.busy(stage, step + 1)
        self.counted.steps = step + 1
        return self._learn([row for row in rows if row.advantage] or rows[:1], tokens)

    def _agree(self, groups: list[Group], rows: list[Row]) -> float:
        """Chosen tokens of the step over all ranks; notes what the step's event says."""
        own = [
            float(sum(row.trained for row in rows)), math.fsum(row.reward for row in rows), float(len(rows)),
            float(sum(any(row.advantage for row in group.rows) for group in groups)), float(sum(row.reward >= 1 for row in rows)),
        ]
        tokens, reward, count, mixed, solved = self.context.comm.sum_floats(own, self.context.device.torch)
        self._tokens, self.informed.resting = round(tokens), mixed == 0
        self._facts = {
            "reward": round(reward / count, 6), "solved_frac": round(solved / count, 6), "samples": round(count),
            "answer_tokens": round(tokens / count, 2), "mixed_examples": round(mixed),
        }
        return max(tokens, 1.0)

    def _learn(self, rows: list[Row], tokens: float) -> Tensor:
        """Loss of these rows, detached; gradients are left in the parameters. Rows of advantage 0 have none and are left out."""
        total = torch.zeros((), device=self.context.device.torch)
        pad = self.rollouts.engine.tokenizer.bos_id
        for inputs, targets, weights in micro_batches(rows, self.config.device_batch, pad, self.context.device.torch):
            losses = self.model(inputs, targets, reduction="none")
            loss = (losses * weights).sum() / tokens
            loss.backward()
            total += loss.detach()
        return total
