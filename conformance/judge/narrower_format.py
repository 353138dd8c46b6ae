"""Test whether a residual has the size, and the form, that computing in a narrower format would leave.

A runtime may choose its format itself and store the results in the promised one. Rounding then differs with every kernel that
fuses steps differently, so no change of the oracle's steps accounts for the residual, and only its statistics are known: its size,
and how many patterns over the features it has. With s_k the singular values of the residual in sigma, as a matrix of rows and
features, the number of patterns is

    n = (Σ s_k²)² / Σ s_k⁴

A wrong factor leaves as many patterns as the result itself has, or one, and a wrong weight few. Rounding leaves about as many as
`DRAWS` draws show in which only the operands of products are rounded, as under autocast; results that are rounded too have more.
The form is that of rounding if ln n is nearer to the draws' mean than to that of the result. It shows nothing where half of their
distance is within the standard deviation of a draw, as with few numbers.
"""

import math
from dataclasses import replace

import numpy as np

from conformance.faults.fault import PRODUCTS
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.numerics.formats import FORMATS, Array, Format, Mask, as_array

USUAL = (0.3, 2.0)  # RMS in sigma of correct runs, measured over the goldens and the benchmarks' pages
# If ln n deviates by s, half of its mean over D draws deviates by s/(2 √D), and its difference from the candidate's ln n by
# s √(1 + 1/(4 D)): by 1.6 % more than with infinitely many draws.
DRAWS = 8
HALF = ("bfloat16", "float16")
_SAID = "as much as computing in {} would leave"
_REMEDY = (
    "autocast sets a format, and a runtime may choose its own; ask it for {storage} (OpenVINO: INFERENCE_PRECISION_HINT, oneDNN: "
    "ONEDNN_DEFAULT_FPMATH_MODE)"
)


def narrower_format(segment: Segment, actual: Array, judged: Mask, storage: Format, largest: float) -> tuple[str, ...]:
    """Return a sentence for each half-precision format in whose sigma the residual is usual.

    There is none for a single step, for steps without a product, and for a single number.

    The sentence says whether the form of the residual is that of rounding too; only then is the format named as a cause.

    Args:
        segment: several steps, from the captured activations.
        actual: the candidate's array.
        judged: mask of the elements that count.
        storage: the promised format.
        largest: the largest error, in sigma, that a correct run may have.
    """
    if (
        not actual.ndim
        or not any(step.site.activation.kind in PRODUCTS for step in segment.steps.values())
        or segment.is_single_step
    ):
        return ()
    found = []
    for name in HALF:
        if FORMATS[name].precision < storage.precision:
            sigma = np.sqrt(np.broadcast_to(segment.propagate({}, representative_hypothesis(name)), actual.shape))
            error = _in_sigma(actual - segment.value, sigma, judged)
            rms, most = math.sqrt(float(np.square(error).sum()) / int(judged.sum())), float(np.abs(error).max())
            if USUAL[0] <= rms <= USUAL[1] and most <= largest:
                size = f"RMS {rms:.2g}, largest {most:.2g}, in units of its rounding error"
                logs = _log_patterns_of_rounding(segment, FORMATS[name], sigma, judged)
                own = max(_log_patterns(_in_sigma(segment.value, sigma, judged)), 0.0)
                found.append(_sentence(name, size, _log_patterns(error), logs, own, storage))
    return tuple(found)


def format_of(sentence: str) -> str:
    """Return the format that a sentence of `narrower_format` names as a cause; empty for other sentences."""
    return next((name for name in HALF if sentence.startswith(_SAID.format(name))), "")


def _sentence(name: str, size: str, found: float, logs: Array, own: float, storage: Format) -> str:
    """Return the sentence for a format, given ln n of the residual, of the draws, and of the result."""
    usual, deviation = float(logs.mean()), float(logs.std(ddof=1)) * math.sqrt(1.0 + 1.0 / (4.0 * DRAWS))
    if not (usual - own) / 2.0 > deviation:
        return (
            f"as large as computing in {name} would leave ({size}); so few numbers do not show whether it has its form: a small "
            "error in one equation or weight may leave this. Expose more activations to place it"
        )
    if found >= (usual + own) / 2.0:
        return f"{_SAID.format(name)}: {size}; {_REMEDY.format(storage=storage.name)}"
    return (
        f"as large as computing in {name} would leave ({size}), but not of its form: the error consists of about "
        f"{math.exp(found):.2g} patterns over the features, where rounding leaves about {math.exp(usual):.2g}; a small error in "
        "one equation or weight may leave this. Expose more activations to place it"
    )


def _in_sigma(error: Array, sigma: Array, judged: Mask) -> Array:
    return np.where(judged, error / sigma, 0.0)


def _log_patterns(error: Array) -> float:
    """Return the logarithm of the effective number of patterns over the last axis; −∞ for zeros."""
    squares = np.linalg.svd(error.reshape(-1, error.shape[-1]), compute_uv=False) ** 2
    return math.log(squares.sum() ** 2 / np.square(squares).sum()) if squares.any() else -math.inf


def _log_patterns_of_rounding(segment: Segment, narrow: Format, sigma: Array, judged: Mask) -> Array:
    """Return the logarithm of the number of patterns that rounding leaves, in each draw."""
    rng = np.random.default_rng(0)
    draws = (_drawn(segment, narrow, rng) - segment.value for _ in range(DRAWS))
    return np.array([_log_patterns(_in_sigma(draw, sigma, judged)) for draw in draws])


def _drawn(segment: Segment, narrow: Format, rng: np.random.Generator) -> Array:
    """Return the result of a segment in which every operand of a product has a random rounding error."""

    def rounded(x: Array) -> Array:
        return as_array(x + np.sqrt(narrow.rounding_variance(x)) * rng.standard_normal(x.shape))

    values: dict[str, Array] = {}
    operands: dict[str, Array] = {}  # An activation that several products read is rounded once.
    with np.errstate(all="ignore"):  # masked scores may be infinite
        for name, step in segment.steps.items():
            parents = {p: values.get(p, own) for p, own in zip(segment.network.table[name].parents, step.parents, strict=True)}
            drawn = step.replaced(parents=tuple(parents.values()))
            if step.site.activation.kind in PRODUCTS:
                operands |= {p: rounded(x) for p, x in parents.items() if p not in operands}
                weights = {n: rounded(w) if n == "weight" else w for n, w in step.site.parameters.items()}
                drawn = step.replaced(site=replace(step.site, parameters=weights), parents=tuple(operands[p] for p in parents))
            values[name] = drawn.value
    return values[segment.name]
