"""Fits the time formula to published throughputs, and predicts architectures that were left out. How the estimate is judged.

Three layers, each with less data and more caution than the one above:

1. Physics: seconds per token = matmuls / (peak x e) + causal attention / (peak x e') + vector bytes + vocabulary bytes +
   tensor-parallel bytes + optimizer bytes per token, times the pipeline bubble. Six constants >= 0, all of order one.
2. Families: a platform's constants are pulled towards priors, a family's (one software stack on one server) towards its platform's.
3. Likeness: what is left over is carried from rows that are alike (size, sequence, parallelism, code line), a Gaussian
   process with fixed length scales. Nothing here was chosen by looking at single rows; halving or doubling any of the
   widths moves the medians by about a point (``dev/validate_estimator.py --sensitivity``).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from nanochat_npu.estimate.linear import Matrix, Vector, cholesky, dot, nonnegative_least_squares, solve_cholesky

__all__ = ["Observation", "Options", "Prediction", "Predictor", "fit_all", "leave_out"]

_BANDWIDTH = 1.28e12
"""Bytes/s that the byte features are stated in; any constant would do, the fit scales it."""
_PRIOR = (1 / 0.65, 1 / 0.35, 1.0, 1.0, 2.0, 1.0)
"""Matmuls at 65 %, attention at 35 % of peak, and one unit of every byte feature: before any row is seen."""
_PRIOR_SD = (0.4, 1.5, 2.0, 2.0, 3.0, 1.5)


@dataclass(frozen=True)
class Observation:
    """One published throughput.

    Attributes:
        platform: Chips of one kind under one kind of software; constants are shared there.
        family: One software stack on one server type within a platform.
        seconds: Measured seconds per token and device.
        matmul_params: Parameters that take part in matmuls.
        attention_flops: FLOPs per token of full attention.
        parallel: Tensor, pipeline and context parallel sizes.
        code_line: 1 for an older line of the same stack, else 0.
    """

    platform: str
    family: str
    seconds: float
    params: float
    matmul_params: float
    attention_flops: float
    peak_flops: float
    depth: float
    width: float
    ffn: float
    vocab: float
    sequence_len: float
    recompute: float = 0.0
    parallel: tuple[float, float, float] = (1.0, 1.0, 1.0)
    grad_accum: float = 1.0
    devices: float = 8.0
    batch_tokens: float | None = None
    code_line: float = 0.0

    @property
    def architecture(self) -> tuple[float, float, float, float]:
        """What is left out together: every row of one shape, in all families."""
        return (self.depth, self.width, self.ffn, self.vocab)

    @property
    def features(self) -> Vector:
        """Seconds per token of each physical term at unit constants."""
        tensor, pipeline, _context = self.parallel
        bubble = (self.grad_accum + pipeline - 1) / self.grad_accum
        again = 1 + self.recompute / 3
        channels = self.depth * self.width
        optimizer = 10 * self.params * self.devices / self.batch_tokens if self.batch_tokens else 0.0
        return [
            6 * self.matmul_params * again / self.peak_flops * bubble,
            self.attention_flops / 2 * again / self.peak_flops * bubble,
            100 * channels * again / _BANDWIDTH * bubble,
            100 * self.vocab / _BANDWIDTH * bubble,
            16 * (tensor - 1) * channels / _BANDWIDTH * bubble,
            optimizer / _BANDWIDTH,
        ]

    @property
    def position(self) -> Vector:
        """Where it lies for likeness: logarithms over the distance at which things become different."""
        log = math.log2
        tensor, pipeline, context = self.parallel
        return [
            log(self.matmul_params) / 3, log(self.sequence_len) / 2, log(tensor) / 1.5, log(pipeline) / 1.5, log(context) / 1.5,
            self.recompute / 0.7, self.code_line / 0.7, log(self.grad_accum) / 3, log(self.devices) / 2,
            log(self.width / self.depth) / 2, log(self.vocab) / 2,
        ]


@dataclass(frozen=True)
class Options:
    """Widths of the three layers. `noise_sd` and the rest are logarithms, roughly relative errors."""

    row_sd: float = 0.1
    family_sd: float = 0.4
    likeness_sd: float = 0.12
    noise_sd: float = 0.07
    length: float = 1.5
    family_likeness: float = 0.5


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds per token, and how sure (ln)."""

    seconds: float
    ln_sd: float


Predictor = Callable[[Observation], Prediction | None]


