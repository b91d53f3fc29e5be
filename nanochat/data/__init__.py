"""Text in, batches out: sources, order, packing, and the loader.

The face of the package: `open_corpus`, `iter_texts`, `build_loader`, `validation_batches`, `merge_states`, `Place`, `Batch`; for fine-tuning
`build_sft_loader`, `epoch_steps`, `sft_validation_batches`.
"""

from nanochat.data.batches import Batch
from nanochat.data.corpus import Corpus, Splits, iter_texts
from nanochat.data.loader import Loader, Place, build_loader, merge_states, validation_batches
from nanochat.data.sft import build_sft_loader, epoch_steps, sft_validation_batches
from nanochat.data.sources import open_corpus

__all__ = [
    "Batch", "Corpus", "Loader", "Place", "Splits", "build_loader", "build_sft_loader", "epoch_steps", "iter_texts", "merge_states", "open_corpus",
    "sft_validation_batches", "validation_batches",
]
