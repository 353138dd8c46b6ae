"""Description of a residual that no known mistake explains: where it is, and what it is composed of.

Nothing here decides whether a step is correct. A step that has already failed is described by the location of its residual
(`judge.localization`), and by models of the candidate's array (`judge.residual_models`), which are computed from the correct value
and the step's own inputs and parameters. A model explains the residual if it leaves one that a correct candidate could have; other
models are reported with the share of the residual that they account for.
"""

from dataclasses import dataclass

import numpy as np

from conformance.judge.depth import NO_PATTERN
from conformance.judge.localization import Localization, localize, rendered
from conformance.judge.residual_models import ResidualFinding, ResidualProblem, residual_findings
from conformance.judge.residual_models.residual_problem import TINY
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Array, Mask
from conformance.numerics.thresholds import ErrorLimits
from conformance.oracle import Step


@dataclass(frozen=True)
class ResidualDescription:
    """The description of a residual.

    Attributes:
        localization: where the residual is.
        residual_findings: models of the candidate's array in that region, best first. Either each of them alone explains the
            residual there, or none does, and each accounts for a share of it.
    """

    localization: Localization
    residual_findings: tuple[ResidualFinding, ...] = ()


def describe_residual(
    step: Step, actual: Array, sigma: Array, bound: Array | float, judged: Mask, limits: ErrorLimits
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
        np.broadcast_to(as_array(bound, np.float64), shape),
        np.broadcast_to(judged, shape),
        limits,
    )
    if not case.judged.any():
        return ResidualDescription(Localization(0, 0))
    found, region = localize(case)
    return ResidualDescription(found, residual_findings(case, region))


def sentences(found: ResidualDescription) -> tuple[str, ...]:
    """Return a sentence that states where the residual is, and one for each model that explains it or a share of it."""
    there = "there " if found.localization.places else ""
    made_of = [there + _sentence(f) for f in found.residual_findings] or [NO_PATTERN]
    return (rendered(found.localization), *made_of)


def _sentence(finding: ResidualFinding) -> str:
    if finding.kind == "noise":
        return finding.sentence  # a description of the whole error, after which nothing remains
    if finding.explained:
        return f"{finding.sentence}; what remains is within rounding"
    if not finding.share:
        return finding.sentence
    return f"{finding.sentence}; that accounts for {100.0 * finding.share:.4g} % of the squared error, not for all"
