"""Rules between fields: each refuses what would fail minutes later on the cluster, and only that."""

import pytest

from nanochat_npu.load import load_spec
from nanochat_npu.spec import NODE_TYPES, JobSpec, NpuType
from nanochat_npu.spec.hccl import HcclConfig
from tests.unit.spec.conftest import CLUSTER, Load, Problems

TWO_NODES = CLUSTER.replace("nodes: 1", "nodes: 2")
SERVERS = "[{node: a, device_ips: [%s]}, {node: b, device_ips: [%s]}]"
IPS_A, IPS_B = (", ".join(f"10.0.{node}.{i}" for i in range(8)) for node in (1, 2))


def test_a_batch_that_does_not_divide_names_both_neighbours(problems: Problems) -> None:
    (problem,) = problems(CLUSTER, ["run.pretrain.tokens_per_step=524288", "resources.npus_per_node=3"])
    assert problem.path == "run.pretrain.tokens_per_step"
    assert "8 (device batch) x 2048 (sequence) x 3 (ranks) = 49152" in problem.message
    assert problem.hint == "use 491520 or 540672"


def test_a_batch_below_one_micro_batch_names_only_the_larger_one(problems: Problems) -> None:
    (problem,) = problems(CLUSTER, ["run.pretrain.tokens_per_step=2048"])
    assert problem.hint == "use 131072"


@pytest.mark.parametrize("overrides", [["run.sft.tokens_per_step=1000"], ["run.sft.tokens_per_step=131072", "run.sft.device_batch=16"]])
def test_the_sft_batch_divides_too(problems: Problems, overrides: list[str]) -> None:
    assert [problem.path for problem in problems(CLUSTER, overrides)] == ["run.sft.tokens_per_step"]


def test_every_rank_has_an_example_in_a_step_of_rl(problems: Problems) -> None:
    (problem,) = problems(CLUSTER, ["run.stages=[sft, rl]", "run.rl.examples_per_step=4"])
    assert (problem.path, problem.hint) == ("run.rl.examples_per_step", "use 8 or a multiple")


@pytest.mark.parametrize(
    ("stages", "wrong"),
    [("sft, pretrain, rl", ["run.stages[0]"]), ("eval, sft, pretrain", ["run.stages[0]", "run.stages[1]"]), ("pretrain, tokenizer", ["run.stages[0]"])],
)
def test_no_stage_comes_before_the_one_that_makes_what_it_needs(problems: Problems, load: Load, stages: str, wrong: list[str]) -> None:
    found = problems(CLUSTER, [f"run.stages=[{stages}]"])
    assert [problem.path for problem in found] == wrong
    assert "comes later" in found[0].message
    load(CLUSTER, [f"run.stages=[{stages}]", "run.resume=other@latest"])


@pytest.mark.parametrize("stages", ["sft, eval", "eval, sft", "rl, sft", "pretrain, eval, sft, eval", "tokenizer, pretrain, rl, sft", "report, pretrain"])
def test_orders_of_stages_that_may_be_meant(load: Load, stages: str) -> None:
    load(CLUSTER, [f"run.stages=[{stages}]"])


def test_core_without_a_bundle_is_found_before_anything_is_trained(problems: Problems) -> None:
    assert [problem.path for problem in problems(CLUSTER, ["run.stages=[pretrain, eval]", "run.eval.tasks=[core]"])] == ["run.eval.bundle"]


@pytest.mark.parametrize(
    ("npu", "node_type", "good", "bad"),
    [
        ("910B3", None, range(9), (9, 16)),
        ("910C", None, (1, 2, 4, 8, 10, 16), (3, 15, 17)),
        ("910B3", "card-910b-2", (1, 2), (3, 8)),
        ("910B2", "module-910b-16", (1, 8, 10, 16), (9, 11, 15, 17)),
    ],
)
def test_counts_of_one_node(load: Load, problems: Problems, npu: str, node_type: str | None, good: range, bad: tuple[int, ...]) -> None:
    fixed = [f"resources.npu={npu}", f"cluster.node_type={node_type or 'null'}"]
    for count in good:
        assert load(CLUSTER, [*fixed, f"resources.npus_per_node={count}"]).spec.resources.npus_per_node == count
    for count in bad:
        assert [problem.path for problem in problems(CLUSTER, [*fixed, f"resources.npus_per_node={count}"])] == ["resources.npus_per_node"]


def test_several_nodes_are_whole_nodes(load: Load, problems: Problems) -> None:
    assert load(TWO_NODES).spec.world_size == 16
    (problem,) = problems(TWO_NODES, ["resources.npus_per_node=4"])
    assert "takes whole nodes" in problem.message
    load(TWO_NODES, ["resources.npus_per_node=0"])  # a CPU job is free


def test_counts_are_no_matter_of_the_local_backend(load: Load) -> None:
    assert load(TWO_NODES, ["backend=local", "resources.npus_per_node=24"]).spec.world_size == 48


