"""default < site file < spec < environment < --set, and every value knows which of them it came from."""

from pathlib import Path

import pytest

from nanochat_npu.errors import SpecSyntaxError, UsageError
from nanochat_npu.load import load_spec
from nanochat_npu.origins import parse_path
from nanochat_npu.site import site_file
from tests.unit.spec.conftest import CLUSTER, Load, Problems

LOGGER = "run.tracking.logger"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site file that an administrator could have written."""
    path = tmp_path / "site.yaml"
    path.write_text(
        "image: {registry: registry.example.com/train}\ncluster: {queue: research, node_selector: {zone: a}}\nrun: {tracking: {logger: wandb}}\n"
    )
    return path


def test_each_layer_wins_over_the_one_below(load: Load, site: Path) -> None:
    text = "name: a\n"
    environ: dict[str, str] = {}
    overrides: list[str] = []
    seen = []
    for step in ("default", "site", "spec", "environment", "set"):
        if step == "site":
            environ["NANOCHAT_NPU_SITE"] = str(site)
        elif step == "spec":
            text += "run: {tracking: {logger: swanlab}}\n"
        elif step == "environment":
            environ["NANOCHAT_LOGGER"] = "none"
        elif step == "set":
            overrides.append(f"{LOGGER}=wandb")
        loaded = load(text, overrides, environ)
        seen.append((loaded.spec.run.tracking.logger, loaded.origins.get(LOGGER, "default")))
    assert seen == [
        ("none", "default"), ("wandb", "site file"), ("swanlab", "spec"), ("none", "environment $NANOCHAT_LOGGER"), ("wandb", "--set"),
    ]


def test_maps_are_merged_and_lists_replaced(load: Load, site: Path) -> None:
    spec = load(CLUSTER + "cluster: {node_selector: {disk: ssd}}\n", ["cluster.namespace=train", "run.stages=[eval]"], {"NANOCHAT_NPU_SITE": str(site)}).spec
    assert spec.cluster.node_selector == {"zone": "a", "disk": "ssd"}
    assert (spec.cluster.queue, spec.cluster.namespace, spec.run.stages) == ("research", "train", ["eval"])


def test_null_takes_a_sites_value_back(load: Load, site: Path) -> None:
    assert load(CLUSTER + "image: {registry: null}\n", environ={"NANOCHAT_NPU_SITE": str(site)}).spec.image.registry is None


def test_a_mistake_in_the_site_file_is_reported_there(load: Load, problems: Problems, site: Path) -> None:
    site.write_text("cluster:\n  queu: research\n")
    (problem,) = problems(CLUSTER, environ={"NANOCHAT_NPU_SITE": str(site)})
    assert (problem.file, problem.line, problem.column, problem.hint) == (str(site), 2, 3, "did you mean queue?")


def test_a_mistake_in_an_override_or_variable_is_reported_there(problems: Problems) -> None:
    found = problems(CLUSTER, ["resources.npus_per_node=x"], {"NANOCHAT_LOGGER": "tensorboard"})
    assert [(problem.file, problem.line) for problem in found] == [("$NANOCHAT_LOGGER", None), ("--set resources.npus_per_node=x", None)]


def test_a_site_file_cannot_name_jobs(load: Load, site: Path) -> None:
    site.write_text("name: everything\n")
    with pytest.raises(SpecSyntaxError, match="belongs into a spec"):
        load(CLUSTER, environ={"NANOCHAT_NPU_SITE": str(site)})


def test_a_site_file_that_is_named_must_be_there(load: Load, tmp_path: Path) -> None:
    with pytest.raises(SpecSyntaxError, match="cannot read the site file"):
        load(CLUSTER, environ={"NANOCHAT_NPU_SITE": str(tmp_path / "none.yaml")})


def test_where_the_site_file_is_looked_for(tmp_path: Path) -> None:
    personal = tmp_path / "nanochat-npu" / "site.yaml"
    assert site_file({"XDG_CONFIG_HOME": str(tmp_path)}) != personal
    personal.parent.mkdir()
    personal.write_text("{}")
    assert site_file({"XDG_CONFIG_HOME": str(tmp_path)}) == personal
    assert site_file({"XDG_CONFIG_HOME": str(tmp_path), "NANOCHAT_NPU_SITE": "/elsewhere.yaml"}) == Path("/elsewhere.yaml")
    assert site_file({"XDG_CONFIG_HOME": str(tmp_path), "NANOCHAT_NPU_SITE": ""}) is None


def test_a_trackers_variables_count_only_for_that_tracker(load: Load) -> None:
    environ = {"SWANLAB_WORKSPACE": "lab", "WANDB_ENTITY": "team", "SWANLAB_MODE": "offline"}
    assert load("name: a\n", environ=environ).spec.run.tracking.workspace is None
    assert load("name: a\n", environ={**environ, "NANOCHAT_LOGGER": "swanlab"}).spec.run.tracking.workspace == "lab"
    tracking = load("name: a\n", ["run.tracking.logger=wandb"], environ).spec.run.tracking
    assert (tracking.workspace, tracking.mode) == ("team", "cloud")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a.b", ("a", "b")), ('cluster.node_selector."a.b/c"', ("cluster", "node_selector", "a.b/c")), ("a[0].b", ("a", 0, "b")), ("", ()), ("a..b", ()),
        (".a", ()), ("a.", ()),
    ],
)
def test_paths_of_overrides(text: str, path: tuple[str | int, ...]) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize("override", ["", "=", "=1", "run.seed", "a[0]=1", "a..b=1"])
def test_overrides_that_are_none_are_a_usage_error(load: Load, override: str) -> None:
    with pytest.raises(UsageError):
        load("name: a\n", [override])


def test_values_of_overrides_are_yaml_and_else_text(load: Load) -> None:
    overrides = ["env.A=a: b", "env.B=x=y", "env.C=[", 'env.D="7"', "env.E=3.10", "run.stages=[data, eval]", 'cluster.node_selector."a.b/c"=d', "run.checkpoint={keep_last: 3}"]
    spec = load(CLUSTER, overrides).spec
    assert spec.env == {"A": "a: b", "B": "x=y", "C": "[", "D": "7", "E": "3.10"}
    assert spec.run.stages == ["data", "eval"]
    assert spec.cluster.node_selector == {"a.b/c": "d"}
    assert spec.run.checkpoint.keep_last == 3


@pytest.mark.parametrize("override", ["name.x=1", "run.stages.x=1", "run.seed=" + "[" * 5000, "run.data.dir=\x00"])
def test_odd_overrides_are_errors_and_no_tracebacks(problems: Problems, override: str) -> None:
    assert problems("name: a\nrun: {stages: [eval], data: {source: folder}}\n", [override])


def test_relative_folders_are_meant_from_the_spec_and_overrides_from_here(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    text = "name: a\nrun: {data: {source: folder, dir: ../text}}\n"
    assert load(text).spec.run.data.dir == str(tmp_path.parent / "text")
    assert load(text, ["run.data.dir=text"]).spec.run.data.dir == str(here / "text")


def test_the_owner_is_the_local_user_as_a_label(load: Load) -> None:
    assert load("name: a\n").spec.owner == "li"
    assert load("name: a\n", environ={"USER": "DOMAIN\\李 li_"}).spec.owner == "DOMAIN-li"
    assert load("name: a\nowner: wang\n").spec.owner == "wang"


def test_a_file_wins_over_a_preset_and_unknown_names_are_usage_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_spec("tiny", environ={"USER": "li"}).spec.name == "tiny"
    (tmp_path / "tiny").write_text("name: mine\n")
    assert load_spec("tiny", environ={"USER": "li"}).spec.name == "mine"
    with pytest.raises(UsageError) as caught:
        load_spec("laptp", environ={})
    assert caught.value.hint == "did you mean laptop?"
    for odd in (str(tmp_path), "", "a\0b", "x" * 5000):
        with pytest.raises(UsageError):
            load_spec(odd, environ={})
