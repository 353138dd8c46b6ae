"""The catalogue of faults: mistakes made in real BERT implementations, each a small change of the oracle, grouped by theme.

To add a fault, add a row to its theme, to the table of words and to a table of planted mistakes:

1. The table of its theme, a tuple of `Fault`: its name, the kinds of step that it acts on (`Activation.kind`), its sentence, and an
   edit of `conformance.faults.edits`: another operand (`operand`, `reads`, `times` for the result), other parameters (`parameter`,
   `has_parameters_of`), another result (`rewritten`, `function`) or another equation with roundings of its own
   (`recast`, and `variant` for other intermediate results). `tried=ALONE` if RMS and largest error always detect it, so that it
   needs no filter. A fault with an unknown number, which is estimated with its error, has a `Parameter` in place of the edit: the
   number's name, the right one, the usual wrong one, and the step with any:

       Fault("residual-scaled", NORMS, "the residual is multiplied by {value}", only=WITH_RESIDUAL,
             parameter=Parameter("factor", lambda _: 1.0, lambda _: 0.5,
                                 lambda step, c: with_operand(step, c * step.parents[1], 1)))

   The table of words, `hints.md`, has the equation, the cause, the repair and the source.
2. A table of planted mistakes:

   | fault of | table | test of its name |
   | --- | --- | --- |
   | a forward pass | `ROWS` of a theme of `conformance.benchmarks.detection.mistakes` | step 4 |
   | a backward pass | `WRONG` of `conformance.benchmarks.gradients.wrong` | `test_gradients.py` |
   | dropout | `WRONG` of `conformance.benchmarks.training.dropouts` | `test_training_mode.py` |
   | a training step | `WRONG` of `conformance.benchmarks.training.loops` | `test_training_loops.py` |

3. Run `conformance/tests/test_faults.py`, which checks the values of the fault and requires the rows; `test_mistakes.py`, which
   checks that a mistake of a forward pass is at its declared steps; `test_explain.py`, which requires an equation and a fix;
   `test_mathematics.py`, which requires that some golden shows the fault; and the test of its name.
4. For a fault of a forward pass, run `python -m conformance.benchmarks.detection --only NAME`, which prints whether it is
   detected, placed and named; `--golden` chooses the network.

A new table is also added to `_THEMES` below, and to `OF_SOME` if its steps occur only in some networks. A fault with numbers that
are read off the candidate's array is a `Fitted` in one of the tuples listed in `conformance.faults.fitted.FITTED`, in the order in
which they are tried; the other steps, and the table of words, are the same.
"""

from collections.abc import Mapping

from conformance.faults import (
    attended,
    attention,
    embeddings,
    functions,
    gradients,
    layers,
    linear,
    losses,
    masks,
    norms,
    pooling,
    precision,
    quantized,
    training,
)
from conformance.faults.fault import Fault, FaultContext, Parameter

_THEMES = (
    functions.FAULTS,
    norms.FAULTS,
    attention.FAULTS,
    masks.FAULTS,
    embeddings.SCORES_BY_POSITION,
    embeddings.DISTANCES,
    attended.OVER_BATCH,
    attended.FAULTS,
    attended.KERNEL_FAULTS,
    linear.FAULTS,
    pooling.TRANSFORM_FAULTS,
    embeddings.FAULTS,
    losses.FAULTS,
    losses.TARGET_LOSS_FAULTS,
    pooling.FAULTS,
    pooling.DENSE_FAULTS,
    layers.FAULTS,
    layers.EARLIER_LAYER_FAULTS,
    precision.FAULTS,
    quantized.FAULTS,
    norms.FORMS,
    attention.LAYOUTS,
    pooling.POOLER_FAULTS,
    training.DROPOUT,
    gradients.TARGET_GRADIENT_FAULTS,
    gradients.FAULTS,
    training.OPTIMIZER,
)
CATALOGUE: tuple[Fault, ...] = tuple(fault for theme in _THEMES for fault in theme)
"""All faults, in the order in which equally good explanations are reported; fitted faults are in `faults.fitted`."""

BY_NAME: Mapping[str, Fault] = {fault.name: fault for fault in CATALOGUE}


def reported_as(name: str) -> str:
    """Return the name of the fault that is reported in place of this one where both are the same function (`Fault.same_as`)."""
    same = BY_NAME[name].same_as if name in BY_NAME else None
    return same.name if same else name


OF_SOME: tuple[frozenset[str], ...] = tuple(
    frozenset(fault.name for fault in theme)
    for theme in (
        embeddings.DISTANCES,
        losses.TARGET_LOSS_FAULTS,
        gradients.TARGET_GRADIENT_FAULTS,
        pooling.FAULTS,
        pooling.DENSE_FAULTS,
        training.DROPOUT,
        gradients.FAULTS,
        training.OPTIMIZER,
    )
)
"""For each theme whose steps occur only in some networks or checks, the names of its faults."""

__all__ = ["BY_NAME", "CATALOGUE", "OF_SOME", "Fault", "FaultContext", "Parameter", "reported_as"]