def test_a_cluster_job_names_its_npu_unless_it_takes_none(load: Load, problems: Problems) -> None:
    assert [problem.path for problem in problems(CLUSTER, ["resources.npu=null"])] == ["resources.npu"]
    load(CLUSTER, ["resources.npu=null", "resources.npus_per_node=0"])


def test_chip_node_type_and_platform_fit(problems: Problems) -> None:
    assert [problem.path for problem in problems(CLUSTER, ["cluster.node_type=module-a3-16"])] == ["cluster.node_type"]
    assert [problem.path for problem in problems(CLUSTER, ["cluster.platform=hami", "resources.npu=910B1"])] == ["resources.npu"]


@pytest.mark.parametrize("name", ["a", "d20", "a-b-9", "x" * 54])
def test_names_that_fit(load: Load, name: str) -> None:
    assert load(CLUSTER, [f"name={name}"]).spec.name == name


@pytest.mark.parametrize("name", ["9a", "-a", "a-", "a_b", "A", "a.b", "x" * 55, "名字", "a b", "a\\n", '"a\\n"'])
def test_names_that_kubernetes_or_volcano_refuses(problems: Problems, name: str) -> None:
    assert {problem.path for problem in problems(CLUSTER, [f"name={name}"])} == {"name"}


def test_the_last_workers_host_name_fits_too(load: Load, problems: Problems) -> None:
    name = "x" * 54
    load(TWO_NODES, [f"name={name}"])
    (problem,) = problems(TWO_NODES, [f"name={name}", "resources.nodes=1000"])
    assert problem.hint == "shorten the name to 52 characters"


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("storage: {output: {claim: c, path: /output, read_only: true}}", "storage.output.read_only"),
        ("storage: {output: null}", "storage.output"),
        ("storage: {output: {path: /output}}", "storage.output"),
        ("storage: {output: {claim: c, host_path: /x, path: /output}}", "storage.output"),
        ("storage: {data: {claim: d, path: /output/}}", "storage.data.path"),
        ("storage: {data: {claim: d, path: /a/../b}}", "storage.data.path"),
        ("storage: {data: {claim: d, path: /}}", "storage.data.path"),
        ("storage: {extra: {more: {claim: d, path: /output}}}", "storage.extra.more.path"),
        ("rank_table: {mode: discover}", "rank_table.mode"),
        ("rank_table: {mode: operator}\ncluster: {platform: volcano}", "rank_table.mode"),
        ("rank_table: {mode: static}", "rank_table.servers"),
        ("rank_table: {servers: [{node: a, device_ips: []}]}", "rank_table.servers"),
        ("image: {code: configmap}", "image.code"),
        ("image: {ref: a/b:1, tag: x}", "image.tag"),
        ("security: {run_as_user: 1001}", "security.run_as_user"),
        ("budget: {max_total: 10}", "budget.max_total"),
        ("cluster: {tolerations: [{operator: Exists, key: a, value: b}]}", "cluster.tolerations[0].value"),
        ("cluster: {tolerations: [{value: b}]}", "cluster.tolerations[0]"),
        ("hccl: {host_socket_port_range: auto, if_base_port: 50000}", "hccl.if_base_port"),
        ("hccl: {intra_roce: true}", "hccl.intra_roce"),
        ("secrets: {NANOCHAT_RUN_FILE: {secret: a, key: b}}", "secrets.NANOCHAT_RUN_FILE"),
    ],
)
def test_conflicts_are_refused_at_their_field(problems: Problems, line: str, path: str) -> None:
    assert path in [problem.path for problem in problems(CLUSTER + line + "\n")]


def test_shared_memory_fits_into_memory(load: Load, problems: Problems) -> None:
    assert [problem.path for problem in problems(CLUSTER, ["resources.memory=17G"])] == ["resources.shm"]  # 17e9 is less than 16 x 2^30
    load(CLUSTER, ["resources.memory=18G"])


@pytest.mark.parametrize(
    "name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "RANK_TABLE_FILE", "HCCL_IF_IP", "HCCL_CONNECT_TIMEOUT", "HCCL_BUFFSIZE", "NANOCHAT_ATTEMPT"]
)
def test_variables_that_we_set_are_refused(problems: Problems, name: str) -> None:
    assert [problem.path for problem in problems(CLUSTER + f"env: {{{name}: x}}\n")] == [f"env.{name}"]


