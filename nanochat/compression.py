"""How well a tokenizer compresses: bytes per token on validation text and on a few kinds of text, without any network.

The samples are ours and fixed, so the figures of two tokenizers can be compared. (Upstream compares with GPT-2's and GPT-4's
vocabularies, which have to be downloaded.)
"""

from collections.abc import Iterable

from nanochat.tokenizer import Tokenizer

__all__ = ["SAMPLES", "by_kind", "bytes_per_token"]

SAMPLES = {
    "english": (
        "The ferry had left an hour late, and nobody on the upper deck seemed to mind. Gulls followed the wake in the evening "
        "light; somewhere below, an engine coughed and settled again. \"We'll be there by nine,\" the captain's daughter said, "
        "though she didn't look at her watch. It wasn't the kind of crossing that one hurries through."
    ),
    "chinese": (
        "渡船晚了一个小时才离岸,上层甲板上的人似乎都不介意。傍晚的光线里,海鸥跟着船尾飞行。船长的女儿说:“九点以前我们就到了。”"
        "她并没有看表。这样的航程,谁也不会着急赶路。训练一个语言模型,首先需要干净的文本和合适的分词器。"
    ),
    "code": (
        "def median(values: list[float]) -> float:\n    \"\"\"The middle value, or the mean of the two in the middle.\"\"\"\n"
        "    ordered = sorted(values)\n    half, odd = divmod(len(ordered), 2)\n    if odd:\n        return ordered[half]\n"
        "    return (ordered[half - 1] + ordered[half]) / 2\n\n\nif __name__ == \"__main__\":\n    print(median([3.5, 1.0, 2.25]))\n"
    ),
    "numbers": "In 2024 it was 1,203,400; 17 % more than the 1,028,547 of 2023. 3.14159 + 2.71828 = 5.85987, and 12 x 12 = 144.\n",
    "markup": "# Setting up\n\n1. Copy `config.yaml` to **/etc/app**\n2. Run it:\n\n| option | default |\n|---|---|\n| `--port` | 8080 |\n",
}
"""Texts of a kind each, written for this."""


def bytes_per_token(tokenizer: Tokenizer, texts: Iterable[str]) -> float:
    """UTF-8 bytes that a token stands for on average; 0 where there is no text."""
    size = tokens = 0
    for text in texts:
        ids = tokenizer.encode_array(text)
        tokens += len(ids)
        size += len(text.encode("utf-8", "replace"))
    return size / tokens if tokens else 0.0


def by_kind(tokenizer: Tokenizer) -> dict[str, float]:
    """Bytes per token for each kind of sample."""
    return {kind: bytes_per_token(tokenizer, [text]) for kind, text in SAMPLES.items()}
