"""A corpus of pseudo-words that we generate ourselves: Zipf-distributed words of syllables, sentences, numbers, paragraphs.

The files have the layout that upstream nanochat reads (parquet shards with one column ``text``, the last one for
validation), so that both can be trained on the same bytes. The same seed gives the same text on every machine; reference
losses in tests/data were measured on seed 1234.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ONSETS = [
    "b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "st", "tr", "pr", "ch", "sh", "th", "pl", "gr", "",
]
NUCLEI = ["a", "e", "i", "o", "u", "ai", "ea", "ou", "ie"]
CODAS = ["n", "r", "s", "t", "l", "m", "d", "ng", "nd", "st", "ck", *[""] * 6]
LEXICON = 60_000
MEAN_CHARS = 3000
ZIPF_EXPONENT = 1.05


class Writer:
    """Draws documents; the order of its draws is part of what it is."""

    def __init__(self, seed: int = 1234) -> None:
        self._rng = np.random.default_rng(seed)
        self._lexicon = list(dict.fromkeys(self._word() for _ in range(LEXICON)))
        weights = 1.0 / np.arange(2, len(self._lexicon) + 2) ** ZIPF_EXPONENT
        self._cdf = np.cumsum(weights / weights.sum())

    def _word(self) -> str:
        def pick(parts: list[str]) -> str:
            return parts[self._rng.integers(len(parts))]

        syllables = self._rng.choice([1, 2, 3, 4], p=[0.3, 0.4, 0.22, 0.08])
        return "".join(pick(ONSETS) + pick(NUCLEI) + pick(CODAS) for _ in range(syllables))

    def document(self) -> str:
        """The next document, 200 to 60,000 characters, log-normal."""
        target = int(np.clip(self._rng.lognormal(np.log(MEAN_CHARS) - 0.5, 1.0), 200, 60_000))
        words = target // 5 + 8
        indices = np.minimum(np.searchsorted(self._cdf, self._rng.random(words)), len(self._lexicon) - 1)
        parts: list[str] = []
        size, starts_sentence = 0, True
        for index, chance in zip(indices, self._rng.random(words), strict=True):
            word = self._lexicon[index].capitalize() if starts_sentence else self._lexicon[index]
            part = (str(int(chance * 5e6) % 10_000) if chance < 0.02 else word) + _after(chance)
            starts_sentence = chance > 0.90
            parts.append(part)
            size += len(part)
            if size >= target:
                break
        return "".join(parts).strip() + "."


def _after(chance: float) -> str:
    """What follows a word: the end of a paragraph, of a sentence, of a clause, or a blank."""
    if chance > 0.985:
        return ".\n\n"
    if chance > 0.90:
        return ". "
    return ", " if chance > 0.83 else " "


def write_corpus(folder: Path, *, shards: int = 4, shard_chars: float = 5e6, val_chars: float = 2e6, group_rows: int = 256) -> list[Path]:
    """Parquet files written into folder, the last one for validation. The defaults are the reference corpus, 23.8 MB."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = Writer()
    paths = []
    for shard in range(shards + 1):
        wanted = shard_chars if shard < shards else val_chars
        texts: list[str] = []
        chars = 0
        while chars < wanted or len(texts) % group_rows:
            texts.append(writer.document())
            chars += len(texts[-1])
            if chars > 3 * wanted and chars > 3e6:
                break
        paths.append(folder / f"shard_{shard:05d}.parquet")
        pq.write_table(
            pa.table({"text": texts}), paths[-1], row_group_size=group_rows, use_dictionary=False, compression="zstd", compression_level=3,
            write_statistics=False,
        )
    return paths
