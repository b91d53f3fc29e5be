"""The whole of training on a simulated NPU: the same numbers as on a CPU, nothing that a 910B refuses, no silent fp32."""

import contextlib
import dataclasses
import io
import json
from pathlib import Path

import pytest
import simulated_npu
import torch
from simulated_npu import NPU, Refusal, computing_npu, fake_npu

from nanochat import attention
from nanochat.attention import self_test
from nanochat.checkpoint_files import load_weights, read_manifest
from nanochat.context import Context
from nanochat.contract import ModelConfig, ModelShape, RunConfig, RunFile, layout
from nanochat.device import Device, Kind
from nanochat.distributed import Communicator
from nanochat.engine import Engine, Sampling
from nanochat.errors import BadConfig
from nanochat.eventlog import EventLog
from nanochat.heartbeat import Heartbeat
from nanochat.model import GPT, ROTARY_SPAN, Linear, build
from nanochat.optim import LearningRates, build_optimizer
from nanochat.optim.kernels import adamw_update
from nanochat.peers import Peers
from nanochat.schedule import PretrainSchedule
from nanochat.stages import run_stages
from nanochat.stopping import StopSignal

SHAPE = ModelShape.of(ModelConfig(depth=4, aspect_ratio=16, head_dim=16, sequence_len=160, window_pattern="SSSL"), 70)
SCHEDULE = PretrainSchedule(10, warmup_steps=2, weight_decay=0.1)


@pytest.fixture(autouse=True)
def _torch_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated_npu.install(monkeypatch)


def step(model: GPT, steps: int = 1) -> list[float]:
    """Losses of a few updates on the model's device."""
    optimizer = build_optimizer(model, LearningRates(batch_scale=0.1))
    losses = []
    for i in range(steps):
        ids = torch.randint(70, (2, 161), generator=torch.Generator().manual_seed(i)).to(model.device)
        loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step(SCHEDULE.at(i))
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_gives_the_numbers_of_a_cpu(dtype: torch.dtype) -> None:
    plain = build(SHAPE, dtype, "cpu", 42)
    plain.use_kernel("sdpa")
    expected = [loss.item() for loss in step(plain, 3)]
    with computing_npu() as seen:
        got = [loss.item() for loss in step(build(SHAPE, dtype, NPU, 42), 3)]
    assert seen.operations > 1000, "the simulated device did the work"
    assert got == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_matrix_product_is_in_the_compute_dtype(dtype: torch.dtype) -> None:
    with fake_npu() as seen:
        step(build(SHAPE, dtype, NPU, 42))
    assert len(seen.gemms) > 100 and seen.gemm_dtypes() == {dtype}


def test_a_large_model_steps_without_a_refusal() -> None:
    shape = ModelShape.of(ModelConfig(depth=4, window_pattern="SSSL"), 32_768)
    with fake_npu() as seen:
        model = build(shape, torch.bfloat16, NPU, 42)
        ids = torch.zeros(2, 2048, dtype=torch.long, device=NPU)
        model(ids, ids).backward()
        build_optimizer(model, LearningRates()).step(SCHEDULE.at(0))
    assert seen.operations > 1000


def test_generation_gives_the_tokens_of_a_cpu() -> None:
    ids = torch.randint(70, (2, 30), generator=torch.Generator().manual_seed(3))

    def greedy(model: GPT) -> list[list[int]]:
        cache, feed, said = model.new_cache(2), ids.to(model.device), []
        with torch.no_grad():
            for _ in range(12):
                feed = model(feed, cache=cache)[:, -1].argmax(-1, keepdim=True)
                said.append(feed.flatten().tolist())
        return said

    with computing_npu():
        got = greedy(build(SHAPE, torch.float32, NPU, 7))
    assert got == greedy(build(SHAPE, torch.float32, "cpu", 7))


# -- the stages -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SimulatedDevice(Device):
    """Answers what a driver would answer."""

    def peak_memory_bytes(self) -> int:
        return 1

    def synchronise(self) -> None:
        """Nothing is queued."""


def run_job(folder: Path, kind: Kind) -> list[dict[str, object]]:
    """Events of tokenizer and pretraining on a device."""
    run = RunConfig.model_validate({
        "stages": ["tokenizer", "pretrain"], "dtype": "float32", "data": {"source": "toy", "toy_documents": 300},
        "tokenizer": {"vocab_size": 300}, "model": {"depth": 2, "aspect_ratio": 16, "head_dim": 16, "sequence_len": 64, "window_pattern": "L"},
        "pretrain": {
            "device_batch": 2, "tokens_per_step": 256, "steps": 3, "batch_lr_scale": 0.1, "weight_decay_scaled": 0.1, "eval_tokens": 512,
        },
    })
    out = io.StringIO()
    device = SimulatedDevice(kind, 0, "Ascend910B3", "simulated")
    context = Context(
        RunFile(job="sim", run=run), folder, device, Peers(), Communicator(), EventLog(None, stream=out), StopSignal(), Heartbeat(None, 0, 1)
    )
    run_stages(context)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def values(events: list[dict[str, object]], kind: str, key: str) -> list[object]:
    return [event[key] for event in events if event["event"] == kind]


