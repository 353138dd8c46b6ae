"""Faults of a weight's layout and size: input features in another order than that of the heads, and rows of length 1."""

from collections.abc import Iterator

import numpy as np

from conformance.faults.changes import with_stored_weight
from conformance.faults.fault import Change, Fault, FaultContext, with_parameters
from conformance.oracle import Step
from conformance.oracle.linear import Linear

_LINEAR = frozenset({"linear"})


def _inputs_reordered(*, by_feature: bool) -> Change:
    """Return the change that reads columns of shape (heads, head size) as (head size, heads), or the other way round."""

    def change(step: Step, _: FaultContext) -> Step | None:
        weight, width = step.site.parameters["weight"], step.site.architecture.head_size
        heads = weight.shape[1] // width
        if 1 in (heads, width):
            return None
        columns = weight.reshape(len(weight), *((heads, width) if by_feature else (width, heads)))
        return with_parameters(step, weight=columns.swapaxes(1, 2).reshape(weight.shape))

    return change


def _rows_of_length_one(step: Step, _: FaultContext) -> Step | None:
    """Return the layer with each row of the weight divided by its length; the quotients may be rounded."""
    weight = step.site.parameters["weight"]
    lengths = np.linalg.norm(weight, axis=1, keepdims=True)
    if not (lengths > 0.0).all():
        return None
    unit = weight / lengths
    return with_stored_weight(step, unit) if isinstance(step, Linear) else with_parameters(step, weight=unit)


# fmt: off
def faults() -> Iterator[Fault]:
    """Yield the faults of a weight's layout and size."""
    for by_feature, end, stored, read in (
        (True, "by-feature", "(heads, head size)", "(head size, heads)"),
        (False, "by-head", "(head size, heads)", "(heads, head size)"),
    ):
        yield Fault(f"weight-inputs-{end}", _LINEAR,
                    f"the inputs of the weight, in the order {stored}, are read in the order {read}",
                    "constructed, after Flax's DenseGeneral", _inputs_reordered(by_feature=by_feature),
                    "a kernel with axes for heads and features, converted with these exchanged",
                    ("attention.output.dense",), after_failure=True,
                    equation=f"column (i, j) of the shape {stored} becomes column (j, i) of the shape {read}",
                    fix="Flatten the kernel with the axis of the heads before that of their features.")
    yield Fault("decoder-normalised", _LINEAR, "the rows of the decoder's weight are divided by their lengths", "constructed",
                _rows_of_length_one, "a head of cosines, as Baichuan 2's NormHead, on a table that was trained without",
                ("predictions.decoder",), after_failure=True,
                equation="y_v = x · e_v / ‖e_v‖ + b_v",
                fix="Multiply by the word embeddings as they are.")
# fmt: on
