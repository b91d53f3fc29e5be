"""The arithmetic of one update against torch's own optimizer and against linear algebra done the slow way."""

import pytest
import torch

from nanochat.device import halves_symmetric_products
from nanochat.optim.kernels import AdamWRule, MuonRule, _step_by_step, adamw_update, muon_update, orthogonalise


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_adamw_is_torchs_adamw() -> None:
    rule = AdamWRule(lr=0.01, beta1=0.8, beta2=0.95, weight_decay=0.1, eps=1e-10)
    reference = torch.nn.Parameter(random(40, 3))
    torch_adamw = torch.optim.AdamW([reference], lr=0.01, betas=(0.8, 0.95), weight_decay=0.1, eps=1e-10)
    param = random(40, 3)
    m, v = torch.zeros_like(param), torch.zeros_like(param)
    for step in range(1, 30):
        grad = random(40, 3, seed=step)
        reference.grad = grad.clone()
        torch_adamw.step()
        adamw_update(param, grad, m, v, rule, rule.lr, step)
    torch.testing.assert_close(param, reference.data, rtol=1e-5, atol=1e-6)


def test_adamw_of_bf16_tensors_computes_in_fp32() -> None:
    rule = AdamWRule(lr=0.5, beta1=0.8, beta2=0.995, weight_decay=0.01)
    param = random(64).bfloat16()
    m, v = torch.zeros_like(param), torch.zeros_like(param)
    p32, m32, v32 = param.float(), m.float(), v.float()
    grad = random(64, seed=1).bfloat16()
    adamw_update(param, grad, m, v, rule, 0.5, 1)
    adamw_update(p32, grad.float(), m32, v32, rule, 0.5, 1)
    for kept, exact in ((param, p32), (m, m32), (v, v32)):
        torch.testing.assert_close(kept.float(), exact, rtol=2**-8, atol=0)  # half a unit in bf16's last place
    assert v.abs().max() > 0, "a second moment of 0.005 g² must not vanish"


@pytest.mark.parametrize("shape", [(5, 24, 24), (3, 64, 16), (3, 16, 64), (2, 2, 12)])
def test_orthogonalise_comes_close_to_the_polar_factor(shape: tuple[int, int, int]) -> None:
    x = random(*shape)
    x = x / (1.01 * x.norm(dim=(-2, -1), keepdim=True))
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    values = torch.linalg.svdvals(orthogonalise(x))
    assert values.min() > 0.3 and values.median() > 0.9 and values.max() < 1.2, "five steps leave the smallest values short of 1"
    cosine = (orthogonalise(x) * (u @ vh)).sum() / (orthogonalise(x).norm() * (u @ vh).norm())
    assert cosine > 0.99


def test_gathered_factors_are_as_exact_as_step_by_step_for_small_singular_values() -> None:
    u, _, vh = torch.linalg.svd(random(2, 128, 32), full_matrices=False)
    x = (u * torch.exp(-8 * torch.linspace(0, 1, 32))) @ vh
    x = x / (1.01 * x.norm(dim=(-2, -1), keepdim=True))
    exact = _step_by_step(x.double(), tall=True)
    for direct, reference in ((x, exact), (x.mT, exact.mT)):
        assert (orthogonalise(direct).double() - reference).norm() / reference.norm() < 1e-4


@pytest.mark.parametrize("shape", [(2, 513, 600), (1, 600, 513), (1, 1030, 513), (1, 512, 1100)])
def test_large_symmetric_products_from_one_half_are_as_exact(shape: tuple[int, int, int]) -> None:
    x = random(*shape)
    x = x / (1.01 * x.norm(dim=(-2, -1), keepdim=True))
    assert halves_symmetric_products(x.device, x.dtype, min(shape[1:])) and not halves_symmetric_products(x.device, torch.float64, 513)
    exact = _step_by_step(x.double(), tall=shape[1] > shape[2])
    assert (orthogonalise(x).double() - exact).norm() / exact.norm() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_plain_adamw_is_the_fused_one(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = AdamWRule(lr=0.1, beta1=0.8, beta2=0.95, weight_decay=0.1)
    results = []
    for fused in (True, False):
        monkeypatch.setattr("nanochat.optim.kernels.prefers_fused_adamw", lambda device, fused=fused: fused)
        tensors = [random(50).to(dtype), random(50, seed=1).to(dtype), torch.zeros(50, dtype=dtype), torch.zeros(50, dtype=dtype)]
        for step in range(1, 4):
            adamw_update(*tensors, rule, 0.1, step)
        results.append(tensors)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5 if dtype == torch.float32 else 0.02, atol=1e-6)


def muon_by_hand(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, lr: float, mu: float, wd: float, beta2: float) -> tuple[torch.Tensor, ...]:
    """One matrix, one step, each formula as its paper writes it, in fp64."""
    m = mu * m + (1 - mu) * g
    x = mu * m + (1 - mu) * g
    x = x * (x.norm() / x.size(0) ** 0.5 / x.norm(dim=1, keepdim=True))
    x = x / (1.01 * x.norm() + 1e-6)
    from nanochat.optim.kernels import POLAR_EXPRESS

    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x * min(x.shape) ** 0.5 / x.norm()
    dim = 1 if x.size(0) >= x.size(1) else 0
    square = x.square().mean(dim=dim, keepdim=True)
    v = beta2 * v + (1 - beta2) * square
    y = x / v.sqrt()
    y = y * x.norm() / y.norm()
    return p - lr * y - lr * wd * p * ((y * p) >= 0), m, v


@pytest.mark.parametrize("shape", [(24, 24), (64, 16), (16, 64), (2, 12)])
def test_muon_is_its_formulas_matrix_by_matrix(shape: tuple[int, int]) -> None:
    rows, cols = shape
    p, m = random(3, rows, cols), torch.zeros(3, rows, cols)
    v = torch.zeros(3, rows, 1) if rows >= cols else torch.zeros(3, 1, cols)
    expected = [(p[i].double(), m[i].double(), v[i].double()) for i in range(3)]
    for step in range(3):
        g = random(3, rows, cols, seed=step + 9)
        expected = [muon_by_hand(a, g[i].double(), b, c, 0.02, 0.9, 0.3, 0.9) for i, (a, b, c) in enumerate(expected)]
        muon_update(p, g, m, v, MuonRule(0.02), lr=0.02, momentum=0.9, weight_decay=0.3, dtype=torch.float32)
    for i, (a, b, c) in enumerate(expected):
        torch.testing.assert_close(p[i].double(), a, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(m[i].double(), b, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(v[i].double(), c, rtol=1e-4, atol=1e-6)


def test_muon_of_a_zero_gradient_stays_finite() -> None:
    p, m, v = random(2, 8, 8), torch.zeros(2, 8, 8), torch.zeros(2, 8, 1)
    muon_update(p, torch.zeros(2, 8, 8), m, v, MuonRule(0.02), lr=0.02, momentum=0.9, weight_decay=0.1, dtype=torch.float32)
    assert p.isfinite().all() and v.isfinite().all()
