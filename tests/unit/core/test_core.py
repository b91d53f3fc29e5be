"""CORE on a bundle of our own: equal to a plain evaluator example by example, and to what upstream's evaluator said.

tests/data/core_verdicts.json is what karpathy/nanochat 92d63d4 (``core_eval.evaluate_example``) gave for this model and bundle.
"""

import json
import random
import zipfile
from pathlib import Path

import pytest
import torch
from core_bundle import EXAMPLES, model_and_tokenizer, write_bundle

from nanochat.core import Bundle, CoreTask, Reuse, open_bundle, score_examples
from nanochat.core.prompts import question
from nanochat.errors import BadData, TrainerError
from nanochat.model import GPT
from nanochat.tokenizer import Tokenizer

UPSTREAM = json.loads((Path(__file__).parents[2] / "data" / "core_verdicts.json").read_text())
LABELS = sorted(UPSTREAM)


@pytest.fixture(scope="module")
def trained() -> tuple[GPT, Tokenizer]:
    return model_and_tokenizer()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(write_bundle(tmp_path_factory.mktemp("bundle") / "b"))


def named(bundle: Bundle, label: str) -> CoreTask:
    return next(task for task in bundle.tasks if task.label == label)


@torch.inference_mode()
def plain_verdict(model: GPT, tokenizer: Tokenizer, task: CoreTask, index: int) -> bool:
    """The definition, one sequence at a time: no cache, no batch, all logits."""
    item, others = task.examples[index], [e for i, e in enumerate(task.examples) if i != index]
    shown = random.Random(1234 + index).sample(others, task.shots) if task.shots else []

    def losses(text: str, start: int) -> tuple[float, bool]:
        ids = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(text)]])
        logits = model(ids)[0, start - 1 : -1].log_softmax(-1)
        wanted = ids[0, start:]
        return -float(logits.gather(1, wanted[:, None]).mean()), bool((logits.argmax(-1) == wanted).all())

    def length(texts: list[str], step: int) -> int:
        rows = [[tokenizer.bos_id, *tokenizer.encode(text)][::step] for text in texts]
        return next((i for i in range(min(map(len, rows))) if len({row[i] for row in rows}) > 1), min(map(len, rows)))

    d = task.delimiter
    if task.kind == "language_modeling":
        head = "".join(f"{e['context'].strip()}{d}{e['continuation']}\n\n" for e in shown) + item["context"].strip() + d
        return losses(head + item["continuation"], 1 + len(tokenizer.encode(head.strip())))[1]
    if task.kind == "multiple_choice":
        head = "".join(f"{e['query']}{d}{e['choices'][e['gold']]}\n\n" for e in shown)
        texts = [f"{head}{item['query']}{d}{choice}" for choice in item["choices"]]
        starts = [length(texts, 1)] * len(texts)
    else:
        head = "".join(f"{e['context_options'][e['gold']]}{d}{e['continuation']}\n\n" for e in shown)
        texts = [f"{head}{context}{d}{item['continuation']}" for context in item["context_options"]]
        starts = [1 + len(tokenizer.encode(text)) - length(texts, -1) for text in texts]
    means = [losses(text, start)[0] for text, start in zip(texts, starts, strict=True)]
    return means.index(min(means)) == item["gold"]


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("reuse", list(Reuse))
def test_every_example_is_judged_as_upstream_judges_it(trained, bundle, label, reuse):
    verdicts = score_examples(*trained, named(bundle, label), range(EXAMPLES), rows=7, reuse=reuse)
    assert "".join("01"[verdicts[i]] for i in range(EXAMPLES)) == UPSTREAM[label]


@pytest.mark.parametrize("label", LABELS)
def test_a_plain_evaluator_agrees(trained, bundle, label):
    task = named(bundle, label)
    assert "".join("01"[plain_verdict(*trained, task, i)] for i in range(EXAMPLES)) == UPSTREAM[label]


def test_a_zip_with_a_folder_inside_is_the_same_bundle(tmp_path, bundle):
    folder = write_bundle(tmp_path / "eval_bundle")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, path.relative_to(tmp_path))
    assert open_bundle(tmp_path / "b.zip") == bundle


def test_accuracy_is_centred_on_chance(bundle):
    task = named(bundle, "multiple_choice_0")
    assert (task.centred(0.25), task.centred(1.0)) == (0.0, 1.0)


def test_fewer_examples_are_the_first_of_a_fixed_order(tmp_path, bundle):
    cut = open_bundle(write_bundle(tmp_path / "b"), max_per_task=8)
    assert named(cut, "schema_5").examples == named(bundle, "schema_5").examples[:8]


def test_a_sequence_that_is_too_long_loses_its_beginning(trained, bundle):
    _, tokenizer = trained
    whole = question(named(bundle, "schema_5"), 0, tokenizer, 10_000)
    cut = question(named(bundle, "schema_5"), 0, tokenizer, 20)
    assert [sequence[-20:] for sequence in whole.sequences] == cut.sequences
    for long, short, start, moved in zip(whole.sequences, cut.sequences, whole.starts, cut.starts, strict=True):
        assert long[start:] == short[moved:]


@pytest.mark.parametrize(("file", "text", "told"), [
    ("eval_data/schema.jsonl", "{broken\n", "schema.jsonl:1: not JSON"), ("eval_data/schema.jsonl", "[" * 100_000, "schema.jsonl:1: not JSON"),
    ("eval_data/multiple_choice.jsonl", '{"query": "q", "choices": ["a"], "gold": 1}\n', "multiple_choice.jsonl:1: gold 1 names no choice"),
    ("eval_data/language_modeling.jsonl", '{"context": "q"}\n', "has no continuation"),
    ("eval_data/schema.jsonl", "", "has 0 examples"),
    ("core.yaml", "icl_tasks: [{label: x}]", "a task is not understood"),
    ("core.yaml", "a: [", "tables are not understood"),
    ("core.yaml", "icl_tasks:\n- {label: schema_0, icl_task_type: poem, dataset_uri: x, num_fewshot: [0]}", "kind 'poem'"),
    ("core.yaml", "icl_tasks:\n- {label: schema_0, icl_task_type: schema, dataset_uri: ../../x, num_fewshot: [0]}", "outside of the bundle"),
])
def test_what_is_wrong_in_a_bundle_is_named(tmp_path, file, text, told):
    folder = write_bundle(tmp_path / "b")
    (folder / file).write_text(text)
    with pytest.raises(TrainerError, match=told.replace("(", "\\(")) as caught:
        open_bundle(folder)
    assert str(tmp_path) in str(caught.value)


def test_a_bundle_that_is_not_there_says_how_to_name_one(tmp_path):
    with pytest.raises(BadData, match=r"run\.eval\.bundle"):
        open_bundle(tmp_path / "nothing.zip")