@pytest.mark.parametrize("name", ["SWANLAB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "client_secret"])
def test_secrets_are_refused_in_plain_environment_and_not_repeated(problems: Problems, name: str) -> None:
    (problem,) = problems(CLUSTER + f"env: {{{name}: hunter2}}\n")
    assert f"secrets: {{{name}: " in (problem.hint or "")
    assert "hunter2" not in str(problem) + str(problem.hint)


def test_passwords_in_addresses_are_seen(load: Load, problems: Problems) -> None:
    (problem,) = problems(CLUSTER + 'env: {HTTP_PROXY: "http://li:hunter2@proxy:3128"}\n')
    assert "hunter2" not in str(problem) + str(problem.hint)
    load(CLUSTER + 'env: {HTTP_PROXY: "http://proxy:3128"}\n')
    advice = load(CLUSTER + 'image: {mirrors: {pip: "https://li:hunter2@pypi.example.com/simple"}}\n').advice
    assert "image.mirrors.pip" in [item.path for item in advice]


def test_ordinary_variables_pass(load: Load) -> None:
    names = ["TASK_QUEUE_ENABLE", "MONKEY", "TOKENIZERS_PARALLELISM", "HCCL_DFS_CONFIG"]
    assert set(load(CLUSTER + "env: {" + ", ".join(f"{name}: 1" for name in names) + "}\n").spec.env) == set(names)


def _static(load_or_problems: object, first: str, second: str) -> object:
    return load_or_problems(TWO_NODES + f"rank_table: {{mode: static, servers: {SERVERS % (first, second)}}}\n")  # type: ignore[operator]


def test_a_static_rank_table_that_fits(load: Load) -> None:
    assert _static(load, IPS_A, IPS_B)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (IPS_A, "is given twice"),
        (IPS_B.replace("10.0.2.7", "-.-.-.-"), "is not an IP address"),
        (IPS_B.replace("10.0.2.7", "'fd00::7'"), "IPv4 and IPv6 are mixed"),
        ("10.0.2.1", "1 addresses for 8 NPUs"),
    ],
)
def test_static_rank_tables_that_hccl_refuses(problems: Problems, second: str, words: str) -> None:
    found = _static(problems, IPS_A, second)
    assert words in " ".join(problem.message for problem in found)  # type: ignore[attr-defined]


def test_sources_need_their_place(problems: Problems) -> None:
    assert [problem.path for problem in problems("name: a\nrun: {data: {source: folder}}\n")] == ["run.data.dir"]
    assert [problem.path for problem in problems("name: a\nrun: {data: {source: manifest}}\n")] == ["run.data.manifest"]
    assert [problem.path for problem in problems(CLUSTER, ["run.data.source=folder", "run.data.dir=text"])] == ["run.data.dir"]


@pytest.mark.parametrize("source", ["toy", "climbmix", "fineweb-edu"])
def test_the_spec_accepts_every_source(load: Load, source: str) -> None:
    assert load(CLUSTER, [f"run.data.source={source}"]).spec.run.data.source == source


def test_a_download_on_idle_npus_is_advised_against(load: Load) -> None:
    loaded = load(CLUSTER, ["run.stages=[data, tokenizer]"])
    assert "run.stages" in [problem.path for problem in loaded.advice]
    price = "price={per_npu_hour: 12.5, currency: CNY, source: contract, date: 2026-11-01}"
    (advice,) = (problem for problem in load(CLUSTER, ["run.stages=[data, tokenizer]", "resources.npus_per_node=8", price]).advice if problem.path == "run.stages")
    assert "holds 8, which costs 100.00 CNY an hour" in advice.message


def test_hccl_variables_cover_every_field_and_give_text() -> None:
    assert set(HcclConfig.variables().values()) == set(HcclConfig.model_fields)
    full = HcclConfig(whitelist_disable=False, buffsize_mb=100, deterministic="strict")
    assert full.env() == {
        "HCCL_CONNECT_TIMEOUT": "1200", "HCCL_EXEC_TIMEOUT": "1836", "HCCL_WHITELIST_DISABLE": "0", "HCCL_BUFFSIZE": "100", "HCCL_DETERMINISTIC": "strict",
    }


@pytest.mark.parametrize("name", ["tiny", "laptop", "d12", "d20", "d26", "d32-2x8"])
def test_every_preset_is_a_good_spec_short_enough_to_read_at_once(name: str) -> None:
    loaded = load_spec(name, environ={"USER": "li"})
    assert loaded.spec.name == name
    lines = [line for line in loaded.text.splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 22
    assert loaded.text.startswith("# ")


def test_node_types_allow_whole_nodes_and_the_spec_knows_them_all() -> None:
    assert all(kind.ranks in kind.counts for kind in NODE_TYPES.values())
    schema = JobSpec.model_json_schema()["$defs"]["ClusterConfig"]["properties"]["node_type"]
    assert set(schema["anyOf"][0]["enum"]) == set(NODE_TYPES)
    assert {npu.value for npu in NpuType} >= {"910B1", "910B2", "910B3", "910B4", "910C"}


@pytest.mark.parametrize(("said", "meant"), [("RMB", "CNY"), ("¥", "CNY"), ("元", "CNY"), ("yuan", "CNY"), ("USB", "USD")])
def test_other_names_of_a_currency_are_understood_in_the_hint(problems: Problems, said: str, meant: str) -> None:
    (problem,) = problems(f"{CLUSTER}price: {{per_npu_hour: 3.0, currency: '{said}', source: offer, date: 2026-11-01}}\n")
    assert (problem.path, problem.hint) == ("price.currency", f"did you mean {meant}?")
