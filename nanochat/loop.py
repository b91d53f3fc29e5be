"""The training loop that pretraining and fine-tuning share.

A step is: micro batches forward and backward, one optimiser update, one small sum over the ranks in which they agree on
the loss and on what happens next (stop, save, end of the session). So every rank saves, evaluates and leaves after the same
step, whoever got the signal or whose clock ran out.
"""

import math
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from nanochat.attention import self_test
from nanochat.checkpoint import CheckpointFailed, Checkpoints, Snapshot
from nanochat.checkpoint_files import Manifest
from nanochat.compilation import compiled
from nanochat.context import Context, SessionOver
from nanochat.contract import CheckpointConfig, ExitCode
from nanochat.errors import BadData, Diverged, Interrupted, TrainerError
from nanochat.guards import Objection, Progress
from nanochat.model import GPT
from nanochat.optim import MuonAdamW
from nanochat.schedule import Schedule

__all__ = ["Batches", "Loop", "Plan"]

EMA_BETA = 0.9
SAVE_PATIENCE = 4.0
"""Times the usual limit that a checkpoint may take before the rank counts as silent: 20 GB on a slow volume take minutes."""


class Batches(Protocol):
    """Where micro batches of this rank come from."""

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets (B, T) on the device; targets are -1 where nothing is to be learnt."""

    def state_dict(self) -> Any:
        """Position, as JSON."""

    def load_state_dict(self, states: list[Any]) -> None:
        """Go to the position that all ranks of some world saved together."""

    @property
    def epoch(self) -> int:
        """How often the data has been read through."""


@dataclass(frozen=True)
class Plan:
    """What the loop has to do."""

    steps: int
    tokens_per_step: int
    grad_accum: int
    eval_every: int = 0
    sample_every: int = 0
    stop_at_step: int | None = None
    max_session_s: float | None = None
    masked: bool = False
    """Targets are masked, so the loss is divided by the number of targets that count, over all ranks."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


Evaluate = Callable[[int], dict[str, float]]
"""Called with the step; gives back values by name, of which ``bpb`` decides what is best."""


@dataclass
class Counters:
    """What the loop remembers over a restart."""

    step: int = 0
    tokens: int = 0
    ema: float = 0.0
    trained_s: float = 0.0

    def smooth(self, loss: float) -> float:
        """Debiased moving average after another loss."""
        self.ema = EMA_BETA * self.ema + (1 - EMA_BETA) * loss
        return self.ema / (1 - EMA_BETA**self.step)


@dataclass
class _Agreed:
    """Sums over the ranks after a step."""

    loss: float
    stop: bool
    save: bool
    session_over: bool
    objections: bool
    data_wait_s: float


