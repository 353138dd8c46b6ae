"""The catalogue of faults: mistakes made in real BERT implementations, each a small change of the oracle, grouped by theme.

To add a fault, change two files, its theme and a table of planted mistakes:

1. Yield it in `faults()` of the module of its theme: its name, the kinds of step that it acts on, its sentence, source and
   change, and, for `bert-conformance explain`, its equation, cause and fix. `conformance.faults.changes` has the usual changes:
   `recast` for another equation with roundings of its own, `rewritten` for another result of the same equation
   (`rewritten_equation` for a backward step), `other_parameters` for other weights. A fault with a number has a `parameter`.
   `after_failure=True` if RMS and largest error always detect it, so that it needs no filter.
2. Plant it by a row of one of these tables:

   | fault of | table | test of its name |
   | --- | --- | --- |
   | a forward pass | `ROWS` of a theme of `conformance.benchmarks.detection.mistakes` | step 4 |
   | a backward pass | `WRONG` of `conformance.benchmarks.gradients.wrong` | `test_gradients.py` |
   | dropout | `WRONG` of `conformance.benchmarks.training.dropouts` | `test_training_mode.py` |
   | a training step | `WRONG` of `conformance.benchmarks.training.loops` | `test_training_loops.py` |

3. Run `conformance/tests/test_faults.py`, which checks the values of the fault and requires step 2; `test_mistakes.py`, which
   checks that a mistake of a forward pass is at its declared steps; `test_explain.py`, which requires an equation and a fix;
   `test_mathematics.py`, which requires that some golden shows the fault; and the test of its name.
4. For a fault of a forward pass, run `python -m conformance.benchmarks.detection --only NAME`, which prints whether it is
   detected, placed and named; `--golden` chooses the network.

A new theme is also imported below and added to `_THEMES`, and to `OF_SOME` if its steps occur only in some networks. A fault with
numbers that are read off the candidate's array is a `Fitted` in one of the tuples listed in `conformance.faults.fitted.FITTED`,
whose order is the order in which they are tried; the other steps are the same.
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
    masks.SIGNS,
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
