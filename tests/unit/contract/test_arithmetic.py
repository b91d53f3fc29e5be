"""Counts and horizons against the figures of upstream nanochat at 92d63d4 (vocabulary 32,768, sequence 2,048)."""

import math

import pytest

from nanochat.contract import REFERENCE_DEPTH, ModelConfig, ModelShape, horizon, neighbouring_batches, windows

SSSL = ModelConfig(window_pattern="SSSL")

# depth: (total, scaling, FLOPs per token SSSL, L, tokens per step, steps at ratio 12)
TABLE = {
    4: (36_700_242, 11_534_384, 8.022e7, 9.437e7, 262_144, 528),
    6: (73_531_538, 23_199_852, 1.675e8, 1.958e8, 262_144, 1_062),
    8: (125_829_354, 41_943_232, 2.957e8, 3.523e8, 262_144, 1_920),
    10: (195_952_986, 70_123_820, 4.955e8, 5.780e8, 524_288, 1_605),
    12: (286_261_730, 110_100_912, 7.597e8, 8.871e8, 524_288, 2_520),
    14: (399_114_882, 164_233_804, 1.1285e9, 1.2937e9, 524_288, 3_759),
    16: (536_871_738, 234_881_792, 1.5855e9, 1.8119e9, 524_288, 5_376),
    18: (701_891_594, 324_404_172, 2.1800e9, 2.4560e9, 1_048_576, 3_712),
    20: (896_533_746, 435_160_240, 2.8862e9, 3.2401e9, 1_048_576, 4_980),
    22: (1_123_157_490, 569_509_292, 3.7631e9, 4.1783e9, 1_048_576, 6_517),
    24: (1_384_122_122, 729_810_624, 4.7752e9, 5.2848e9, 1_048_576, 8_352),
    26: (1_681_786_938, 918_423_532, 5.9911e9, 6.5738e9, 1_048_576, 10_510),
    28: (2_018_511_234, 1_137_707_312, 7.3657e9, 8.0594e9, 1_048_576, 13_020),
    30: (2_396_654_306, 1_390_021_260, 8.9771e9, 9.7557e9, 1_048_576, 15_907),
    32: (2_818_575_450, 1_677_724_672, 1.0771e10, 1.1677e10, 2_097_152, 9_600),
    40: (4_991_226_666, 3_229_618_880, 2.0479e10, 2.1894e10, 2_097_152, 18_480),
}


def shape(depth: int, pattern: str = "SSSL") -> ModelShape:
    return ModelShape.of(ModelConfig(depth=depth, window_pattern=pattern), 32_768)


@pytest.mark.parametrize("depth", TABLE)
def test_counts_and_horizon_equal_upstreams_table(depth: int) -> None:
    total, scaling, flops_sssl, flops_full, batch, steps = TABLE[depth]
    model = shape(depth)
    assert (model.parameters.total, model.parameters.scaling) == (total, scaling)
    # The table prints four digits: half a unit of the last one is up to 2.6e-4 of the value.
    assert model.flops_per_token == pytest.approx(flops_sssl, rel=3e-4)
    assert shape(depth, "L").flops_per_token == pytest.approx(flops_full, rel=3e-4)
    plan = horizon(model, shape(REFERENCE_DEPTH), world_size=8, device_batch=8, ratio=12, weight_decay=0.28)
    assert (plan.tokens_per_step, plan.steps) == (batch, steps)


def test_short_windows_are_a_quarter_rounded_up_and_the_last_layer_sees_everything() -> None:
    assert windows("SSSL", 6, 2048) == (512, 512, 512, 2048, 512, 2048)
    assert windows("S", 2, 512) == (128, 512)
    assert windows("S", 3, 64) == (64, 64, 64)


def test_a_derived_batch_is_rounded_to_a_multiple_for_worlds_that_are_no_power_of_two() -> None:
    plan = horizon(shape(12), shape(12), world_size=24, device_batch=8, ratio=12, weight_decay=0.28)
    assert plan.tokens_per_step % (24 * 8 * 2048) == 0
    assert plan.grad_accum * 24 * 8 * 2048 == plan.tokens_per_step


def test_a_given_batch_must_divide_and_the_neighbours_are_named() -> None:
    with pytest.raises(ValueError, match="not a multiple of 16384"):
        horizon(shape(4), shape(12), world_size=1, device_batch=8, ratio=12, weight_decay=0.28, tokens_per_step=20_000)
    assert neighbouring_batches(20_000, 16_384) == (16_384, 32_768)
    assert neighbouring_batches(5, 16_384) == (16_384, 16_384)


def test_the_baseline_run_has_upstreams_weight_decay() -> None:
    # The 200-step run of upstream: d4, T 512, vocabulary 4,096, 2,048 tokens a step; its log says 0.367.
    config = ModelConfig(depth=4, sequence_len=512, window_pattern="L")
    plan = horizon(
        ModelShape.of(config, 4096), ModelShape.of(config, 4096, depth=REFERENCE_DEPTH), world_size=1, device_batch=4, ratio=12,
        weight_decay=0.28, tokens_per_step=2048, steps=200,
    )
    assert plan.weight_decay_scaled == pytest.approx(0.367, abs=5e-4)
    assert plan.batch_lr_scale == pytest.approx(math.sqrt(2048 / 2**19))
    assert ModelShape.of(config, 4096).parameters.total == 7_340_114


def test_steps_follow_from_target_flops_when_given() -> None:
    plan = horizon(shape(12), shape(12), world_size=8, device_batch=8, ratio=12, weight_decay=0.28, target_flops=1e18)
    assert plan.steps == round(1e18 / (shape(12).flops_per_token * 524_288))
