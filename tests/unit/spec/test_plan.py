"""The plan: everything derived, the same for the same spec, with nothing left open in run.json."""

from datetime import date

import pytest

from nanochat.contract import RunFile
from nanochat_npu.load import load_spec
from nanochat_npu.plan import Plan, make_plan
from nanochat_npu.plan_view import PLAN_SECTIONS, plan_sections, plan_values
from nanochat_npu.tables import Section, cells, to_text

TODAY = date(2026, 11, 30)
PRESETS = ("tiny", "laptop", "d12", "d20", "d26", "d32-2x8")


def _plan(preset: str, *overrides: str) -> Plan:
    return make_plan(load_spec(preset, overrides, environ={"USER": "li"}).spec, TODAY)


@pytest.mark.parametrize(
    ("preset", "world", "accum", "batch", "steps"),
    # Tokens, batch and steps by upstream's rules at ratio 12; parameters are held to upstream in tests/unit/contract.
    [("tiny", 1, 4, 2048, 150), ("laptop", 1, 8, 16384, 2000), ("d12", 1, 16, 524288, 2520), ("d20", 8, 8, 1048576, 4980), ("d26", 4, 16, 1048576, 10510), ("d32-2x8", 16, 16, 2097152, 9600)],
)
def test_presets_derive_what_upstream_would(preset: str, world: int, accum: int, batch: int, steps: int) -> None:
    plan = _plan(preset)
    assert (plan.world_size, plan.horizon.grad_accum, plan.horizon.tokens_per_step, plan.horizon.steps) == (world, accum, batch, steps)


def test_a_derived_batch_is_rounded_to_whole_micro_batches() -> None:
    plan = _plan("d20", "resources.npus_per_node=3")
    assert plan.horizon.tokens_per_step % (8 * 2048 * 3) == 0
    assert abs(plan.horizon.tokens_per_step - 2**20) <= 8 * 2048 * 3 / 2


@pytest.mark.parametrize("preset", PRESETS)
def test_run_json_leaves_nothing_to_be_derived(preset: str) -> None:
    run = _plan(preset).run_file.run
    assert None not in (run.pretrain.tokens_per_step, run.pretrain.steps, run.pretrain.batch_lr_scale, run.pretrain.weight_decay_scaled)
    assert None not in (run.sft.device_batch, run.sft.tokens_per_step, run.eval.device_batch)
    assert run.model.window_pattern != "auto"


def test_rates_that_the_spec_gives_are_not_derived_anew() -> None:
    plan = _plan("d12", "run.pretrain.batch_lr_scale=0.3", "run.pretrain.weight_decay_scaled=0")
    assert (plan.run_file.run.pretrain.batch_lr_scale, plan.run_file.run.pretrain.weight_decay_scaled) == (0.3, 0.0)
    assert (plan.horizon.batch_lr_scale, plan.horizon.weight_decay_scaled) == (0.3, 0.0)


@pytest.mark.parametrize("preset", PRESETS)
def test_run_json_reads_back_to_the_same(preset: str) -> None:
    run_file = _plan(preset).run_file
    assert RunFile.model_validate_json(run_file.model_dump_json()) == run_file


def test_the_same_spec_has_the_same_identity_whatever_says_it() -> None:
    assert _plan("d20").submission_id == _plan("d20", "run.model.depth=20", "run.seed=42").submission_id
    assert _plan("d20").submission_id != _plan("d20", "run.seed=43").submission_id


def test_the_date_changes_nothing_but_itself() -> None:
    spec = load_spec("d20", environ={"USER": "li"}).spec
    assert make_plan(spec, TODAY).run_file == make_plan(spec, date(1999, 1, 1)).run_file


@pytest.mark.parametrize(
    ("overrides", "device"),
    [((), "npu"), (("backend=local",), "auto"), (("resources.npus_per_node=0",), "cpu"), (("backend=local", "resources.npus_per_node=0"), "cpu")],
)
def test_the_device_follows_backend_and_npus(overrides: tuple[str, ...], device: str) -> None:
    world = _plan("d20", *overrides).run_file.world
    assert (world.device, world.size) == (device, 1 if device == "cpu" else 8)


def test_windows_are_used_where_the_npu_gains_from_them() -> None:
    assert _plan("d20").run.model.window_pattern == "SSSL"
    assert _plan("tiny").run.model.window_pattern == "L"
    assert _plan("d20", "run.attention=sdpa").run.model.window_pattern == "L", "torch's own kernel masks a window and saves nothing"
    assert _plan("d20", "run.attention=fused").run.model.window_pattern == "SSSL"
    assert _plan("d20", "run.model.window_pattern=LS").run.model.window_pattern == "LS"


def test_shards_follow_from_the_tokens_only_where_they_are_downloaded() -> None:
    assert _plan("d20").run.data.shards == 106
    assert _plan("d20", "run.data.packing=upstream").run.data.shards == 155
    assert _plan("d20", "run.data.shards=7").run.data.shards == 7
    assert _plan("tiny").run.data.shards is None


def test_the_data_volume_is_where_data_is_looked_for() -> None:
    claim = "storage.data={claim: corpus, path: /data}"
    assert _plan("d20", claim).run.data.dir == "/data"
    assert _plan("d20", claim, "run.data.dir=/data/text").run.data.dir == "/data/text"
    assert _plan("d20", claim, "backend=local").run.data.dir is None


def test_limits_reach_run_json() -> None:
    run_file = _plan("d20", "lifecycle.max_hours=2", "retries.failures=5", "lifecycle.grace_period_s=60", "rank_table.timeout_s=30").run_file
    assert (run_file.budget.max_run_s, run_file.retries_failures, run_file.grace_period_s, run_file.start_timeout_s) == (7200, 5, 60, 30)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_text_fits_eighty_columns(preset: str) -> None:
    assert max(cells(line) for line in to_text(plan_sections(_plan(preset))).splitlines()) <= 80


def test_json_has_the_promised_keys() -> None:
    promised = {"parameters", "flops_per_token", "tokens", "steps", "tokens_per_step", "device_batch", "grad_accum", "world_size", "depth"}
    values = plan_values(_plan("d20"))
    assert promised <= set(values)
    assert values["parameters"] == 896_533_746


def test_others_add_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanochat_npu.plan_view.PLAN_SECTIONS", [*PLAN_SECTIONS, lambda plan: Section("more", "More", rows=(("job", plan.name),))])
    assert "More" in to_text(plan_sections(_plan("tiny")))