def _ridge(rows: Sequence[Observation], prior: Vector, prior_sd: Vector, options: Options) -> Vector:
    """Constants >= 0 that fit relative times, pulled to a prior; rows far off lose weight (Huber)."""
    scaled = [[f / row.seconds for f in row.features] for row in rows]
    precision = [(options.row_sd / sd) ** 2 for sd in prior_sd]
    weights = [1.0] * len(rows)
    constants = prior
    for _ in range(6):
        size = len(prior)
        gram = [[sum(w * a[i] * a[j] for w, a in zip(weights, scaled, strict=True)) for j in range(size)] for i in range(size)]
        right = [sum(w * a[i] for w, a in zip(weights, scaled, strict=True)) + precision[i] * prior[i] for i in range(size)]
        for i in range(size):
            gram[i][i] += precision[i]
        constants = nonnegative_least_squares(gram, right)
        residuals = [abs(dot(a, constants) - 1) for a in scaled]
        scale = max(1.48 * median(residuals), 1e-3)
        weights = [min(1.0, 1.5 * scale / max(r, 1e-9)) for r in residuals]
    return constants


def _family_constants(rows: Sequence[Observation], shared: Vector, options: Options) -> Vector:
    """A family's constants: the platform's, shifted as a whole by how many architectures speak for it, then each a little."""
    shift = median(math.log(row.seconds / dot(row.features, shared)) for row in rows)
    count = len({row.architecture for row in rows})
    scale = math.exp(shift * count / (count + 1))
    prior = [c * scale for c in shared]
    width = [max(c * options.family_sd, 0.3 * options.family_sd * sd) for c, sd in zip(prior, _PRIOR_SD, strict=True)]
    return _ridge(rows, prior, width, options)


class _Likeness:
    """Residuals of the physical fit, carried over to rows that are alike."""

    def __init__(self, rows: Sequence[Observation], residuals: Vector, options: Options) -> None:
        self._rows = rows
        self._positions = [row.position for row in rows]
        self._options = options
        covariance: Matrix = [self._row(row.position, row.family) for row in rows]
        for i in range(len(rows)):
            covariance[i][i] += options.noise_sd**2
        self._lower = cholesky(covariance)
        self._weights = solve_cholesky(self._lower, residuals)

    def _row(self, position: Vector, family: str) -> Vector:
        options = self._options
        narrow = -0.5 / options.length**2
        result = []
        for row, other in zip(self._rows, self._positions, strict=True):
            distance = sum([(a - b) ** 2 for a, b in zip(position, other, strict=True)])
            same = 1.0 if row.family == family else options.family_likeness
            result.append(options.likeness_sd**2 * math.exp(narrow * distance) * same)
        return result

    def __call__(self, row: Observation) -> tuple[float, float]:
        """Expected residual (ln) and its standard deviation, noise of a single row included."""
        covariance = self._row(row.position, row.family)
        explained = dot(covariance, solve_cholesky(self._lower, covariance))
        variance = self._options.likeness_sd**2 - explained + self._options.noise_sd**2
        return dot(covariance, self._weights), math.sqrt(max(variance, self._options.noise_sd**2))


def _fit_platform(rows: Sequence[Observation], options: Options) -> Predictor:
    shared = _ridge(rows, list(_PRIOR), list(_PRIOR_SD), options)
    families = defaultdict(list)
    for row in rows:
        families[row.family].append(row)
    constants = {family: _family_constants(members, shared, options) for family, members in families.items()}
    residuals = [math.log(row.seconds / dot(row.features, constants[row.family])) for row in rows]
    likeness = _Likeness(rows, [min(max(r, -0.4), 0.4) for r in residuals], options)
    architectures = {family: len({row.architecture for row in members}) for family, members in families.items()}

    def predict(row: Observation) -> Prediction | None:
        if row.family not in constants:
            return None
        shift, ln_sd = likeness(row)
        # The constants themselves are less sure the fewer architectures stand behind them.
        constants_sd = options.likeness_sd / math.sqrt(architectures[row.family])
        return Prediction(dot(row.features, constants[row.family]) * math.exp(shift), math.hypot(ln_sd, constants_sd))

    return predict


def fit_all(rows: Iterable[Observation], options: Options | None = None) -> Predictor:
    """Fits every platform and returns a predictor; it gives None for a family without rows."""
    platforms = defaultdict(list)
    for row in rows:
        platforms[row.platform].append(row)
    fitted = {name: _fit_platform(members, options or Options()) for name, members in platforms.items()}
    return lambda row: fitted[row.platform](row) if row.platform in fitted else None


def leave_out(rows: Sequence[Observation], options: Options | None = None) -> list[tuple[Observation, Prediction]]:
    """Every row predicted by a fit that saw no row of its architecture, in any family of its platform."""
    result = []
    for platform in sorted({row.platform for row in rows}):
        members = [row for row in rows if row.platform == platform]
        for architecture in sorted({row.architecture for row in members}):
            kept = [row for row in members if row.architecture != architecture]
            if not kept:
                continue
            predict = _fit_platform(kept, options or Options())
            for row in members:
                prediction = predict(row) if row.architecture == architecture else None
                if prediction is not None:
                    result.append((row, prediction))
    return result
