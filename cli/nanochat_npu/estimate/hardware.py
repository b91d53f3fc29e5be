"""Facts about NPUs, links and software stacks that the estimate rests on, each with its source. Data only.

Peaks: the vendor's figure for a 910B counts cube and vector units together (cores x 16^3 MAC x 2 x clock + 2 x cores x 128
lanes x 2 x clock reproduces 313 and 376 to 0.1 T), the frequently quoted 354 T is the cube-only figure of the 910B2.
MFU is shown against the vendor's; efficiencies below are relative to the cube's, where matmuls run.
"""

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

__all__ = [
    "ALIASES", "CHIPS", "CPU_CORE_FLOPS", "STACKS", "Accelerator", "Source", "Stack", "StackClass", "accelerator", "hccs_bytes_per_s",
    "link_bytes_per_s", "link_sources", "stack_class",
]


@dataclass(frozen=True)
class Source:
    """Where a number comes from: what, when read, and how far it can be trusted."""

    text: str
    date: str = ""
    trust: str = "measured"
    """measured, vendor, secondary, derived or assumed."""

    def __str__(self) -> str:
        return f"{self.text} ({self.trust}{', ' + self.date if self.date else ''})"


@dataclass(frozen=True)
class Accelerator:
    """What one rank computes on: an NPU, a die of a 910C, or a CPU core."""

    name: str
    vendor_peak_flops: float
    """bf16 FLOP/s that the vendor states; the denominator of MFU."""
    cube_peak_flops: float
    """bf16 FLOP/s of the matrix units alone."""
    hbm_bytes: int
    usable_bytes: int
    """What torch reports as total, after the driver's share."""
    stream_bytes_per_s: float
    """Read plus write of a streaming kernel."""
    watts: float
    sources: tuple[Source, ...]
    uncertain_peak_sd: float = 0.0
    """Extra spread (ln) where the bin itself is not known."""


_WHITE_PAPER = Source("Atlas 800T A2 white paper: 910B2 376 T, 910B3 313 T, HBM 1600 GB/s", "2026-08", "secondary")
_USABLE = Source("FlagPerf 800T A2: 60.32 GiB of 64 GiB usable; 364.7 W per NPU under bf16 GEMM; 304.3 T matmul", "2026-08")
_STREAM = Source("642 GB/s one way of torch.exp on 910B (FlagPerf): 1.28 TB/s read and write", "2026-08", "derived")
_64GB = 64_770_000_000
"""60.32 GiB, the smallest usable figure reported for a 64 GiB card (another run reports 65,452,113,920 bytes)."""
_GIB = 2**30


def _npu(name: str, vendor_t: float, cube_t: float, gib: int, *, slow_memory: bool = False, sd: float = 0.0, note: Source | None = None) -> Accelerator:
    usable = _64GB if gib == 64 else _64GB * gib // 64
    sources = (_WHITE_PAPER, _USABLE, _STREAM) if note is None else (note, _USABLE, _STREAM)
    return Accelerator(
        name, vendor_t * 1e12, cube_t * 1e12, gib * _GIB, usable, 0.64e12 if slow_memory else 1.28e12, 365.0, sources, sd
    )


CPU_CORE_FLOPS = 49e9
"""float32 FLOP/s that one core reaches in eager training (below); one kind of processor, so the spread is wide."""

CHIPS: MappingProxyType[str, Accelerator] = MappingProxyType({
    chip.name: chip
    for chip in (
        _npu("910B1", 414, 363.7, 64, note=Source("910B1: 414 T by the vendor's marketing, 24 cores at 1.85 GHz by the platform file", "2026-08", "secondary")),
        _npu("910B2", 376, 353.9, 64),
        _npu("910B2C", 376, 353.9, 64, sd=0.05, note=Source("910B2C: same die class as 910B2; 322.5 T matmul measured", "2026-08", "secondary")),
        _npu("910B3", 313, 294.9, 64),
        _npu("910B4", 280, 262.0, 32, slow_memory=True, note=Source("910B4: 280 T, 32 GB at 800 GB/s", "2026-08", "secondary")),
        _npu("910B4-1", 280, 262.0, 64, note=Source("910B4-1: 280 T, 64 GB at 1600 GB/s", "2026-08", "secondary")),
        _npu("910C", 376, 353.9, 64, note=Source("910C (A3): two dies, 376 T and 64 GB each; one rank per die", "2026-08", "secondary")),
        _npu("910A", 256, 256, 32, slow_memory=True, note=Source("910A: 256 T fp16, no bf16; Huawei launch pages 2019", "2026-08", "vendor")),
        # A job that only says "910B" may land on any bin: the commonest one's figures, with the spread between the bins.
        _npu("910B", 313, 294.9, 64, sd=0.12),
        Accelerator(
            "cpu", CPU_CORE_FLOPS, CPU_CORE_FLOPS, 0, 0, 10e9, 10.0,
            (Source("upstream nanochat d4 eager float32 on one AMD EPYC (Zen 4) core: 1,550 tokens/s = 49 GFLOP/s", "2026-08"),), 0.35,
        ),
    )
})
"""What a rank may run on, by name. ``910B`` is a 910B of unknown bin."""

ALIASES: MappingProxyType[str, str] = MappingProxyType({"": "cpu", "ascend910": "910B", "910b": "910B", "a3": "910C"})


