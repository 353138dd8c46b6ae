"""Description of a residual that no known mistake explains: where it is, and what it is composed of.

Nothing here decides whether a step is correct. A step that has already failed is described by the location of its residual
(`judge.localization`), and by terms computed from the correct value and the step's own inputs and parameters
(`judge.residual_models`). An explanation must leave a residual that a correct candidate could have.
"""

from dataclasses import dataclass

import numpy as np

from conformance.judge.localization import Localization, extent, rendered
from conformance.judge.residual_models import ResidualFinding, ResidualProblem, residual_findings
from conformance.judge.residual_models.residual_problem import TINY
from conformance.judge.selection import Mask
from conformance.numerics.formats import Array
from conformance.oracle import Step


@dataclass(frozen=True)
class ResidualDescription:
    """The description of a residual.

    Attributes:
        extent: where the residual is.
        residual_findings: its components in that region, best first; either all of them explain the residual completely, or none.
    """

    extent: Localization
    residual_findings: tuple[ResidualFinding, ...] = ()


def anatomy(
    step: Step, actual: Array, sigma: Array, bound: Array | float, judged: Mask, limits: tuple[float, float]
) -> ResidualDescription:
    """Return the description of the residual that a candidate has when it computes an activation from the parents of `step`.

    Args:
        step: the oracle's step on the candidate's own parents.
        actual: the candidate's array.
        sigma: standard deviation of each element's random error.
        bound: largest deterministic error of each element.
        judged: mask of the elements that count.
        limits: largest RMS and largest error, in sigma, that an explanation may leave.
    """
    shape = actual.shape
    case = ResidualProblem(
        step,
        np.where(judged, actual, step.value),
        np.maximum(sigma, np.abs(step.value) * np.finfo(np.float64).eps + TINY),  # An exact step is held to float64 precision.
        np.broadcast_to(np.asarray(bound, np.float64), shape),
        np.broadcast_to(judged, shape),
        limits,
    )
    if not case.judged.any():
        return ResidualDescription(Localization(0, 0))
    found, region = extent(case)
    return ResidualDescription(found, residual_findings(case, region))


def sentences(found: ResidualDescription) -> tuple[str, ...]:
    """Return sentences that state where the residual is, then what explains it or accounts for a share of it."""
    there = "there " if found.extent.places else ""
    made_of = [there + _sentence(f) for f in found.residual_findings] or ["nothing that was looked for accounts for the residual"]
    return (rendered(found.extent), *made_of)


def _sentence(finding: ResidualFinding) -> str:
    if finding.explained:
        return f"{finding.sentence}; nothing beyond noise remains"
    if not finding.share:
        return finding.sentence
    return f"{finding.sentence}; that accounts for {100.0 * finding.share:.4g} % of the residual's energy, not for all"
