"""Small dense linear algebra in plain Python: what fitting a few constants to a few hundred rows needs, without numpy."""

import math
from collections.abc import Sequence
from operator import mul

__all__ = ["Matrix", "Vector", "cholesky", "dot", "nonnegative_least_squares", "solve_cholesky"]

Vector = list[float]
Matrix = list[Vector]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    """Sum of products."""
    total: float = sum(map(mul, a, b))
    return total


def cholesky(matrix: Matrix) -> Matrix:
    """Lower triangle L with L L^T = matrix, rows cut at the diagonal.

    Raises:
        ValueError: The matrix is not positive definite.
    """
    lower: Matrix = []
    for i, row in enumerate(matrix):
        current: Vector = []
        for j in range(i):
            other = lower[j]
            current.append((row[j] - dot(current, other)) / other[j])
        pivot = row[i] - dot(current, current)
        if pivot <= 0:
            raise ValueError("matrix is not positive definite")
        current.append(math.sqrt(pivot))
        lower.append(current)
    return lower


def solve_cholesky(lower: Matrix, b: Sequence[float]) -> Vector:
    """x with L L^T x = b."""
    y: Vector = []
    for row, value in zip(lower, b, strict=True):
        y.append((value - dot(row, y)) / row[-1])
    x = [0.0] * len(y)
    for i in range(len(y) - 1, -1, -1):
        x[i] = y[i] / lower[i][i]
        for j in range(i):
            y[j] -= lower[i][j] * x[i]
    return x


def nonnegative_least_squares(gram: Matrix, right: Vector) -> Vector:
    """x >= 0 that minimises x^T G x - 2 x^T r for a positive definite G (Lawson and Hanson's active set on normal equations)."""
    n = len(right)
    free: list[int] = []
    x = [0.0] * n
    for _ in range(10 * n):
        gradient = [right[i] - dot(gram[i], x) for i in range(n)]
        candidates = [i for i in range(n) if i not in free and gradient[i] > 1e-12 * (1 + abs(right[i]))]
        if not candidates:
            break
        free.append(max(candidates, key=lambda i: gradient[i]))
        x = _restricted(gram, right, free, x)
    return x


def _restricted(gram: Matrix, right: Vector, free: list[int], x: Vector) -> Vector:
    """Solves on the free set, dropping what would turn negative, as far as the line to the solution allows."""
    while free:
        lower = cholesky([[gram[i][j] for j in free] for i in free])
        target = dict(zip(free, solve_cholesky(lower, [right[i] for i in free]), strict=True))
        if all(value > 0 for value in target.values()):
            return [target.get(i, 0.0) for i in range(len(x))]
        step = min(x[i] / (x[i] - value) for i, value in target.items() if value <= 0)
        x = [old + step * (target.get(i, old) - old) for i, old in enumerate(x)]
        free[:] = [i for i in free if x[i] > 1e-15]
        x = [value if i in free else 0.0 for i, value in enumerate(x)]
    return [0.0] * len(x)
