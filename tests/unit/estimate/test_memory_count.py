"""The bytes that the estimate says this trainer keeps from forward to backward, counted again on the trainer itself."""

import pytest
import torch
from estimate_jobs import job

from nanochat.contract import ModelConfig, ModelShape
from nanochat.model import GPT
from nanochat_npu.estimate.memory import COUNTED_ACTIVATION_BYTES, memory

LENGTH, VOCAB = 256, 512


def saved_bytes(depth: int, batch: int) -> int:
    """Bytes of all tensors that the backward pass keeps, each storage once, parameters left out."""
    model = GPT(ModelShape.of(ModelConfig(depth=depth, sequence_len=LENGTH, window_pattern="L"), VOCAB), torch.bfloat16)
    model.init_weights()
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    tokens = torch.randint(0, VOCAB, (batch, LENGTH))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens, tokens)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    return sum(size for place, size in storages.items() if place not in parameters)


def test_the_trainer_keeps_what_the_estimate_counts() -> None:
    depth, width = 8, 512
    per_token = (saved_bytes(depth, 2) - saved_bytes(depth, 1)) / LENGTH
    assert per_token / (depth * width) == pytest.approx(COUNTED_ACTIVATION_BYTES, rel=0.08)


def test_the_seed_configuration_does_not_fit_by_counting_either() -> None:
    found = memory(job(26, 4, 16))
    assert found.counted_bytes is not None
    assert found.usable_bytes is not None
    assert found.counted_bytes > 0.85 * found.usable_bytes
