"""All mistakes of a spec in one pass: the place, the reason, the way out."""

import pytest

from tests.unit.spec.conftest import CLUSTER, Load, Problems

TEN_MISTAKES = """\
spec_version: 1
name: D20_x
backend: volcano
run:
  stages: [pretrain, evall]
  model: {depth: "20", wndow_pattern: auto}
  pretrain: {device_batch: 8, total_batch_size: 524288, tokens_per_step: 500000}
resources: {nodes: 1, npus_per_node: 9, npu: 910B3, memory: 512GB}
hccl: {connect_timeout_s: 60}
image: {python: 3.10, mirrors: []}
env: {RANK: 0, HF_TOKEN: abc}
depth: 3
"""


def test_ten_mistakes_are_all_listed_with_their_lines(problems: Problems) -> None:
    found = [(problem.line, problem.column, problem.path) for problem in problems(TEN_MISTAKES)]
    assert found == [
        (2, 7, "name"), (5, 22, "run.stages[1]"), (6, 18, "run.model.depth"), (6, 24, "run.model.wndow_pattern"),
        (7, 31, "run.pretrain.total_batch_size"), (7, 74, "run.pretrain.tokens_per_step"), (8, 38, "resources.npus_per_node"),
        (8, 61, "resources.memory"), (9, 27, "hccl.connect_timeout_s"), (10, 32, "image.mirrors"), (11, 7, "env.RANK"), (11, 16, "env.HF_TOKEN"),
        (12, 1, "depth"),
    ]


def test_a_wrong_required_field_does_not_hide_the_other_mistakes(problems: Problems) -> None:
    text = """\
name: a
backend: volcano
run: {stages: [pretrain], model: {depth: twenty}}
resources: {npus_per_node: 9, npu: 910B3}
price: {per_npu_hour: 3, currency: CNY, source: quote, date: 2026-13-01}
budget: {max_total: 5}
env: {RANK: "0"}
"""
    found = [problem.path for problem in problems(text)]
    assert found == ["run.model.depth", "resources.npus_per_node", "price.date", "env.RANK"]


def test_a_block_in_doubt_is_not_called_absent(problems: Problems) -> None:
    found = [problem.path for problem in problems("""\
name: a
backend: volcano
run: {stages: [pretrain], data: {dir: /corpus/text}}
resources: {npus_per_node: 9, npu: 910B3}
storage: {data: {claim: No_Name, path: /corpus}}
""")]
    assert found == ["resources.npus_per_node", "storage.data.claim"]


def test_a_problem_reads_like_a_compilers(problems: Problems) -> None:
    (problem,) = problems(CLUSTER.replace("npus_per_node: 8", "npus_per_node: 9"))
    assert str(problem) == "job.yaml:4:38: resources.npus_per_node: 9 is more than a module-910b-8 node has (8)"
    excerpt = problem.excerpt()
    assert excerpt is not None
    line, caret = excerpt.splitlines()
    assert line[caret.index("^")] == "9"


def test_the_caret_stands_under_the_word_behind_chinese_text(problems: Problems) -> None:
    (problem,) = problems('name: a\nowner: {实验: 1}\n')
    excerpt = problem.excerpt()
    assert excerpt is not None
    (problem,) = problems('{name: a, "训练": 1, depht: 2}\n'.replace('"训练": 1, ', ""))
    assert problem.column == 11


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("resorces: {nodes: 1}", "did you mean resources?"),
        ("depth: 20", "did you mean run.model.depth?"),
        ("device_batch_size: 8", "did you mean run.pretrain.device_batch?"),
        ("device-batch-size: 8", "did you mean run.pretrain.device_batch?"),
        ("nproc_per_node: 8", "did you mean resources.npus_per_node?"),
        ("queue: train", "did you mean cluster.queue?"),
        ("cluster: {platform: mindclustr}", "did you mean mindcluster?"),
        ("cluster: {platfrom: hami}", "did you mean platform?"),
        ("run: {compile: on}", "YAML 1.2 reads on as text; write true"),
        ("run: {seed: 0123}", "some YAML readers take 0123 for 83; write 123"),
        ("run: {seed: 1:30}", "some YAML readers take 1:30 for a number to base 60; write a plain number"),
        ('run: {seed: "7"}', "write it without quotes: 7"),
        ('run: {seed: "5,000"}', "write 5000"),
        ("image: {torch_npu: latest}", "expected: a version like 9.1.0 (torch_npu: 2.12.0 or 2.9.0.post6)"),
    ],
)
def test_hints_say_what_was_probably_meant(problems: Problems, line: str, hint: str | None) -> None:
    assert hint in [problem.hint for problem in problems(f"name: a\n{line}\n")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run: [pretrain]", "must be a map (key: value), not a list"),
        ("run:", "must be a map (key: value), not null"),
        ("run: {stages: pretrain}", "must be a list, not 'pretrain'"),
        ("run: {stages: []}", "must be a list with something in it, not a list"),
        ("run: {seed: true}", "must be a whole number, not true"),
        ("run: {seed: 1.5}", "must be a whole number, not 1.5"),
        ("run: {seed: -1}", "-1 is less than 0"),
        ("run: {compile: 1}", "must be true or false, not 1"),
        ("run: {pretrain: {matrix_lr: .inf}}", "must be a number, not '.inf'"),
        ("run: {pretrain: {matrix_lr: 1e999}}", "must be a finite number, not inf"),
        ("run: {checkpoint: {keep_last: 0}}", "0 is not more than 0"),
        ("hccl: {rdma_traffic_class: 130}", "130 is not a multiple of 4"),
        ("spec_version: 2", "must be 1, not 2"),
        ("backend: slurm", "'slurm' is none of local, volcano"),
        ("price: {per_npu_hour: 3, source: x, date: yesterday}", "must be a date like 2026-11-01, not 'yesterday'"),
        ("price: {per_npu_hour: 3, date: 2026-11-01}", "is missing"),
        ("env: {A-B: x}", "'A-B' cannot be a name here"),
        ("cluster: {node_selector: {a: {b: c}}}", "must be text, not a map"),
    ],
)
def test_types_are_strict_and_said_in_words(problems: Problems, line: str, message: str) -> None:
    assert [problem.message for problem in problems(f"name: a\n{line}\n")] == [message]


def test_a_misspelt_required_key_is_reported_once(problems: Problems) -> None:
    assert [(problem.path, problem.hint) for problem in problems("nmae: a\n")] == [("nmae", "did you mean name?")]


def test_text_fields_get_scalars_as_they_were_written(load: Load) -> None:
    spec = load("name: on\nimage: {python: 3.10}\nenv: {A: 010, B: yes, C: 1.50}\nhccl: {deterministic: true}\n").spec
    assert (spec.name, spec.image.python, spec.hccl.deterministic) == ("on", "3.10", "true")
    assert spec.env == {"A": "010", "B": "yes", "C": "1.50"}


def test_whole_numbers_may_have_an_exponent(load: Load) -> None:
    assert load("name: a\nrun: {tokenizer: {max_chars: 2e9}}\n").spec.run.tokenizer.max_chars == 2_000_000_000


def test_as_json_has_the_promised_keys(problems: Problems) -> None:
    assert {"line", "column", "path", "message", "hint"} <= set(problems("name: a\nx: 1\n")[0].as_json())
