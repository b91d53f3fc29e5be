"""The CORE score (DCLM, arXiv:2406.11794): tasks of three kinds, asked with examples before the question, averaged above chance."""

from nanochat.core.bundle import Bundle, CoreTask, open_bundle
from nanochat.core.scoring import Reuse, score_examples

__all__ = ["GPT2_CORE", "Bundle", "CoreTask", "Reuse", "open_bundle", "score_examples"]

GPT2_CORE = {"gpt2 124M": 0.1139, "gpt2 355M": 0.1849, "gpt2 774M": 0.2146, "gpt2 1.6B": 0.256525}
"""CORE of OpenAI's GPT-2, as karpathy/nanochat 92d63d4 gives it (README, ``dev/LEADERBOARD.md``)."""
