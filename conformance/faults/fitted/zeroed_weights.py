"""Fitted faults of weights of linear layers that are zero for some inputs or for some outputs.

With a factor f_k for each input, y_no = Σ_k f_k x_nk w_ok + b_o, estimated as in `columns`, an input that is not read has f_k = 0
and all others have f_k = 1: those of a pruned head, or of the ranks whose products are not added. An output whose row of the weight
is zero is its bias, y_no = b_o: the logit of a token whose embedding is zero, where the decoder is tied to the table.
"""

import numpy as np

from conformance.faults.fault import with_parameters
from conformance.faults.fitted.columns import factors_of
from conformance.faults.fitted.fitted_fault import Fit, FitData, Fitted
from conformance.faults.fitted.lookup_words import first_to_last
from conformance.faults.kinds import LINEARS
from conformance.numerics.arrays import as_array
from conformance.numerics.formats import Mask
from conformance.oracle import Step
from conformance.oracle.linear import Linear


def _inputs_zeroed(step: Step, data: FitData) -> Fit | None:
    """Return the layer with columns of zeros at the inputs whose factor is nearer to 0 than to 1, if it is known to a half."""
    found = factors_of(step, data)
    if found is None:
        return None
    factors, error = found
    return _with_zeros(step, (factors < 0.5) & (error < 0.5), "input")


def _outputs_zeroed(step: Step, data: FitData) -> Fit | None:
    """Return the layer with rows of zeros at the outputs that equal the bias in each row, although the correct result does not."""
    assert isinstance(step, Linear)
    axes, room = tuple(range(data.actual.ndim - 1)), data.largest * data.allowed
    equal = (np.abs(data.actual - step.bias) <= room) | ~data.judged
    differs = (np.abs(data.actual - step.value) > room) & data.judged
    return _with_zeros(step, as_array(equal.all(axes) & differs.any(axes)), "output")


def _with_zeros(step: Step, chosen: Mask, what: str) -> Fit | None:
    """Return the layer with zeros at some of its inputs or outputs; None if there are none, or no others."""
    if not chosen.any() or chosen.all():
        return None
    weight = np.where(chosen if what == "input" else chosen[:, None], 0.0, step.site.parameters["weight"])
    return Fit(with_parameters(step, weight=weight), int(chosen.sum()), *first_to_last(np.flatnonzero(chosen), what))


ZEROED_WEIGHTS = (
    Fitted("inputs-zeroed", LINEARS, "some of its inputs are not read: their columns of the weight act as zeros", "constructed",
           _inputs_zeroed, "a head that is pruned at the output alone; a product of one rank that is not added",
           equation="y_o = Σ_k x_k w_ok + b_o over some of the inputs k",
           fix="Read every input, with the checkpoint's weight.",
           estimates="not read"),
    Fitted("outputs-zeroed", LINEARS, "some of its outputs are the bias alone: their rows of the weight act as zeros",
           "constructed", _outputs_zeroed, "a padding row that is set to zero in a table to which the decoder is tied",
           equation="y_o = b_o for some of the outputs o",
           fix="Load every row of the weight from the checkpoint.",
           estimates="zero"),
)  # fmt: skip