class Loop:
    """Trains a model from where it is to the end of the horizon, or to where the session ends."""

    def __init__(self, context: Context, model: GPT, optimizer: MuonAdamW, schedule: Schedule, batches: Batches, plan: Plan, checkpoints: Checkpoints) -> None:
        self.context, self.model, self.optimizer = context, model, optimizer
        self.schedule, self.batches, self.plan, self.checkpoints = schedule, batches, plan, checkpoints
        self.counters = Counters()
        self._choose_attention()
        self.forward = compiled(model, context.device, wanted=context.run.compile, tell=self._tell)
        self.evaluate: Evaluate | None = None
        self.sample: Callable[[int], None] | None = None
        self._saved_step = -1
        self._saved_at = time.monotonic()
        self._data_wait_s = 0.0
        self._last_loss = math.nan
        self._objection: Objection | None = None
        self._flops = model.shape.flops_per_token
        self._peak = context.device.peak_flops()

    def _choose_attention(self) -> None:
        """The kernel of run.attention, tested before hours are spent on it; the choice is told once."""
        wanted = None if self.context.run.attention == "auto" else self.context.run.attention
        self.model.use_kernel(wanted)
        tested = self_test(self.context.device.torch, self.model.dtype, wanted)
        self._tell(str(tested))

    def _tell(self, line: str) -> None:
        if self.context.is_first:
            print(line, file=sys.stderr, flush=True)

    # -- the whole ----------------------------------------------------------------------------------------------------

    def resume(self, manifest: Manifest) -> None:
        """Go on from a checkpoint that has been loaded into model and optimizer."""
        self.counters = Counters(**{key: manifest.loop[key] for key in Counters.__dataclass_fields__ if key in manifest.loop})
        self.batches.load_state_dict(manifest.loader)
        self._saved_step = self.counters.step
        self.context.events.step = self.counters.step

    def run(self) -> dict[str, Any]:
        """Train; gives back the last loss and evaluation for the record.

        Raises:
            SessionOver: A session limit was reached; the checkpoint is written.
            Interrupted: A stop was asked for; the checkpoint is written.
            Diverged: The loss is not a number any more.
            CheckpointFailed: The last checkpoint could not be written.
        """
        result: dict[str, Any] = {}
        with self.context.stop.deferred():
            if self.counters.step == 0:
                result["before"] = self._evaluate()
            while self.counters.step < self.plan.steps:
                loss, agreed = self._step()
                result["loss"] = loss
                self._after(agreed)
                if self._due(self.plan.eval_every) or self.counters.step == self.plan.steps:
                    result["after"] = self._evaluate()
                if self._due(self.plan.sample_every) or self.counters.step == self.plan.steps:
                    self._sample()
        return {**result, "step": self.counters.step, "tokens": self.counters.tokens, "trained_s": round(self.counters.trained_s, 3)}

    def _due(self, every: int) -> bool:
        return every > 0 and self.counters.step % every == 0

    # -- one step -----------------------------------------------------------------------------------------------------

    def _step(self) -> tuple[float, _Agreed]:
        started = time.monotonic()
        self._data_wait_s = 0.0
        stage, number, heart = self.context.events.stage, self.counters.step + 1, self.context.heart
        heart.busy(stage, number)
        loss = self.forward_backward()
        rates = self.schedule.at(self.counters.step)
        heart.waiting(stage, number)
        agreeing = self.context.comm.all_reduce(self._opinion(loss))
        self.optimizer.step(rates)
        self.optimizer.zero_grad()
        agreed = self._read(agreeing.wait().tolist())
        comm_s = self.context.comm.waits.take()
        step_s = time.monotonic() - started
        self.counters.step += 1
        self.counters.tokens += self.step_tokens()
        self.counters.trained_s += step_s
        self.context.events.step = self.counters.step
        if not math.isfinite(agreed.loss):
            raise Diverged(
                f"the loss is {agreed.loss} at step {self.counters.step}", where=f"{self.context.events.stage} step {self.counters.step}",
                hint="lower the learning rates, or resume from an earlier checkpoint with another seed",
            )
        self._report(agreed, rates.lr_scale, step_s, comm_s)
        return agreed.loss, agreed

    def step_tokens(self) -> int:
        """Tokens of the step that was just done, over all ranks."""
        return self.plan.tokens_per_step

    def step_facts(self) -> dict[str, Any]:
        """What a step's event says beyond the usual."""
        return {}

    def forward_backward(self) -> Tensor:
        """This rank's share of the loss, detached; gradients are left in the parameters, to be summed over the ranks."""
        if self.plan.masked:
            return self._forward_backward_masked()
        total = torch.zeros((), device=self.context.device.torch)
        share = 1.0 / (self.plan.grad_accum * self.context.comm.size)
        for turn in range(self.plan.grad_accum):
            inputs, targets = self._next_batch()
            loss = self.forward(inputs, targets) * share
            self._backward(loss, last=turn == self.plan.grad_accum - 1)
            total += loss.detach()
        return total

    def _backward(self, loss: Tensor, *, last: bool) -> None:
        """Backward pass; during a step's last one the sums over the ranks begin."""
        with self.optimizer.overlapping() if last else nullcontext():
            loss.backward()

    def _forward_backward_masked(self) -> Tensor:
        """As above with targets of which only some count: a batch without any is worth nothing, and not NaN."""
        batches = [self._next_batch() for _ in range(self.plan.grad_accum)]
        counted = sum(int((targets >= 0).sum()) for _, targets in batches)
        self.context.heart.waiting(self.context.events.stage, self.counters.step + 1)
        everywhere = self.context.comm.sum_floats([float(counted)], self.context.device.torch)[0]
        self.context.heart.busy(self.context.events.stage, self.counters.step + 1)
        total = torch.zeros((), device=self.context.device.torch)
        for turn, (inputs, targets) in enumerate(batches):
            loss = self.forward(inputs, targets, reduction="sum") / max(everywhere, 1.0)
            self._backward(loss, last=turn == len(batches) - 1)
            total += loss.detach()
        return total

    def _next_batch(self) -> tuple[Tensor, Tensor]:
        started = time.monotonic()
        batch = self.batches.next_batch()
        self._data_wait_s += time.monotonic() - started
        return batch

    # -- agreeing -----------------------------------------------------------------------------------------------------

    def _opinion(self, loss: Tensor) -> Tensor:
        """What this rank puts into the sum: its loss, and its wishes as 0 or 1. Only rank 0's clock counts."""
        first = self.context.is_first
        self._objection = self._ask_guards() if self.context.guards else None
        wishes = [
            float(self.context.stop.requested), float(first and self._save_is_due()), float(first and self._session_is_over()),
            float(self._objection is not None), self._data_wait_s,
        ]
        return torch.cat((loss.view(1), torch.tensor(wishes, device=loss.device)))

    def _read(self, sums: list[float]) -> _Agreed:
        loss, stop, save, over, objections, wait_s = sums
        return _Agreed(loss, stop > 0, save > 0, over > 0, objections > 0, wait_s / self.context.comm.size)

    def _save_is_due(self) -> bool:
        config, step = self.plan.checkpoint, self.counters.step + 1
        by_step = config.every_steps is not None and step % config.every_steps == 0
        by_time = config.every_minutes is not None and time.monotonic() - self._saved_at >= 60 * config.every_minutes
        return by_step or by_time

    def _session_is_over(self) -> bool:
        plan, elapsed_s = self.plan, time.time() - self.context.started
        by_time = plan.max_session_s is not None and elapsed_s + self.checkpoints.last_save_s >= plan.max_session_s
        return by_time or (plan.stop_at_step is not None and self.counters.step + 1 >= plan.stop_at_step)

    def _ask_guards(self) -> Objection | None:
        progress = Progress(
            self.context.events.stage, self.counters.step + 1, self.plan.steps, self._last_loss, self._mean_step_s(), self.checkpoints.last_save_s
        )
        return next((o for guard in self.context.guards if (o := guard.after_step(progress)) is not None), None)

    def _mean_step_s(self) -> float:
        return self.counters.trained_s / self.counters.step if self.counters.step else 0.0

    # -- after a step -------------------------------------------------------------------------------------------------

    def _after(self, agreed: _Agreed) -> None:
        """Save where due, and leave where agreed. A checkpoint is always written before an evaluation."""
        step, last = self.counters.step, self.counters.step >= self.plan.steps
        leaving = agreed.stop or agreed.objections or (agreed.session_over and not last)
        if last or leaving:
            self._save()
        elif agreed.save or self._due(self.plan.eval_every):
            self._try_to_save()
        if agreed.stop:
            raise Interrupted(f"stopped on request after step {step}; checkpoint written")
        if agreed.objections:
            self._object()
        if leaving:
            raise SessionOver("session_limit", step)

    def _object(self) -> None:
        own = self._objection
        voiced = self.context.peers.gather((int(own.code), own.message, own.hint) if own else None)
        code, message, hint = next(entry for entry in voiced if entry)
        raise TrainerError(message, hint=hint, code=ExitCode(code), where=f"step {self.counters.step}; checkpoint written")

    def _save(self) -> Path | None:
        if self._saved_step == self.counters.step:
            return None
        snapshot = Snapshot(
            self.counters.step, self.model.state_dict(), self.optimizer, dict(vars(self.counters)), self.batches.state_dict()
        )
        self.context.heart.busy(self.context.events.stage, self.counters.step, patience=SAVE_PATIENCE)
        path = self.checkpoints.save(snapshot)
        self._saved_step, self._saved_at = self.counters.step, time.monotonic()
        return path

    def _try_to_save(self) -> None:
        """A checkpoint in mid-course may fail (a full volume may be cleared): training goes on, and the next one is due as before."""
        try:
            self._save()
        except CheckpointFailed as error:
            self._saved_at = time.monotonic()
            if self.context.is_first:
                self.context.events.warn("checkpoint_failed", str(error))

    # -- looking at it ------------------------------------------------------------------------------------------------

    def _evaluate(self) -> dict[str, float]:
        """Values by name; an evaluation that fails costs a warning, never the run: its checkpoint is written."""
        values: dict[str, float] = {}
        if self.evaluate is None:
            return values
        self.context.tick()
        self.model.eval()
        with self.context.surviving("evaluation_failed", "evaluation"):
            values = self.evaluate(self.counters.step)
        self.model.train()
        if "bpb" in values and self.context.is_first and self._saved_step == self.counters.step and math.isfinite(values["bpb"]):
            self.checkpoints.mark_best(self.counters.step, values["bpb"])
        return values

    def _sample(self) -> None:
        if self.sample is None or not self.context.is_first:
            return
        self.context.tick()
        self.model.eval()
        with self.context.surviving("sample_failed", "samples", also=(BadData,)):
            self.sample(self.counters.step)
        self.model.train()

    def _report(self, agreed: _Agreed, lr_frac: float, step_s: float, comm_s: float) -> None:
        smooth = self.counters.smooth(agreed.loss)
        self._last_loss = agreed.loss
        if not self.context.is_first:
            return
        tokens_per_s = self.step_tokens() / step_s
        mfu = None if self._peak is None else self._flops * tokens_per_s / (self._peak * self.context.comm.size)
        self.context.events.emit(
            "step", step=self.counters.step, steps=self.plan.steps, loss=agreed.loss, loss_ema=smooth, lr_frac=round(lr_frac, 6),
            dt_s=round(step_s, 6), tokens_per_s=round(tokens_per_s, 1), tokens=self.counters.tokens, mfu_frac=mfu,
            mfu_peak_flops=self._peak, epoch=self.batches.epoch, eta_s=round(self._mean_step_s() * (self.plan.steps - self.counters.step), 1),
            data_wait_s=round(agreed.data_wait_s, 6), comm_s=round(comm_s, 6), memory_bytes=self.context.device.peak_memory_bytes(),
            **self.step_facts(),
        )