def test_stages_with_evaluation_sampling_and_checkpoint_run_as_on_a_cpu(tmp_path: Path) -> None:
    plain = run_job(tmp_path / "cpu", Kind.CPU)
    with computing_npu() as seen:
        simulated = run_job(tmp_path / "npu", Kind.NPU)
    assert seen.operations > 1000 and not values(simulated, "warning", "message")
    assert len(values(plain, "step", "loss")) == 3 and values(plain, "sample", "text")
    assert values(simulated, "step", "loss") == pytest.approx(values(plain, "step", "loss"), rel=1e-5)
    assert values(simulated, "eval", "value") == pytest.approx(values(plain, "eval", "value"), rel=1e-5)
    assert values(simulated, "sample", "text") == values(plain, "sample", "text")
    assert all(0 < mfu < 1 for mfu in values(simulated, "step", "mfu_frac"))
    saved, expected = (load_weights(read_manifest(layout.checkpoint_dir(tmp_path / name, "pretrain", 3))) for name in ("npu", "cpu"))
    for name, tensor in expected.items():
        assert saved[name].device.type == "cpu"
        assert (saved[name] - tensor).norm() <= 0.01 * tensor.norm(), name  # scalars' first gradients are rounding noise


# -- planted faults: each would pass on a CPU ------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [fake_npu, computing_npu])
def test_fault_a_cpu_scalar_beside_an_npu_tensor(device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's way to change a learning rate without compiling anew: 0-D tensors on the CPU."""

    def with_scalar_tensors(p, g, m, v, rule, lr, step) -> None:
        adamw_update(p, g, m, v, rule, torch.tensor(lr), step)  # type: ignore[arg-type]

    monkeypatch.setattr("nanochat.optim.units.adamw_update", with_scalar_tensors)
    with device(), pytest.raises(Refusal, match="0-D CPU tensor beside an NPU tensor"):
        step(build(SHAPE, torch.float32, NPU, 42))


@pytest.mark.parametrize("device", [fake_npu, computing_npu])
def test_fault_a_rotary_table_worked_out_in_fp64(device, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_fp64(self: GPT) -> None:
        position = torch.arange(ROTARY_SPAN * self.shape.sequence_len, dtype=torch.float64, device=self.device)
        angle = torch.outer(position, 1e5 ** -torch.linspace(0, 1, self.shape.head_dim // 2, dtype=torch.float64, device=self.device))
        self.cos, self.sin = (t[None, :, None, :].to(self.dtype) for t in (angle.cos(), angle.sin()))

    monkeypatch.setattr(GPT, "_set_rotary_tables", lambda self: None if self.lm_head.weight.is_meta else in_fp64(self))
    with device(), pytest.raises(Refusal, match="float64 on an NPU"):
        build(SHAPE, torch.float32, NPU, 42)


def test_fault_rotary_positions_as_complex_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def complex_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, gain: float) -> torch.Tensor:
        turned = torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * torch.complex(cos, -sin)
        return gain * torch.view_as_real(turned).flatten(-2)

    monkeypatch.setattr("nanochat.model.rotary_norm", complex_rotary)
    with fake_npu(), pytest.raises(Refusal, match="complex64"):
        step(build(SHAPE, torch.float32, NPU, 42))


def test_fault_a_mask_on_the_wrong_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_hidden_above_diagonal", lambda device: torch.ones(2048, 2048, dtype=torch.bool).triu_(1))
    for device in (fake_npu, computing_npu):
        with device(), pytest.raises(RuntimeError, match=r"devices|npu:0 and on cpu"):
            step(build(SHAPE, torch.float32, NPU, 42))


def inverted(device: torch.device) -> torch.Tensor:
    return torch.ones(2048, 2048, dtype=torch.bool, device=device).tril_()


@pytest.mark.parametrize("fault", ["polarity", "scale", "no mask", "mode 0"])
def test_fault_a_fused_kernel_called_wrongly_is_found_before_training(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrongly(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, layout: str, **options: object) -> tuple[torch.Tensor, ...]:
        changes = {
            "polarity": {"atten_mask": inverted(q.device)}, "scale": {"scale": 1.0}, "no mask": {"atten_mask": None}, "mode 0": {"sparse_mode": 0},
        }
        return simulated_npu.npu_fusion_attention(q, k, v, heads, layout, **{**options, **changes[fault]})

    simulated_npu.install(monkeypatch, wrongly)
    with computing_npu(), pytest.raises(BadConfig, match="attention kernel fused is off by"):
        self_test(NPU, torch.float32)


def test_the_fused_kernel_called_rightly_passes() -> None:
    with computing_npu():
        for dtype in (torch.float32, torch.bfloat16):
            result = self_test(NPU, dtype)
            assert result.kernel == "fused" and "fused" in str(result)


def test_fault_a_product_that_silently_runs_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Linear, "forward", lambda self, x: torch.nn.functional.linear(x.float(), self.weight))
    with fake_npu() as seen:
        step(build(SHAPE, torch.bfloat16, NPU, 42))
    assert torch.float32 in seen.gemm_dtypes()


def test_generated_text_comes_from_the_engine_on_the_device(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(computing_npu())
        run_job(tmp_path, Kind.NPU)
        tokenizer = load_tokenizer_of(tmp_path)
        model = build(ModelShape.of(ModelConfig(depth=2, aspect_ratio=16, head_dim=16, sequence_len=64, window_pattern="L"), 300), torch.float32, NPU, 1)
        sampling = Sampling(max_new_tokens=5, temperature=0.8, top_k=20, seed=3)
        first = [c.tokens for c in Engine(model, tokenizer).complete([[tokenizer.bos_id, 5, 6]] * 2, sampling)]
    on_cpu = build(model.shape, torch.float32, "cpu", 1)
    assert first == [c.tokens for c in Engine(on_cpu, tokenizer).complete([[tokenizer.bos_id, 5, 6]] * 2, sampling)]


def load_tokenizer_of(job: Path):
    from nanochat.tokenizer import Tokenizer

    return Tokenizer.load(layout.tokenizer_dir(job))


