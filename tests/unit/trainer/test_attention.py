"""One function for attention: every kernel computes the formula, and one that does not is found at the start."""

import math

import pytest
import torch
from torch import Tensor

from nanochat import attention
from nanochat.attention import attend, band_mask, choose, self_test
from nanochat.errors import BadConfig

CPU = torch.device("cpu")


def qkv(length: int, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(2, length, 3, 8, generator=torch.Generator().manual_seed(s)) for s in range(3))
    return q[:, -(queries or length) :], k, v


def by_hand(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """One query after the other, over the keys that it may see."""
    out = torch.zeros_like(q)
    before = k.size(1) - q.size(1)
    for i in range(q.size(1)):
        seen = slice(max(0, before + i - window), before + i + 1)
        scores = torch.einsum("bhd,bjhd->bhj", q[:, i], k[:, seen]) / math.sqrt(q.size(-1))
        out[:, i] = torch.einsum("bhj,bjhd->bhd", scores.softmax(-1), v[:, seen])
    return out


@pytest.mark.parametrize("kernel", ["sdpa", "blocks", None])
@pytest.mark.parametrize("window", [0, 1, 7, 19, 20, 1000])
def test_training_attention_is_the_formula(kernel: attention.Kernel | None, window: int) -> None:
    q, k, v = qkv(20)
    torch.testing.assert_close(attend(q, k, v, window, kernel), by_hand(q, k, v, window), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("queries", [1, 2, 9])
@pytest.mark.parametrize("window", [0, 3, 19, 50])
def test_queries_that_continue_a_cache_see_their_window(queries: int, window: int) -> None:
    q, k, v = qkv(20, queries)
    torch.testing.assert_close(attend(q, k, v, window), by_hand(q, k, v, window), rtol=1e-4, atol=1e-5)


def test_the_mask_is_true_where_a_key_is_seen() -> None:
    assert band_mask(2, 4, 1, CPU).tolist() == [[False, True, True, False], [False, False, True, True]]


def test_a_cpu_works_in_blocks_and_has_no_fused_kernel() -> None:
    assert choose(CPU) == "blocks"
    with pytest.raises(BadConfig, match="no fused kernel"):
        attend(*qkv(20), 3, "fused")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_self_test_passes_what_is_right_and_says_what_it_chose(dtype: torch.dtype) -> None:
    result = self_test(CPU, dtype)
    assert result.kernel == "blocks" and str(result).startswith("attention: blocks, off by at most")


@pytest.mark.parametrize("fault", ["one key too many", "nothing masked", "not a number", "gradient of keys forgotten"])
def test_the_self_test_finds_what_is_wrong(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention._WINDOWED["blocks"]
    wrong = {
        "one key too many": lambda q, k, v, window: right(q, k, v, window + 1),
        "nothing masked": lambda q, k, v, window: attention._sdpa(q, k, v, None),
        "not a number": lambda q, k, v, window: right(q, k, v, window) * math.nan,
        "gradient of keys forgotten": lambda q, k, v, window: right(q, k.detach(), v, window) + 0 * k,
    }
    monkeypatch.setitem(attention._WINDOWED, "blocks", wrong[fault])
    with pytest.raises(BadConfig, match="attention kernel blocks is off by"):
        self_test(CPU, torch.float32)
