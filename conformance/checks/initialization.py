"""What a candidate starts training from: the parameters that it draws, and those that are the same each time.

The config's `initializer_range` is set to an unusual value. Biases must be 0 and weights of LayerNorms 1; all else is drawn from
N(0, initializer_range²), truncated or not, by exact tests of its moments, its largest element, its distribution, and of
independence within and between parameters (`conformance.judge.initial_draws`).
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from conformance.candidates.registry import Implementation
from conformance.checks.passes import Pass, opened, with_config, yielded
from conformance.checks.session import ability
from conformance.checks.training import random_numbers_from, read, values_of
from conformance.goldens.golden import Golden
from conformance.judge.initial_draws import wrong_initially
from conformance.model.activations import parameter_shapes
from conformance.model.training import at
from conformance.numerics.formats import format_named
from conformance.oracle.training_run import Initialization
from conformance.results.case import Case

# The range that is asked for. At BERT's usual one, 0.02, a range that is hard-coded would not show, and hardly torch's default:
# U(± 1/√768) of base width has a standard deviation of 1/√(3 · 768) = 0.0208.
RANGE = 0.05


def initial_passes(candidate: Implementation, golden: Golden, case: Case) -> Sequence[Pass]:
    """The parameters before training, drawn once.

    Raises:
        NotApplicable: the runner does not say what training starts from.
        Unsupported, CandidateFailure: as `opened` and the call raise them.
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
        said = wrong_initially(found, architecture, format_named(case.dtype), alpha)
        return {at(0, name): sentence for name, sentence in said.items()}

    return [Pass("initial", "", network, partial(iter, stream), wrong=wrong)]
