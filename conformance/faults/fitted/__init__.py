"""Fitted mistakes: steps with numbers that are estimated from the candidate's array, such as other parameters, ids or masks.

Such fits can explain many errors, so they are tried last. A fit is considered only if the array could refute it, by more judged
elements than numbers that are fitted to them or, for a weight that acts like a random one, by their distribution. The judge accepts
a fit if the remaining residual passes as that of a correct step.
"""

from conformance.faults.fitted.attention import FITTED_ATTENTION, FITTED_SUMS
from conformance.faults.fitted.dropout import FITTED_DROPOUT
from conformance.faults.fitted.embeddings import FITTED_EMBEDDINGS
from conformance.faults.fitted.fitted_fault import Fit, FitData, Fitted
from conformance.faults.fitted.parameters import FITTED_PARAMETERS, OTHER_WEIGHTS
from conformance.faults.fitted.quantized import FITTED_LEVELS
from conformance.faults.fitted.results import FITTED_RESULTS

FITTED: tuple[Fitted, ...] = (
    *FITTED_ATTENTION,
    *FITTED_DROPOUT,
    *FITTED_PARAMETERS,
    *FITTED_EMBEDDINGS,
    *FITTED_LEVELS,
    *FITTED_SUMS,
    *FITTED_RESULTS,
)
"""All of them, in the order in which they are tried."""

DESCRIPTIONS = frozenset(fitted.name for fitted in FITTED if fitted.is_description)
"""The names of those that describe the result and do not name a mistake (`Fitted.is_description`)."""

OF_RESULT = frozenset(fitted.name for fitted in FITTED if fitted.of_result)
"""The names of the descriptions of the result itself, whatever the step's operands are."""

__all__ = ["DESCRIPTIONS", "FITTED", "OF_RESULT", "OTHER_WEIGHTS", "Fit", "FitData", "Fitted"]
