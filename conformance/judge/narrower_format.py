"""Test whether a residual has the size, and the form, that computing in a narrower format would leave.

A runtime may choose its format itself and store the results in the promised one. Rounding then differs with every kernel that
fuses steps differently, so no change of the oracle's steps accounts for the residual, and only its statistics are known: its size,
and how many patterns over the features it has. With s_k the singular values of the residual in sigma, as a matrix of rows and
features, the number of patterns is

    n = (Σ s_k²)² / Σ s_k⁴

One wrong factor or weight leaves few patterns in all rows. Rounding leaves as many as `DRAWS` draws of it show, in which every
result and every weight has its own rounding error; that of a weight is the same in all rows.
"""

import math
from dataclasses import replace

import numpy as np
from scipy.special import stdtrit

from conformance.judge.judged_elements import Mask
from conformance.judge.number_words import COINCIDENCE
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import Arithmetic, Hypothesis, representative_hypothesis
from conformance.numerics.formats import FORMATS, Array, Format

USUAL = (0.3, 2.0)  # RMS in sigma of correct runs, measured over the goldens and the benchmarks' pages
DRAWS = 8  # passes over the segment; their spread is known to a relative deviation of 1/√(2·7), which Student's t allows for
HALF = ("bfloat16", "float16")
_SAID = "as much as computing in {} would leave"
_REMEDY = (
    "autocast sets a format, and a runtime may choose its own; ask it for {storage} (OpenVINO: INFERENCE_PRECISION_HINT, oneDNN: "
    "ONEDNN_DEFAULT_FPMATH_MODE)"
)


def narrower_format(segment: Segment, actual: Array, judged: Mask, storage: Format, largest: float) -> tuple[str, ...]:
    """Return a sentence for each half-precision format in whose sigma the residual is usual; none for a single step.

    The sentence says whether the form of the residual is that of rounding too; only then is the format named as a cause.

    Args:
        segment: several steps, from the activations that the candidate exposes.
        actual: the candidate's array.
        judged: mask of the elements that count.
        storage: the promised format.
        largest: the largest error, in sigma, that a correct run may have.
    """
    if segment.is_single_step:
        return ()
    found = []
    for name in HALF:
        if FORMATS[name].precision < storage.precision:
            sigma = np.sqrt(np.broadcast_to(segment.propagate({}, representative_hypothesis(name)), actual.shape))
            error = _in_sigma(actual - segment.value, sigma, judged)
            rms, most = math.sqrt(float(np.square(error).sum()) / int(judged.sum())), float(np.abs(error).max())
            if USUAL[0] <= rms <= USUAL[1] and most <= largest:
                size = f"RMS {rms:.2g}, largest {most:.2g}, in units of its rounding error"
                found.append(
                    _sentence(
                        name,
                        size,
                        _patterns(error),
                        _least_patterns(segment, representative_hypothesis(name), sigma, judged),
                        storage,
                    )
                )
    return tuple(found)


def format_of(sentence: str) -> str:
    """Return the format that a sentence of `narrower_format` names as a cause; empty for other sentences."""
    return next((name for name in HALF if sentence.startswith(_SAID.format(name))), "")


def _sentence(name: str, size: str, patterns: float, least: float, storage: Format) -> str:
    if patterns >= least:
        return f"{_SAID.format(name)}: {size}; {_REMEDY.format(storage=storage.name)}"
    return (
        f"as large as computing in {name} would leave ({size}), but not of its form: the error consists of about {patterns:.2g} "
        f"patterns over the features, where rounding leaves at least {least:.2g}; a small error in one equation or weight may "
        "leave this. Expose more activations to place it"
    )


def _in_sigma(error: Array, sigma: Array, judged: Mask) -> Array:
    return np.where(judged, error / sigma, 0.0)


def _patterns(error: Array) -> float:
    """Return the effective number of patterns over the last axis."""
    squares = np.linalg.svd(error.reshape(-1, error.shape[-1]), compute_uv=False) ** 2
    return float(squares.sum() ** 2 / np.square(squares).sum()) if squares.any() else 0.0


def _least_patterns(segment: Segment, hypothesis: Hypothesis, sigma: Array, judged: Mask) -> float:
    """Return the number of patterns that the residual of a further draw falls below with the probability `COINCIDENCE`.

    It is the lower end of a prediction interval for the logarithm, which is taken as normal: mean − t s √(1 + 1/n).
    """
    rng = np.random.default_rng(0)
    draws = (_drawn(segment, hypothesis.arithmetic, rng) - segment.value for _ in range(DRAWS))
    logs = np.log([_patterns(_in_sigma(draw, sigma, judged)) for draw in draws])
    return math.exp(logs.mean() + stdtrit(DRAWS - 1, COINCIDENCE) * logs.std(ddof=1) * math.sqrt(1.0 + 1.0 / DRAWS))


def _drawn(segment: Segment, arithmetic: Arithmetic, rng: np.random.Generator) -> Array:
    """Return the result of a segment with a random rounding error of each step's result and of each weight."""
    variance = arithmetic.storage.rounding_variance
    values: dict[str, Array] = {}
    with np.errstate(all="ignore"):  # masked scores may be infinite
        for name, step in segment.steps.items():
            parents = segment.network.table[name].parents
            rounded = {n: p + np.sqrt(variance(p)) * rng.standard_normal(p.shape) for n, p in step.site.parameters.items()}
            drawn = step.replaced(
                site=replace(step.site, parameters=rounded),
                parents=tuple(values.get(p, own) for p, own in zip(parents, step.parents, strict=True)),
            )
            deviation = np.sqrt(drawn.roundings(arithmetic).variance())
            values[name] = drawn.value + deviation * rng.standard_normal(drawn.value.shape)
    return values[segment.name]
