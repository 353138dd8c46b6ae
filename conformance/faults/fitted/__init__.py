"""Fitted faults: steps with numbers that are estimated from the candidate's array, such as other parameters, ids or masks.

Such fits can explain many errors, so they are tried last. A fit is considered only if the array could refute it, by more judged
elements than numbers that are fitted to them or, for a weight that acts like a random one (`initial_parameters`), by their
distribution. The judge accepts a fit if the remaining residual passes as that of a correct step.
"""

from conformance.faults.fitted.attention import FITTED_ATTENTION
from conformance.faults.fitted.dropout import FITTED_DROPOUT
from conformance.faults.fitted.embeddings import FITTED_TYPES_AND_POSITIONS, FITTED_WORDS
from conformance.faults.fitted.fitted_fault import Fit, FitData, Fitted
from conformance.faults.fitted.functions import FITTED_FUNCTIONS, UNNORMALISED
from conformance.faults.fitted.initial_parameters import INITIAL
from conformance.faults.fitted.low_rank import FEW_COLUMNS, LOW_RANK
from conformance.faults.fitted.parameters import FITTED_BIASES_AND_ORDERS, FITTED_PARAMETERS, OTHER_WEIGHTS
from conformance.faults.fitted.probabilities import FITTED_PROBS
from conformance.faults.fitted.products import FITTED_LAYOUTS, FITTED_PRODUCTS
from conformance.faults.fitted.quantized import CLIPPED_INPUTS, QUANTIZED_INPUTS, UNSIGNED, ZERO_POINTS
from conformance.faults.fitted.rows import FITTED_ROWS, ROWS_OF_LOOKUPS, ZERO_TOKENS
from conformance.faults.fitted.scaled_outputs import SCALED_COLUMNS, SCALED_OUTPUTS, ZEROED_WEIGHTS
from conformance.faults.fitted.scores import FITTED_SCORES

FITTED: tuple[Fitted, ...] = (
    *ROWS_OF_LOOKUPS,
    *FITTED_WORDS,
    ZERO_TOKENS,
    *FITTED_ATTENTION,
    *FITTED_SCORES,
    *FITTED_PROBS,
    *FITTED_ROWS,
    *FITTED_DROPOUT,
    *FITTED_TYPES_AND_POSITIONS,
    *FITTED_PRODUCTS,
    *CLIPPED_INPUTS,
    *FITTED_LAYOUTS,
    *ZERO_POINTS,
    *FITTED_BIASES_AND_ORDERS,
    *ZEROED_WEIGHTS,
    *SCALED_OUTPUTS,
    *SCALED_COLUMNS,
    *FEW_COLUMNS,
    *LOW_RANK,
    *INITIAL,
    *FITTED_PARAMETERS,
    *QUANTIZED_INPUTS,
    *FITTED_FUNCTIONS,
    UNSIGNED,
    UNNORMALISED,
)
"""All fitted faults, in the order in which they are tried."""

DESCRIPTIONS = frozenset(fitted.name for fitted in FITTED if fitted.is_description)
"""The names of those that describe the result and do not name a mistake (`Fitted.is_description`)."""

OF_WEIGHTS = (*FEW_COLUMNS, *LOW_RANK, *OTHER_WEIGHTS)
"""Those that fit the weights of a linear layer, for which they need more rows than the layer has inputs."""

__all__ = ["DESCRIPTIONS", "FITTED", "OF_WEIGHTS", "Fit", "FitData", "Fitted"]
