"""Whether a residual is as large as another format's rounding would leave it.

A runtime may choose its format itself, and store what it computed in the format that is promised: rounding then differs with every
kernel that fuses steps otherwise, so that no change of the oracle's steps accounts for it, and its size is all that is known.
"""

import numpy as np

from conformance.judge.segment import Segment
from conformance.judge.selection import Mask
from conformance.numerics.arithmetic import modular
from conformance.numerics.formats import FORMATS, Array, Format

USUAL = (0.3, 2.0)  # RMS in sigma of what correct runs leave, measured over the goldens and the pages of benchmarks
_HALF = ("bfloat16", "float16")
_REMEDY = (
    "a runtime may choose its format itself; ask it for {storage} (OpenVINO: INFERENCE_PRECISION_HINT, oneDNN: "
    "ONEDNN_DEFAULT_FPMATH_MODE)"
)


def narrower_format(segment: Segment, actual: Array, judged: Mask, storage: Format, largest: float) -> tuple[str, ...]:
    """A sentence for each half format in whose sigma the residual of several steps is usual; none of a single step.

    Args:
        segment: several steps, from what the candidate exposes.
        actual: the candidate's array.
        judged: which elements count.
        storage: the format that is promised.
        largest: the largest error, in sigma, that a correct run may have.
    """
    if segment.is_single_step:
        return ()
    found = []
    for name in _HALF:
        if FORMATS[name].precision < storage.precision:
            sigma = np.sqrt(np.broadcast_to(segment.propagate({}, modular(name)), actual.shape))[judged]
            error = (actual - segment.value)[judged] / sigma
            rms, most = float(np.sqrt(np.mean(error**2))), float(np.abs(error).max())
            if USUAL[0] <= rms <= USUAL[1] and most <= largest:
                remedy = _REMEDY.format(storage=storage.name)
                found.append(
                    f"as much as computing in {name} would leave: RMS {rms:.2g} of its sigma, largest {most:.2g}; {remedy}"
                )
    return tuple(found)
