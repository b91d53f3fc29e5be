"""CORE's multiple choice beside upstream's evaluator, paired in one run: seconds a question, and whether the verdicts agree.

    python dev/bench_eval.py CHECKOUT [--rounds 3] [--depth 4] [--shots 10] [--questions 6]

CHECKOUT is a checkout of karpathy/nanochat (92d63d4); its ``nanochat/core_eval.py`` runs unmodified. Both sides ask the same model (ours, with
random weights), so the difference is the evaluator alone: upstream computes the shown examples once for every choice, we once for
every question, and make logits for scored positions only. Rounds alternate; look at the ratios.
"""

import argparse
import importlib.util
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from nanochat.contract import ModelConfig, ModelShape
from nanochat.core import CoreTask, Reuse, score_examples
from nanochat.data import toy
from nanochat.model import build
from nanochat.tokenizer import Tokenizer

CHOICES = 4
VOCAB = 600


def upstream(checkout: Path) -> Any:
    """Upstream's evaluator as a module."""
    spec = importlib.util.spec_from_file_location("upstream_core_eval", checkout / "nanochat" / "core_eval.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TheirTokenizer:
    """Our tokenizer with the face that upstream's evaluator knows."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def get_bos_token_id(self) -> int:
        """The token that begins a text."""
        return self._tokenizer.bos_id

    def __call__(self, texts: list[str], prepend: int) -> list[list[int]]:
        """Ids of texts."""
        return [[prepend, *self._tokenizer.encode(text)] for text in texts]


def examples(count: int) -> list[dict[str, Any]]:
    """Questions of a few sentences with four short choices."""
    rng = random.Random(0)
    found = []
    for _ in range(count):
        animals = rng.sample(toy.WORLD, CHOICES)
        story = " ".join(text for animal in animals for _, text in animal.facts()[1:3])
        gold = rng.randrange(CHOICES)
        found.append({"query": f"{story} Who is {animals[gold].colour}?", "choices": [animal.name for animal in animals], "gold": gold})
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout", type=Path)
    for name, value in (("rounds", 3), ("depth", 4), ("shots", 10), ("questions", 6)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    tokenizer = Tokenizer.train(toy.documents(1, 3000), VOCAB)
    shape = ModelShape.of(ModelConfig(depth=options.depth, sequence_len=1024, window_pattern="L"), VOCAB)
    model = build(shape, torch.float32, "cpu", 0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    data = examples(max(40, options.questions))
    task = CoreTask("bench", "multiple_choice", options.shots, " ", 0.25, data)
    theirs, face = upstream(options.checkout), TheirTokenizer(tokenizer)
    meta = {"task_type": task.kind, "num_fewshot": task.shots, "continuation_delimiter": task.delimiter}

    def one_by_one() -> list[bool]:
        return [bool(theirs.evaluate_example(i, model, face, data, "cpu", meta)) for i in range(options.questions)]

    def ours(reuse: Reuse) -> list[bool]:
        verdicts = score_examples(model, tokenizer, task, range(options.questions), reuse=reuse)
        return [verdicts[i] for i in range(options.questions)]

    sides = {"upstream": one_by_one, "prefix": lambda: ours(Reuse.PREFIX), "packed": lambda: ours(Reuse.PACKED)}
    took: dict[str, list[float]] = {name: [] for name in sides}
    said: dict[str, list[bool]] = {name: work() for name, work in sides.items()}  # the first round warms up
    for _ in range(options.rounds):
        for name, work in sides.items():
            started = time.perf_counter()
            said[name] = work()
            took[name].append((time.perf_counter() - started) / options.questions)
    from nanochat.core.prompts import question

    lengths = [len(sequence) for i in range(options.questions) for sequence in question(task, i, tokenizer, 10**6).sequences]
    print(f"depth {options.depth}, vocabulary {VOCAB}, {options.shots} examples shown, {statistics.mean(lengths):.0f} tokens a sequence, {torch.get_num_threads()} thread(s)")
    for name, times in took.items():
        ratios = [theirs_s / own_s for theirs_s, own_s in zip(took["upstream"], times, strict=True)]
        print(f"{name:<10}{statistics.median(times):8.3f} s a question   {statistics.median(ratios):5.2f}x   same verdicts: {said[name] == said['upstream']}")


if __name__ == "__main__":
    main()
