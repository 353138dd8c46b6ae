"""Test whether a residual has the size that computing in a narrower format would leave.

A runtime may choose its format itself and store the results in the promised one. Rounding then differs with every kernel that fuses
steps differently, so no change of the oracle's steps accounts for the residual, and only its size is known.
"""

import numpy as np

from conformance.judge.judged_elements import Mask
from conformance.judge.segment import Segment
from conformance.numerics.arithmetic import representative_hypothesis
from conformance.numerics.formats import FORMATS, Array, Format

USUAL = (0.3, 2.0)  # RMS in sigma of correct runs, measured over the goldens and the benchmarks' pages
_HALF = ("bfloat16", "float16")
_REMEDY = (
    "a runtime may choose its format itself; ask it for {storage} (OpenVINO: INFERENCE_PRECISION_HINT, oneDNN: "
    "ONEDNN_DEFAULT_FPMATH_MODE)"
)


def narrower_format(segment: Segment, actual: Array, judged: Mask, storage: Format, largest: float) -> tuple[str, ...]:
    """Return a sentence for each half-precision format in whose sigma the residual is usual; none for a single step.

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
    for name in _HALF:
        if FORMATS[name].precision < storage.precision:
            sigma = np.sqrt(np.broadcast_to(segment.propagate({}, representative_hypothesis(name)), actual.shape))[judged]
            error = (actual - segment.value)[judged] / sigma
            rms, most = float(np.sqrt(np.mean(error**2))), float(np.abs(error).max())
            if USUAL[0] <= rms <= USUAL[1] and most <= largest:
                remedy = _REMEDY.format(storage=storage.name)
                found.append(
                    f"as much as computing in {name} would leave: RMS {rms:.2g} of its sigma, largest {most:.2g}; {remedy}"
                )
    return tuple(found)
