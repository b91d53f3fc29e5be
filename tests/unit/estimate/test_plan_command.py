"""``plan`` with its estimate, through the command line."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanochat_npu.main import main
from nanochat_npu.tables import cells

Run = Callable[..., tuple[int, str, str]]
PRICE = ["--set", "price={per_npu_hour: 3.0, currency: CNY, source: contract 7, date: 2026-11-01}"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line here; gives back exit code, stdout, stderr."""

    def call(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(list(args))
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return call


def values(run: Run, *args: str) -> dict[str, Any]:
    code, out, _err = run("plan", *args, "-o", "json")
    assert code == 0, out
    found: dict[str, Any] = json.loads(out)
    return found


def test_the_seed_articles_configuration_does_not_fit_and_the_half_batch_does(run: Run) -> None:
    wrong = values(run, "d26", "--set", "run.pretrain.device_batch=16")["memory"]
    assert (wrong["verdict"], wrong["suggested_device_batch"]) == ("oom", 8)
    assert values(run, "d26", "--set", wrong["suggested_set"])["memory"]["verdict"] == "fits"


def test_the_command_after_a_plan_that_does_not_fit_is_no_submission(run: Run) -> None:
    _code, _out, err = run("plan", "d26", "--set", "run.pretrain.device_batch=16")
    assert "next: nanochat-npu plan d26 --set run.pretrain.device_batch=16 --set run.pretrain.device_batch=8" in err
    _code, _out, err = run("plan", "d26")
    assert "next: nanochat-npu submit d26" in err


@pytest.mark.parametrize("backend", ["volcano", "local"])
def test_what_does_not_fit_is_not_submitted_and_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setenv("NANOCHAT_NPU_HOME", str(tmp_path / "home"))
    batch = {"volcano": "16", "local": "8192"}[backend]
    code, out, err = run("submit", "d26", "--yes", "--set", f"backend={backend}", "--set", f"run.pretrain.device_batch={batch}")
    assert (code, out) == (3, "")
    assert "memory does not fit" in err
    assert "--force" in err
    assert not (tmp_path / "home" / "jobs").exists()


def test_a_job_that_trains_nothing_is_not_refused_for_the_memory_of_training(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets as far as the cluster, of which there is none here."""
    monkeypatch.setenv("NANOCHAT_NPU_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    words = ("d26", "--set", "run.pretrain.device_batch=16", "--set", "run.stages=[data, tokenizer]")
    assert run("plan", *words)[2].splitlines()[-1] == f"next: nanochat-npu submit {shlex.join(words)}"
    code, _out, err = run("submit", *words, "--yes")
    assert (code, "memory does not fit" in err) == (6, False), err


def test_force_submits_what_does_not_fit(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets as far as the cluster, of which there is none here."""
    monkeypatch.setenv("NANOCHAT_NPU_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    code, _out, err = run("submit", "d26", "--force", "--set", "run.pretrain.device_batch=16")
    assert code == 6, err
    assert "memory does not fit" not in err


def test_json_has_the_keys_that_scripts_rely_on(run: Run) -> None:
    found = values(run, "d26", *PRICE)
    assert set(found["memory"]) >= {"verdict", "peak_gb", "usable_gb", "parts", "suggested_device_batch"}
    assert set(found["time_h"]) == {"p10", "p50", "p90"}
    assert set(found["cost"]) >= {"p10", "p50", "p90", "currency"}
    assert found["tier"] == "C"
    assert "uncalibrated" in found["basis"]
    assert {"key", "hours", "hours_frac", "money", "set"} <= set(found["levers"][0])
    assert sum(term["seconds"] for term in found["terms"]) + found["allowance_s"] == pytest.approx(found["time_h"]["p50"] * 3600, rel=1e-3)


def test_without_a_price_there_is_no_cost_and_never_a_zero(run: Run) -> None:
    assert values(run, "d26")["cost"] is None
    _code, out, _err = run("plan", "d26")
    assert "price not set" in out
    assert " 0 CNY" not in out


def test_people_get_80_columns_at_most(run: Run) -> None:
    for args in (["d26", *PRICE], ["d32-2x8", "--prices", "public"], ["d32-2x8", "--set", "estimate.stack=unknown"], ["tiny"]):
        _code, out, _err = run("plan", *args)
        block = out[out.index("Memory") :]
        assert max(map(cells, block.splitlines())) <= 80, max(block.splitlines(), key=cells)


def test_what_was_never_measured_is_called_uncalibrated_in_the_table(run: Run) -> None:
    _code, out, _err = run("plan", "d32-2x8")
    assert "Time (tier C: uncalibrated" in out
    assert "links between nodes: uncalibrated" in " ".join(out.split())


def test_an_unknown_stack_shows_a_range_and_no_point(run: Run) -> None:
    found = values(run, "d20", *PRICE, "--set", "estimate.stack=unknown")
    assert found["time_h"]["p50"] is None
    assert found["cost"]["p50"] is None
    assert found["tier"] == "D"
    _code, out, _err = run("plan", "d20", "--set", "estimate.stack=unknown")
    assert " / – / " in out


def test_a_price_by_flag_carries_its_currency(run: Run) -> None:
    assert values(run, "d20", "--price", "0.7usd")["cost"]["currency"] == "USD"


@pytest.mark.parametrize("text", ["3.0RMB", "3.0rmb", "¥3.0", "3.0元", "3.0 yuan"])
def test_other_names_of_the_yuan_are_understood_in_the_hint(run: Run, text: str) -> None:
    code, _out, err = run("plan", "d20", "--price", text)
    assert code == 2
    assert "did you mean 3.0CNY?" in err


@pytest.mark.parametrize("text", ["free", "-3CNY", "3.0", "3.0XXX"])
def test_a_price_that_is_none_is_refused(run: Run, text: str) -> None:
    code, _out, err = run("plan", "d20", f"--price={text}")
    assert code == 2
    assert "--price" in err


def test_a_negative_price_is_refused_with_its_place(run: Run, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("name: x\nprice: {per_npu_hour: -1, currency: CNY, source: me, date: 2026-01-01}\n")
    code, _out, err = run("plan", str(spec))
    assert code == 3
    assert "job.yaml:2:" in err


@pytest.mark.parametrize(("field", "value", "named"), [("currency", "XQX", "XQX"), ("date", "2199-01-01", "2199-01-01"), ("low", "4.0", "4.0"), ("high", "1.0", "1.0")])
def test_an_impossible_price_is_refused_by_name(run: Run, field: str, value: str, named: str) -> None:
    code, _out, err = run("plan", "d20", *PRICE, "--set", f"price.{field}={value}")
    assert code == 3
    assert named in err


def table(tmp_path: Path, *entries: str) -> str:
    path = tmp_path / "prices.yaml"
    path.write_text("prices:\n" + "".join(f"  - {{{entry}}}\n" for entry in entries))
    return str(path)


GOOD = "npu: 910B3, per_npu_hour: 2.5, currency: CNY, source: list, date: 2026-10-01"


def test_a_price_table_gives_the_newest_price_of_the_npu(run: Run, tmp_path: Path) -> None:
    path = table(tmp_path, GOOD, GOOD.replace("2.5", "2.7").replace("10-01", "11-01"), GOOD.replace("910B3", "910B2").replace("2.5", "9"))
    assert values(run, "d20", "--prices", path)["cost"]["price"]["per_npu_hour"] == 2.7


def test_the_public_table_says_that_it_is_not_official(run: Run) -> None:
    price = values(run, "d20", "--prices", "public")["cost"]["price"]
    assert (price["low"], price["high"]) == (2.3, 5.6)
    assert "not an official price" in price["source"]


@pytest.mark.parametrize(
    ("entry", "named"), [(GOOD.replace("CNY", "XQX"), "XQX"), (GOOD.replace("2026-10-01", "2199-01-01"), "2199"), (GOOD.replace("2.5", "-1"), "prices"), ("npu: 910B3", "per_npu_hour")],
)
def test_a_wrong_price_table_is_refused_with_file_and_line(run: Run, tmp_path: Path, entry: str, named: str) -> None:
    code, _out, err = run("plan", "d20", "--prices", table(tmp_path, entry))
    assert code == 3
    assert named in err
    assert "prices.yaml:2" in err


def test_a_price_table_without_the_npu_says_what_it_has(run: Run, tmp_path: Path) -> None:
    code, _out, err = run("plan", "d20", "--prices", table(tmp_path, GOOD.replace("910B3", "910B4")))
    assert code == 2
    assert "910B4" in err


WARNINGS = {
    "saves_only_at_end": ["run.checkpoint.every_minutes=null"],
    "data_on_npus": ["run.stages=[data, pretrain]"],
    "world_not_power_of_two": ["resources.npus_per_node=6"],
    "vocab_does_not_divide": ["resources.npus_per_node=6"],
    "roce_share": ["resources.nodes=2"],
    "whole_nodes_billed": ["resources.npus_per_node=4", PRICE[1], "price.bill=nodes"],
    "old_price": [PRICE[1], "price.date=2025-01-01"],
    "stage_memory": ["run.stages=[pretrain, rl]", "run.rl.device_batch=64"],
    "own_conversations": ["run.stages=[pretrain, sft]", "run.sft.data=[/data/mine.jsonl]"],
}


@pytest.mark.parametrize("key", WARNINGS)
def test_what_will_cost_money_later_is_said_in_a_sentence(run: Run, key: str) -> None:
    found = values(run, "d20", *(part for override in WARNINGS[key] for part in ("--set", override)))
    (warning,) = [warning for warning in found["warnings"] if warning["key"] == key]
    assert len(warning["text"]) > 20
    assert not values(run, "d12")["warnings"] or key not in {w["key"] for w in values(run, "d12", "--set", "run.stages=[pretrain]")["warnings"]}


def test_over_budget_is_shown_and_leaves_with_8(run: Run) -> None:
    code, out, err = run("plan", "d26", *PRICE, "--set", "budget.max_total=100")
    assert code == 8
    assert "Biggest levers" in out
    assert "budget.max_total" in err
    assert run("plan", "d26", *PRICE, "--set", "budget.max_total=100000")[0] == 0


def test_over_budget_is_one_json_object(run: Run) -> None:
    code, out, _err = run("plan", "d26", *PRICE, "--set", "budget.max_total=100", "-o", "json")
    assert code == 8
    assert "budget.max_total" in json.loads(out)["over_budget"][0]


def test_over_hours_leaves_with_8_by_the_quantile_that_the_spec_names(run: Run) -> None:
    hours = values(run, "d20")["time_h"]
    between = (hours["p50"] + hours["p90"]) / 2
    assert run("plan", "d20", "--set", f"budget.max_hours={between}")[0] == 8  # basis p90 is the default
    assert run("plan", "d20", "--set", f"budget.max_hours={between}", "--set", "budget.basis=p50")[0] == 0


def test_submit_refuses_what_the_budget_forbids_before_anything_is_made(run: Run, tmp_path: Path) -> None:
    code, _out, _err = run("submit", "tiny", "--yes", "--set", "budget.max_hours=0.001")
    assert code == 8
    assert not (tmp_path / "home" / "jobs").exists()


def test_money_becomes_the_seconds_that_the_trainer_may_take() -> None:
    from datetime import date

    from nanochat_npu.load import load_spec
    from nanochat_npu.plan import make_plan

    spec = load_spec("d20", [PRICE[1], "budget.max_total=240", "budget.max_hours=50"]).spec
    assert make_plan(spec, date(2026, 11, 30)).run_file.budget.max_run_s == pytest.approx(240 / (8 * 3.0) * 3600)


def test_a_sweep_has_a_line_for_each_value(run: Run) -> None:
    found = values(run, "d20", "--sweep", "run.model.depth=12,16,20")["sweep"]
    assert [point["value"] for point in found] == ["12", "16", "20"]
    hours = [point["time_h"]["p50"] for point in found]
    assert hours == sorted(hours)


def test_an_impossible_value_of_a_sweep_is_left_out_and_said(run: Run) -> None:
    code, out, err = run("plan", "d20", "--sweep", "run.model.depth=12,0")
    assert code == 0
    assert "run.model.depth=0 is left out" in err
    assert "Sweep" in out
    assert run("plan", "d20", "--sweep", "run.model.depth=0")[0] == 2
    assert run("plan", "d20", "--sweep", "12")[0] == 2


def test_zero_nodes_are_refused(run: Run) -> None:
    assert run("plan", "d20", "--set", "resources.nodes=0")[0] == 3


def test_two_specs_side_by_side(run: Run) -> None:
    code, out, _err = run("plan", "d20", "--compare", "d26")
    assert code == 0
    assert "d20 → d26" in out
    assert "%" in out


def test_two_currencies_are_shown_and_never_subtracted(run: Run, tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    for path, currency in ((one, "CNY"), (two, "USD")):
        path.write_text(
            f"name: {path.stem}\nrun: {{model: {{depth: 12}}, pretrain: {{device_batch: 8}}}}\nresources: {{npus_per_node: 8, npu: 910B3}}\n"
            f"backend: volcano\nstorage: {{output: {{claim: c, path: /output}}, data: {{claim: d, path: /data}}}}\n"
            f"price: {{per_npu_hour: 3.0, currency: {currency}, source: s, date: 2026-11-01}}\n"
        )
    code, out, err = run("plan", str(one), "--compare", str(two))
    assert code == 0, err
    lines = [line for line in out.splitlines() if "CNY/USD" in line]
    assert len(lines) == 3
    assert all("%" not in line for line in lines)


def test_a_sweep_is_drawn(run: Run, tmp_path: Path) -> None:
    for name, head in (("plot.svg", b"<?xml"), ("plot.png", b"\x89PNG")):
        path = tmp_path / name
        assert run("plan", "d20", *PRICE, "--sweep", "run.model.depth=12,16,20", "--plot", str(path))[0] == 0
        assert path.read_bytes().startswith(head)
    first = (tmp_path / "plot.svg").read_bytes()
    run("plan", "d20", *PRICE, "--sweep", "run.model.depth=12,16,20", "--plot", str(tmp_path / "again.svg"))
    assert (tmp_path / "again.svg").read_bytes() == first


def test_a_plot_of_another_kind_is_refused(run: Run, tmp_path: Path) -> None:
    assert run("plan", "d20", "--plot", str(tmp_path / "plot.gif"))[0] == 2


def test_every_figure_can_be_explained(run: Run) -> None:
    _code, names, _err = run("plan", "d26", "--explain-estimate", "list")
    for name in names.split():
        code, out, _err = run("plan", "d26", "--explain-estimate", name)
        assert code == 0
        assert "formula" in out
        assert "source" in out or name in ("report.write", "cost")
    assert run("plan", "d26", "--explain-estimate", "luck")[0] == 2
    assert run("plan", "d26", "--explain-estimate", "communication")[1] == run("plan", "d26", "--explain-estimate", "pretrain.communication")[1]


def test_options_that_exclude_each_other(run: Run) -> None:
    assert run("plan", "d20", "--compare", "d26", "--sweep", "run.model.depth=1,2")[0] == 2


def test_markdown_is_a_table(run: Run) -> None:
    _code, out, _err = run("plan", "d26", "-o", "markdown")
    assert "| --- |" in out
    assert "### Memory" in out


def test_a_plan_file_is_used_as_it_is(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert run("plan", "tiny", "--set", "run.pretrain.steps=5", "--to", str(path))[0] == 0
    code, out, _err = run("submit", str(path), "--dry-run", "-o", "json")
    assert code == 0
    assert '\\"steps\\": 5' in out
    assert run("submit", str(path), "--dry-run", "--set", "run.pretrain.steps=6")[0] == 2


def planned(run: Run, tmp_path: Path) -> tuple[Path, Path]:
    spec, path = tmp_path / "job.yaml", tmp_path / "plan.json"
    spec.write_text("name: x\nrun: {model: {depth: 2}, data: {source: toy}}\nprice: {per_npu_hour: 3.0, currency: CNY, source: s, date: 2026-11-01}\n")
    assert run("plan", str(spec), "--to", str(path))[0] == 0
    return spec, path


@pytest.mark.parametrize(("old", "new", "named"), [("depth: 2", "depth: 4", "the spec"), ("3.0", "3.5", "the price")])
def test_a_plan_file_is_refused_when_something_moved_and_says_what(run: Run, tmp_path: Path, old: str, new: str, named: str) -> None:
    spec, path = planned(run, tmp_path)
    assert run("submit", str(path), "--dry-run")[0] == 0
    spec.write_text(spec.read_text().replace(old, new))
    code, _out, err = run("submit", str(path), "--dry-run")
    assert code == 3
    assert named in err


def test_a_plan_file_of_another_version_is_refused_by_name(run: Run, tmp_path: Path) -> None:
    _spec, path = planned(run, tmp_path)
    value = json.loads(path.read_text())
    value["versions"]["torch_npu"] = "2.9.0"
    path.write_text(json.dumps(value))
    code, _out, err = run("submit", str(path), "--dry-run")
    assert code == 3
    assert "torch_npu 2.9.0" in err


def test_an_edited_plan_file_is_refused(run: Run, tmp_path: Path) -> None:
    _spec, path = planned(run, tmp_path)
    path.write_text(path.read_text().replace('"depth": 2', '"depth": 3'))
    code, _out, err = run("submit", str(path), "--dry-run")
    assert code == 3
    assert "edited" in err


def test_a_broken_plan_file_is_an_error_without_a_traceback(run: Run, tmp_path: Path) -> None:
    _spec, path = planned(run, tmp_path)
    value = json.loads(path.read_text())
    del value["spec"]
    path.write_text(json.dumps(value))
    assert run("submit", str(path), "--dry-run")[0] == 2


def test_a_corrupt_ledger_downgrades_and_is_said(run: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "ledger.db").write_bytes(b"rubbish" * 1000)
    code, _out, err = run("plan", "d20")
    assert code == 0
    assert "past jobs are not counted" in err
    assert run("cost", "report")[0] == 6


def test_an_empty_ledger_is_no_error(run: Run) -> None:
    code, _out, err = run("cost", "report")
    assert code == 0
    assert "empty" in err
    assert run("cost", "report", "--job", "nobody")[0] == 6


def test_the_estimate_needs_neither_torch_nor_numpy() -> None:
    script = (
        "import sys\nfrom nanochat_npu.main import main\n"
        "try:\n    main(['plan', 'd26', '-o', 'json'])\nexcept SystemExit:\n    pass\n"
        "bad = {'torch', 'numpy', 'kubernetes', 'matplotlib'} & set(sys.modules)\nsys.exit(f'imported {bad}' if bad else 0)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_job_that_ends_beyond_the_calendar_is_planned_without_a_date(run: Run) -> None:
    code, out, _err = run("plan", "d26", "--set", "run.pretrain.steps=999999999999")
    assert code == 0
    assert "– / – / –" in out


@pytest.mark.parametrize("setting", ["run.pretrain.target_param_data_ratio=1e308", "run.pretrain.target_flops=1e300", "run.model.depth=1000"])
def test_what_no_computer_could_train_is_refused_by_name(run: Run, setting: str) -> None:
    code, _out, err = run("plan", "d26", "--set", setting)
    assert code == 3
    assert f"{setting.partition('=')[0]}: " in err
    assert "is more than" in err


def test_the_command_after_a_plan_can_be_pasted_into_a_shell(run: Run) -> None:
    _code, _out, err = run("plan", "d26", *PRICE)
    (line,) = [line for line in err.splitlines() if line.startswith("next: ")]
    words = shlex.split(line.removeprefix("next: "))
    assert words[:3] == ["nanochat-npu", "submit", "d26"]
    assert words[3:] == PRICE


def test_the_command_after_a_plan_with_a_price_keeps_it_and_submit_takes_it(run: Run) -> None:
    _code, _out, err = run("plan", "d26", "--price", "3.0CNY")
    assert "next: nanochat-npu submit d26 --price 3.0CNY" in err
    assert run("submit", "d26", "--yes", "--price", "3.0CNY", "--set", "budget.max_total=100")[0] == 8
    assert run("submit", "d26", "--yes", "--price", "3.0XYZ")[0] == 2


def test_over_budget_no_submission_is_proposed(run: Run) -> None:
    _code, _out, err = run("plan", "d26", *PRICE, "--set", "budget.max_total=100")
    assert "next: " not in err


def test_an_amount_in_a_form_that_is_not_read_is_not_turned_into_another_amount(run: Run) -> None:
    code, _out, err = run("plan", "d26", "--price", "1e3CNY")
    assert code == 2
    assert "did you mean" not in err


def test_two_prices_at_once_are_refused(run: Run) -> None:
    assert run("plan", "d26", "--price", "3.0CNY", "--prices", "public")[0] == 2


def test_a_plot_without_a_sweep_goes_over_nodes_or_over_the_npus_of_a_part_of_one(run: Run, tmp_path: Path) -> None:
    for preset, key in (("d20", "resources.nodes"), ("d26", "resources.npus_per_node")):
        code, out, _err = run("plan", preset, "--plot", str(tmp_path / "plot.svg"), "-o", "json")
        assert code == 0
        points = json.loads(out)["sweep"]
        assert [(point["key"], point["value"]) for point in points] == [(key, value) for value in ("1", "2", "4", "8")]


def test_json_has_all_levers_and_people_see_the_biggest(run: Run) -> None:
    settings = ["--set", "resources.npus_per_node=4", "--set", "run.model.window_pattern=SSSL", *PRICE]
    found = {lever["key"] for lever in values(run, "d12", *settings)["levers"]}
    assert found >= {"fused", "whole_node", "eval_interval", "batch", "window"}
    _code, out, _err = run("plan", "d12", *settings)
    assert len(out[out.index("Biggest levers") :].split("\n\n")[0].splitlines()) == 2 + 5


BAND = "price={per_npu_hour: 3.0, currency: CNY, source: contract 7, date: 2026-11-01, low: 2, high: 4, bill: nodes, storage_gb_month: 0.5}"


def test_a_price_by_flag_replaces_the_price_with_its_bounds_and_nothing_else(run: Run) -> None:
    cost = values(run, "d26", "--set", BAND, "--price", "10CNY")["cost"]
    assert (cost["price"]["per_npu_hour"], cost["price"]["low"], cost["price"]["high"], cost["price"]["source"]) == (10.0, None, None, "--price")
    assert [line["key"] for line in cost["lines"]] == ["npus", "storage"]
    hours = values(run, "d26", "--set", BAND)["time_h"]["p50"]
    assert cost["lines"][0]["quantity"] == pytest.approx(8 * hours, rel=1e-3)  # bill: nodes stays, four NPUs pay for eight


def test_a_price_by_flag_does_not_change_the_currency_of_other_prices(run: Run) -> None:
    code, _out, err = run("plan", "d26", "--set", BAND, "--price", "10USD")
    assert code == 2
    assert "price.storage_gb_month in CNY" in err
    assert values(run, "d26", "--set", BAND, "--set", "price.storage_gb_month=null", "--price", "10USD")["cost"]["currency"] == "USD"


def test_a_budget_is_held_with_the_price_of_a_table(run: Run, tmp_path: Path) -> None:
    assert run("plan", "d20", "--set", "budget.max_total=10", "--prices", table(tmp_path, GOOD))[0] == 8


def test_a_price_by_flag_completes_a_price_that_is_there_in_part(run: Run) -> None:
    lines = values(run, "d26", "--price", "0.5CNY", "--set", "price.per_kwh=0.7")["cost"]["lines"]
    assert [line["key"] for line in lines] == ["npus", "electricity"]


@pytest.mark.parametrize("args", [["--sweep", "run.model.depth=12,20"], ["--compare", "d32-2x8"]])
def test_tables_of_several_plans_say_uncalibrated_too_and_fit_the_screen(run: Run, args: list[str]) -> None:
    _code, out, _err = run("plan", "d26", *PRICE, *args)
    assert out.count("C uncalibrated") == 2
    assert max(map(cells, out.splitlines())) <= 80


def test_explanations_fit_the_screen(run: Run) -> None:
    _code, names, _err = run("plan", "d32-2x8", "--explain-estimate", "list")
    for name in names.split():
        _code, out, _err = run("plan", "d32-2x8", "--explain-estimate", name)
        assert max(map(cells, out.splitlines())) <= 80, out


def test_markdown_breaks_no_sentence_into_rows(run: Run) -> None:
    _code, out, _err = run("plan", "d26", "-o", "markdown")
    assert "| basis | uncalibrated: two eager nanochat runs on 910C dies, scaled to the peak of 910B3; no nanochat run on a 910B is published |" in out
    assert not [line for line in out.splitlines() if line.startswith("|  | ") and line != "|  |  |"]


def test_an_unknown_stack_has_no_point_anywhere(run: Run) -> None:
    speed = values(run, "d20", "--set", "estimate.stack=unknown")["speed"]
    assert (speed["step_s"], speed["tokens_per_s"], speed["mfu_frac"]) == (None, None, None)
    assert speed["tokens_per_s_range"][1] > 2 * speed["tokens_per_s_range"][0]
    (point,) = values(run, "d20", *PRICE, "--set", "estimate.stack=unknown", "--sweep", "run.model.depth=20")["sweep"]
    assert (point["time_h"]["p50"], point["tokens_per_s"], point["cost"]["p50"]) == (None, None, None)


def test_a_plot_marks_what_does_not_fit_and_says_whose_price_it_is(run: Run, tmp_path: Path) -> None:
    drawn = {}
    for name, args in {"depth": ["--sweep", "run.model.depth=20,32"], "small": ["--sweep", "run.model.depth=12,20"], "words": ["--sweep", "estimate.stack=eager,fused,unknown"]}.items():
        path = tmp_path / f"{name}.svg"
        assert run("plan", "d20", *PRICE, *args, "--plot", str(path))[0] == 0
        drawn[name] = path.read_text()
    assert "does not fit in memory" in drawn["depth"]
    assert "does not fit in memory" not in drawn["small"]
    assert all("contract 7, 2026-11-01" in text and "uncalibrated" in text for text in drawn.values())


def test_a_plan_file_can_be_looked_at_and_takes_no_other_price(run: Run, tmp_path: Path) -> None:
    _spec, path = planned(run, tmp_path)
    found = values(run, str(path))
    assert (found["job"], found["depth"]) == ("x", 2)
    for flag, value in (("--price", "1CNY"), ("--prices", "public")):
        for command in ("plan", "submit"):
            code, _out, err = run(command, str(path), flag, value)
            assert code == 2
            assert "as it is" in err
    for flags in (("--sweep", "run.model.depth=2,4"), ("--plot", str(tmp_path / "plot.svg"))):
        code, _out, err = run("plan", str(path), *flags)
        assert code == 2
        assert "as it is" in err


def test_a_calibration_of_another_processor_is_not_used_and_named(run: Run, tmp_path: Path) -> None:
    found = values(run, "tiny")
    record = {
        "format": 1, "chip": "cpu", "stack": "eager", "depth": 2, "width": 128, "device_batch": 4, "tokens_per_step": 2048, "sequence_len": 128, "vocab": 512, "world_size": 1,
        "nodes": 1, "window_pattern": "L", "step_s": 0.1, "mean_step_s": 0.1, "steps": 30, "measured_on": "2026-11-01", "host": "elsewhere",
    }
    path = tmp_path / "calibration.json"
    tiers = {}
    for name, versions in {"other": {"processor": "Some CPU x 1"}, "unnamed": {}}.items():
        path.write_text(json.dumps({**record, "window_pattern": found["window_pattern"], "versions": versions}))
        result = values(run, "tiny", "--calibration", str(path))
        tiers[name] = (result["tier"], any("another processor (Some CPU x 1)" in warning["text"] for warning in result["warnings"]))
    assert tiers == {"other": ("C", True), "unnamed": ("A", False)}


def test_a_plan_file_that_cannot_be_written_is_one_json_object_and_no_plan(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "plan.json"
    code, out, _err = run("plan", "tiny", "-o", "json", "--to", str(target))
    assert code == 2
    assert str(target) in json.loads(out)["error"]["message"]
    code, out, err = run("plan", "tiny", "--to", str(target))
    assert (code, out) == (2, "")
    assert "next: " not in err
