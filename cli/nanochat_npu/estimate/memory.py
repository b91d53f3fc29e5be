"""Peak memory of one rank, part by part, and the verdict. GB is 1e9 bytes."""

from dataclasses import dataclass, field
from typing import Literal

from nanochat_npu.estimate.hardware import CPU_CLASS, STACKS, Source, Stack, StackClass, accelerator, stack_class
from nanochat_npu.estimate.inputs import Inputs

__all__ = ["FITS_FRAC", "TIGHT_FRAC", "Memory", "Verdict", "memory", "part_bytes", "suggest_batch"]

Verdict = Literal["fits", "tight", "oom"]

FITS_FRAC = 0.85
"""HCCL buffers, fragmentation and the allocator's reserve live in the rest: logs show 10-20 % between allocated and held."""
TIGHT_FRAC = 0.95
_CPU_PROCESS_BYTES = 650_000_000
"""Resident size of a process that has imported torch's CUDA build; measured here."""
COUNTED_ACTIVATION_BYTES = 33.0
"""Bytes per token, layer and channel that this trainer's backward pass keeps in bf16: counted on a CPU with
``torch.autograd.graph.saved_tensors_hooks`` (32.8 at d4, 31.9 at d8; a test counts again)."""
COUNTED_LOGITS_BYTES = 3 * 2**28
"""It works through the logits in chunks of 256 MiB; a chunk, its gradient and a copy exist at a time."""
HCCL_BUFFER_BYTES = 2 * 200 * 2**20
"""Of one communicator: twice HCCL_BUFFSIZE, whose default is 200 MB. The trainer makes one, over all ranks."""
SOURCES = (
    Source("reserved against allocated on 64 GB dies: 40 for 35.4 GB (d20), 64 for 49.9 GB (d32)", "2026-08"),
    Source("parameters, gradients and moments by dtype: karpathy/nanochat 92d63d4, gpt.py and optim.py", "2026-07", "derived"),
    Source("HCCL buffers: each communicator takes 2 x HCCL_BUFFSIZE (200 MB) of HBM, CANN documentation", "2026-08", "vendor"),
)


@dataclass(frozen=True)
class Memory:
    """Predicted peak of one rank against what it may use.

    Attributes:
        parts: Bytes by part; they sum to `peak_bytes`.
        usable_bytes: None for a CPU job whose memory nobody stated.
        suggested_batch: Largest device batch that fits, if the asked one does not (0: not even one sequence).
        measured: The peak comes from a calibration run of this shape.
        counted_bytes: The peak with the tensors that this trainer keeps, by counting; unproven on NPUs, where the verdict rests on
            published peaks of another trainer, which keeps more. None on CPUs and where it was measured.
        headroom: Bytes beside the peak by what lives in them: what `fits` keeps free. Empty where no limit is known.
    """

    parts: dict[str, float]
    usable_bytes: int | None
    verdict: Verdict
    suggested_batch: int | None
    measured: bool = False
    counted_bytes: float | None = None
    headroom: dict[str, float] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> float:
        """Sum of the parts."""
        return sum(self.parts.values())


def part_bytes(inputs: Inputs, batch: int, stack: StackClass) -> dict[str, float]:
    """Bytes by part for a device batch.

    Weights that learn by Muon and the head are float32 masters with a bf16 copy for the matmuls; look-up tables are bf16.
    Gradients follow the weights. Moments are sharded: Muon's momentum 4 bytes, Adam's two at the parameter's own dtype.
    """
    params = inputs.shape.parameters
    on_cpu = inputs.chip == "cpu"
    tables = params.wte + params.value_embeds
    table_bytes = 4 if on_cpu else 2
    weights = 4.0 * params.scaling + table_bytes * tables + 4 * params.scalars
    moments = 4.0 * params.matrices + 8 * params.lm_head + 2 * table_bytes * tables + 8 * params.scalars
    tokens = batch * inputs.shape.sequence_len
    return {
        "process": float(_CPU_PROCESS_BYTES) if on_cpu else 0.0,
        "weights": weights,
        "gradients": weights,
        "bf16_copies": 0.0 if on_cpu else 2.0 * params.scaling,
        "optimizer": moments / inputs.world_size,
        "activations": stack.activation_bytes * tokens * inputs.shape.depth * inputs.shape.width,
        "logits": stack.logits_bytes * tokens * inputs.shape.padded_vocab,
    }


def _verdict(peak: float, usable: int | None) -> Verdict:
    if usable is None or peak <= FITS_FRAC * usable:
        return "fits"
    return "tight" if peak <= TIGHT_FRAC * usable else "oom"


def suggest_batch(inputs: Inputs, stack: StackClass, usable: int) -> int:
    """The largest power of two below the asked device batch that fits, or 0."""
    batch = 1 << max(0, inputs.run.pretrain.device_batch - 1).bit_length()
    while batch >= 1:
        fits = sum(part_bytes(inputs, batch, stack).values()) <= FITS_FRAC * usable
        if batch < inputs.run.pretrain.device_batch and fits:
            return batch
        batch //= 2
    return 0


def usable_memory(inputs: Inputs) -> int | None:
    """Bytes that one rank may use: the NPU's, or its share of the memory that a CPU job states."""
    if inputs.chip == "cpu":
        return inputs.memory_bytes
    return accelerator(inputs.chip).usable_bytes


def _as_measured(parts: dict[str, float], measured: float) -> dict[str, float]:
    """The parts with the difference to a measured peak in the activations; scaled as a whole where that is not enough."""
    activations = parts["activations"] + measured - sum(parts.values())
    if activations >= 0:
        return {**parts, "activations": activations}
    factor = measured / sum(parts.values())
    return {name: size * factor for name, size in parts.items()}


def _headroom(inputs: Inputs, usable: int | None) -> dict[str, float]:
    """What `fits` keeps free: the buffers of HCCL, and the rest for the allocator's reserve and fragmentation."""
    if usable is None or inputs.chip == "cpu":
        return {}
    buffers = float(HCCL_BUFFER_BYTES) if inputs.world_size > 1 else 0.0
    return {"hccl_buffers": buffers, "reserve": (1 - FITS_FRAC) * usable - buffers}


def memory(inputs: Inputs, measured_bytes: float | None = None) -> Memory:
    """Parts, verdict and the way out.

    Args:
        inputs: The job.
        measured_bytes: Peak of a calibration run of exactly this shape; activations take up the difference.
    """
    stack = stack_class(inputs.stack, inputs.chip) or (CPU_CLASS if inputs.chip == "cpu" else STACKS[Stack.EAGER])
    usable = usable_memory(inputs)
    parts = part_bytes(inputs, inputs.run.pretrain.device_batch, stack)
    if measured_bytes is not None:
        parts = _as_measured(parts, measured_bytes)
    peak = sum(parts.values())
    verdict = _verdict(peak, usable)
    suggested = suggest_batch(inputs, stack, usable) if verdict == "oom" and usable is not None else None
    counted = None
    if inputs.chip != "cpu" and measured_bytes is None:
        tokens = inputs.run.pretrain.device_batch * inputs.shape.sequence_len
        kept = COUNTED_ACTIVATION_BYTES * tokens * inputs.shape.depth * inputs.shape.width + COUNTED_LOGITS_BYTES
        counted = peak - parts["activations"] - parts["logits"] + kept
    return Memory(parts, usable, verdict, suggested, measured_bytes is not None, counted, _headroom(inputs, usable))
