"""The trainer's heart learns what upstream nanochat learns: same data, same draws, same curve.

Reference: karpathy/nanochat 92d63d4 on CPU, depth 4, T 512, vocabulary 4,096, 2,048 tokens per step, 200 steps, eager fp32;
its validation bpb and its loss of every step are in tests/data. The first steps agree to six digits. Then rounding decides:
gradients of the scalars start as noise that AdamW blows up to full steps, so two machines, or two orders of summation, part
by about 0.1 % a step (1.4 % at worst, where the loss moves fastest) and end where they would have ended together.
"""

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import data_synth
import pytest
import torch
from torch import Tensor

from nanochat.contract import DataConfig, ModelConfig, ModelShape, PretrainConfig, RunConfig, RunFile, horizon
from nanochat.data.corpus import iter_texts
from nanochat.data.loader import Place, build_loader, validation_batches
from nanochat.data.sources import open_corpus
from nanochat.model import GPT, build
from nanochat.optim import LearningRates, build_optimizer
from nanochat.schedule import PretrainSchedule
from nanochat.tokenizer import Tokenizer, training_texts

STEPS, BATCH, LENGTH, VOCAB = 200, 4, 512, 4096
REFERENCE_BPB = {0: 2.427756, 100: 1.731432, 200: 1.672478}
REFERENCE_LOSSES = Path(__file__).parents[1] / "data" / "upstream_loss_d4_200steps.csv"
EVAL_TOKENS = 40_960


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFile:
    folder = tmp_path_factory.mktemp("corpus")
    data_synth.write_corpus(folder)
    return RunFile(
        job="convergence",
        run=RunConfig(
            data=DataConfig(source="folder", dir=str(folder), packing="upstream"),
            model=ModelConfig(depth=4, sequence_len=LENGTH, window_pattern="L"),
            pretrain=PretrainConfig(device_batch=BATCH, tokens_per_step=BATCH * LENGTH, steps=STEPS),
        ),
    )


def reference_losses() -> list[float]:
    with REFERENCE_LOSSES.open() as file:
        return [float(row["raw_loss_recovered"]) for row in csv.DictReader(file)]


def train_tokenizer(run: RunFile, folder: Path) -> Tokenizer:
    corpus = open_corpus(run.run.data, 42, folder).of("train")
    return Tokenizer.train(training_texts(iter_texts(corpus), max_chars=2_000_000_000, doc_cap=10_000), VOCAB)


@torch.no_grad()
def bits_per_byte(model: GPT, batches: Iterator[tuple[Tensor, Tensor]], token_bytes: Tensor) -> float:
    nats = total = 0.0
    for inputs, targets in batches:
        counts = token_bytes[targets]
        nats += float((model(inputs, targets, reduction="none") * (counts > 0)).sum())
        total += float(counts.sum())
    return nats / (math.log(2) * total)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_steps_give_upstreams_curve(run: RunFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train_tokenizer(run, tmp_path)
    place = Place(0, 1, BATCH, LENGTH)
    loader = build_loader(run, tokenizer, place, tmp_path)
    token_bytes = torch.tensor(tokenizer.token_bytes())
    shape = ModelShape.of(run.run.model, tokenizer.vocab_size)
    plan = horizon(
        shape, ModelShape.of(run.run.model, tokenizer.vocab_size, depth=12), world_size=1, device_batch=BATCH, ratio=12, weight_decay=0.28,
        tokens_per_step=BATCH * LENGTH, steps=STEPS,
    )
    model = build(shape, torch.float32, "cpu", seed=42)
    optimizer = build_optimizer(model, LearningRates(batch_scale=plan.batch_lr_scale))
    schedule = PretrainSchedule(STEPS, weight_decay=plan.weight_decay_scaled)

    def validate() -> float:
        batches = validation_batches(run, tokenizer, place, tmp_path, eval_tokens=EVAL_TOKENS)
        return bits_per_byte(model, ((batch.inputs, batch.targets) for batch in batches), token_bytes)

    losses, bpb = [], {0: validate()}
    for step in range(STEPS):
        batch = loader.next_batch()
        loss = model(batch.inputs, batch.targets)
        loss.backward()
        optimizer.step(schedule.at(step))
        optimizer.zero_grad()
        losses.append(loss.item())
        if step + 1 in REFERENCE_BPB:
            bpb[step + 1] = validate()
    loader.close()

    off = [abs(ours / theirs - 1) for ours, theirs in zip(losses, reference_losses(), strict=True)]
    with capsys.disabled():
        print("\nval bpb " + ", ".join(f"step {s}: {v:.6f} (upstream {REFERENCE_BPB[s]:.6f})" for s, v in bpb.items()))
        print(f"loss off by at most {max(off):.2%} (step {off.index(max(off))}), on average {sum(off) / STEPS:.3%}; "
              f"first 5 steps at most {max(off[:5]):.5%}, first 20 at most {max(off[:20]):.4%}")
    assert bpb == {step: pytest.approx(value, rel=0.005) for step, value in REFERENCE_BPB.items()}
    assert max(off[:5]) < 1e-4 and sum(off) / STEPS < 0.005 and max(off) < 0.04
