"""The parameters with which a candidate starts training, both the random and the constant ones.

The config's `initializer_range` is set to an unusual value. Biases must be 0 and LayerNorm weights 1. All other parameters must be
drawn from N(0, initializer_range²), truncated or not; exact tests examine their moments, largest element and distribution, and the
independence within and between parameters (`conformance.judge.initial_draws`).
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from conformance.candidates.registry import Implementation
from conformance.checks.contract import ability, yielded
from conformance.checks.passes import Pass, opened
from conformance.checks.training_passes import random_numbers_from, read, values_of
from conformance.goldens.golden import Golden, with_config
from conformance.judge.initial_draws import wrong_initially
from conformance.model.activations import parameter_shapes
from conformance.model.training import at
from conformance.numerics.formats import format_named
from conformance.oracle.training_run import Initialization
from conformance.results.case import Case

# The requested initializer_range. BERT's usual value, 0.02, would not reveal a hard-coded range, and hardly torch's default:
# U(± 1/√768) of base width has a standard deviation of 1/√(3 · 768) = 0.0208.
RANGE = 0.05


def initial_passes(candidate: Implementation, golden: Golden, case: Case) -> Sequence[Pass]:
    """Return one pass that yields the parameters before training, drawn once.

    Raises:
        NotApplicable: if the runner does not provide its initial parameters.
        Unsupported, CandidateFailure: as raised by `opened` and the call.
    """
    asked = with_config(golden, initializer_range=RANGE)
    initial = ability(opened(candidate, asked, case), "initial")
    with random_numbers_from(0):
        stream = [(f"{at(0, '')}{name}" if isinstance(name, str) else name, read(value)) for name, value in yielded(initial)]
    architecture, arrays = asked.checkpoint.architecture, {name: value for name, value in stream if isinstance(name, str)}
    network = Initialization(architecture, {}, next(iter(golden.batches.values())))
    values = {name: values_of(arrays.get(at(0, name)), shape) for name, shape in parameter_shapes(architecture).items()}
    found = {name: x for name, x in values.items() if x is not None and np.isfinite(x).all()}

    def wrong(alpha: float) -> dict[str, str]:
        sentences = wrong_initially(found, architecture, format_named(case.dtype), alpha)
        return {at(0, name): sentence for name, sentence in sentences.items()}

    return [Pass("initial", "", network, partial(iter, stream), reasons_by_activation=wrong)]