def accelerator(name: str) -> Accelerator:
    """The accelerator of this name, with or without "Ascend" before it.

    Raises:
        KeyError: There are no figures for it.
    """
    plain = name.removeprefix("Ascend")
    return CHIPS[plain] if plain in CHIPS else CHIPS[ALIASES[name.lower()]]


class Stack(StrEnum):
    """How the forward and backward run on the device; it matters more than any formula (2.4x between eager and fused)."""

    EAGER = "eager"
    """torch_npu op by op with a fused attention kernel: what nanochat does on NPUs today."""
    FUSED = "fused"
    """Fused norm, rotary, activation and loss kernels, as MindSpeed and MindFormers have them."""
    GRAPH = "graph"
    """torch.compile on NPUs. Nobody has published a speed."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class StackClass:
    """Speed of a stack, in the constants of the time formula, and the bytes that its activations take.

    Attributes:
        matmul_frac: Part of the cube peak that matmuls and attention reach.
        layer_bytes: Bytes of vector-unit traffic per token, layer and channel (k1).
        vocab_bytes: The same per token and vocabulary entry (k2).
        ln_sd: Spread (ln) of a prediction that was never calibrated.
        activation_bytes: Per token, layer and channel, kept from forward to backward.
        logits_bytes: Per token and vocabulary entry, at the peak.
    """

    name: Stack
    matmul_frac: float
    layer_bytes: float
    vocab_bytes: float
    ln_sd: float
    activation_bytes: float
    logits_bytes: float
    sources: tuple[Source, ...]


_A3_MEMORY = Source("peak memory of nanochat d20 (33,720.95 MiB) and d32 (47,633.84 MiB) on 910C dies: two equations, two unknowns", "2026-08", "derived")

STACKS: MappingProxyType[Stack, StackClass] = MappingProxyType({
    # 0.305 of the vendor's 376 T, stated here relative to the cube's 353.9 T.
    Stack.EAGER: StackClass(
        Stack.EAGER, 0.305 * 376 / 353.9, 1297, 120, 0.20, 41.0, 21.8,
        (Source("nanochat d20 (18,350 tokens/s) and d32 (6,088) on 16 dies of 910C, eager: leideng/nanochat-ascend logs; two runs, exactly determined", "2026-08", "derived"), _A3_MEMORY),
    ),
    Stack.FUSED: StackClass(
        Stack.FUSED, 0.465, 0, 148, 0.25, 41.0, 21.8,
        (Source("ten models under 3.2 B of MindSpeed-LLM and MindFormers on Atlas A2: 0.465 of 354 T; leave-one-out error 11 %", "2026-08", "derived"), _A3_MEMORY),
    ),
})
"""Stacks with figures. `Stack.GRAPH` and `Stack.UNKNOWN` have none: the estimate gives a range over these and no point."""

CPU_CLASS = StackClass(
    Stack.EAGER, 1.0, 0, 0, 0.5, 82.0, 45.0,
    (Source("upstream nanochat d4 float32 on CPU: 1,550 tokens/s on one core; resident memory 984 and 2,564 MiB at batch 4 and 16", "2026-08"),),
)
"""float32 on a CPU core, whatever the stack is called there."""


def stack_class(stack: Stack, chip: str) -> StackClass | None:
    """The figures of a stack on a chip, or None where nobody has measured any."""
    return CPU_CLASS if chip == "cpu" else STACKS.get(stack)


_HCCS_GB_S: tuple[tuple[int, float], ...] = ((1, 0.0), (2, 38.0), (4, 64.0), (8, 149.0))
"""All-gather over HCCS by number of NPUs; a full mesh, so it grows with the peers and four NPUs get 43 % of eight."""
ROCE_BYTES_PER_S = 22e9
"""Per NPU; 88 % of the 200 Gb/s port."""
_LOOPBACK_BYTES_PER_S = 2e9
_HCCS = Source("HCCS all-gather on 910B: 38, 64, 149 GB/s at 2, 4, 8 NPUs (gameofdimension/limulidae)", "2026-08")
_ROCE = Source("RoCE: 22 GB/s of a 200 GE port; no HCCL measurement between nodes is published", "2026-08", "assumed")
_GLOO = Source("gloo over loopback: 2 GB/s", "2026-08", "assumed")


def hccs_bytes_per_s(npus: int) -> float:
    """Collective bandwidth of some NPUs of one server; between the measured counts it is interpolated, beyond eight it stays."""
    last_n, last_bw = _HCCS_GB_S[0]
    for n, bw in _HCCS_GB_S[1:]:
        if npus <= n:
            return (last_bw + (bw - last_bw) * (npus - last_n) / (n - last_n)) * 1e9
        last_n, last_bw = n, bw
    return last_bw * 1e9


def link_bytes_per_s(chip: str, nodes: int, ranks_per_node: int) -> float:
    """Bandwidth that a collective over all ranks sees; the slowest link decides. Infinite for a single rank."""
    if nodes * ranks_per_node == 1:
        return float("inf")
    if chip == "cpu":
        return _LOOPBACK_BYTES_PER_S
    return ROCE_BYTES_PER_S if nodes > 1 else hccs_bytes_per_s(ranks_per_node)


def link_sources(chip: str, nodes: int) -> tuple[Source, ...]:
    """What `link_bytes_per_s` rests on."""
    if chip == "cpu":
        return (_GLOO,)
    return (_ROCE, _HCCS) if nodes > 1 else (_HCCS,)
