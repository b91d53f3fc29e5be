"""A small evaluation bundle of our own, from the tiny world: each kind of task, with and without shown examples."""

import json
import random
from pathlib import Path
from typing import Any

import torch

from nanochat.contract import ModelConfig, ModelShape
from nanochat.data import toy
from nanochat.model import GPT, build
from nanochat.optim import LearningRates, build_optimizer
from nanochat.schedule import Rates
from nanochat.tokenizer import Tokenizer

EXAMPLES = 20


def _multiple_choice() -> list[dict[str, Any]]:
    rng = random.Random(1)
    found = []
    for _ in range(EXAMPLES):
        animal = rng.choice(toy.WORLD)
        colours = rng.sample([other.colour for other in toy.WORLD if other is not animal], 3)
        gold = rng.randrange(4)
        colours.insert(gold, animal.colour)
        found.append({"query": f"{animal.name} lives in the {animal.home}. Its colour:", "choices": colours, "gold": gold})
    return found


def _schema() -> list[dict[str, Any]]:
    rng = random.Random(2)
    found = []
    for _ in range(EXAMPLES):
        one, two = rng.sample(toy.WORLD, 2)
        gold = rng.randrange(2)
        names = [one.name, two.name] if gold == 0 else [two.name, one.name]
        found.append({"context_options": [f"Because {name} was hungry,  {name}" for name in names], "continuation": f"ate {one.food}.", "gold": gold})
    return found


def _continuation() -> list[dict[str, Any]]:
    rng = random.Random(3)
    return [{"context": f"  1 + 1 = 2. {a} + {b} = ", "continuation": str(a + b)} for a, b in ((rng.randrange(5), rng.randrange(4)) for _ in range(EXAMPLES))]


KINDS = {"multiple_choice": (_multiple_choice, 25.0, " "), "schema": (_schema, 50.0, " "), "language_modeling": (_continuation, 0.0, " ")}
SHOTS = (0, 5)


def write_bundle(folder: Path) -> Path:
    """The bundle's folder."""
    (folder / "eval_data").mkdir(parents=True)
    tasks, chances = ["icl_tasks:"], ["Eval Task,Random baseline"]
    for kind, (make, chance, delimiter) in KINDS.items():
        (folder / "eval_data" / f"{kind}.jsonl").write_text("".join(json.dumps(example) + "\n" for example in make()))
        for shots in SHOTS:
            label = f"{kind}_{shots}"
            tasks += [f"- label: {label}", f"  icl_task_type: {kind}", f"  dataset_uri: {kind}.jsonl", f"  num_fewshot: [{shots}]", f"  continuation_delimiter: '{delimiter}'"]
            chances.append(f"{label},{chance}")
    (folder / "core.yaml").write_text("\n".join(tasks) + "\n")
    (folder / "eval_meta_data.csv").write_text("\n".join(chances) + "\n")
    return folder


def model_and_tokenizer(steps: int = 60) -> tuple[GPT, Tokenizer]:
    """A model that has begun to learn the tiny world, so that it is right now and then, and a tokenizer with merges."""
    texts = toy.documents(1, 800)
    tokenizer = Tokenizer.train(texts[:200], 400)
    config = ModelConfig(depth=2, aspect_ratio=32, head_dim=16, sequence_len=64, window_pattern="SL")
    model = build(ModelShape.of(config, tokenizer.vocab_size), torch.float32, "cpu", 0)
    optimizer = build_optimizer(model, LearningRates(batch_scale=0.3))
    tokens = torch.tensor([token for text in texts for token in (tokenizer.bos_id, *tokenizer.encode(text))])
    for step in range(steps):
        rows = tokens[step * 520 : step * 520 + 520].view(8, 65)
        model(rows[:, :-1], rows[:, 1:]).backward()
        optimizer.step(Rates(1.0, 0.9, 0.0))
        optimizer.zero_grad()
    return model.eval(), tokenizer
