"""Test whether a residual has the size that computing in a narrower format would leave.

A runtime may choose its format itself and store the results in the promised one. Rounding then differs with every kernel that
fuses steps differently, so no change of the oracle's steps accounts for the residual, and only its size is known.
"""

import math

import numpy as np

from conformance.faults.fault import PRODUCTS
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.numerics.formats import FORMATS, Array, Format, Mask

USUAL = (0.3, 2.0)  # RMS in sigma of correct runs, measured over the goldens and the benchmarks' pages
HALF = ("bfloat16", "float16")
_SAID = "as much as computing in {} would leave"
_REMEDY = (
    "autocast sets a format, and a runtime may choose its own; ask it for {storage} (OpenVINO: INFERENCE_PRECISION_HINT, oneDNN: "
    "ONEDNN_DEFAULT_FPMATH_MODE); a small error in one equation or weight may leave as much: expose more activations to place it"
)


def narrower_format(segment: Segment, actual: Array, judged: Mask, storage: Format, largest: float) -> tuple[str, ...]:
    """Return a sentence for each half-precision format in whose sigma the residual is usual.

    There is none for a single step, for steps without a product, and for a single number.

    Args:
        segment: several steps, from the captured activations.
        actual: the candidate's array.
        judged: mask of the elements that count.
        storage: the promised format.
        largest: the largest error, in sigma, that a correct run may have.
    """
    has_products = any(step.site.activation.kind in PRODUCTS for step in segment.steps.values())
    if not actual.ndim or not has_products or segment.is_single_step:
        return ()
    sentences = []
    for name in HALF:
        if FORMATS[name].precision < storage.precision:
            sigma = np.sqrt(np.broadcast_to(segment.propagate({}, representative_hypothesis(name)), actual.shape))
            error = np.where(judged, (actual - segment.value) / sigma, 0.0)
            rms, most = math.sqrt(float(np.square(error).sum()) / int(judged.sum())), float(np.abs(error).max())
            if USUAL[0] <= rms <= USUAL[1] and most <= largest:
                size = f"RMS {rms:.2g}, largest {most:.2g}, in units of its rounding error"
                sentences.append(f"{_SAID.format(name)}: {size}; {_REMEDY.format(storage=storage.name)}")
    return tuple(sentences)


def format_of(sentence: str) -> str:
    """Return the format that a sentence of `narrower_format` names; empty for other sentences."""
    return next((name for name in HALF if sentence.startswith(_SAID.format(name))), "")
