"""Judgement of differences: statistics with derived thresholds, local and global error, matched filters.

One batch passes from `observation` (an activation with the captured ones before it) over `judge.Judge` and `local_error` to
`judged_array`, the statistics of one array by one `segment` under one hypothesis, and to `evidence`, the conclusions as values.

- The verdicts: `judge` decides for each activation of a stream, after `requirements`; `select_arithmetic` and
  `further_batches` decide once all activations are there.
- The expected result and its error: `segment` and `observation` (from the candidate's own inputs), `noise`, `judged_elements` and
  `looked_up_rows` (which elements count, and how many are independent).
- Large activations: `gate`, which tests a sample exactly and verifies the rest.
- The filters of mistakes: `filters`, each of a direction of `fault_directions`, summed by `fault_effects`.
- The global error, which a step may amplify, and its unit: `global_error`, kept by `cache`.
- A failing activation: `failing_activation`, by `explanation_search`, which solves a `step_problem`. `search` finds the sets of
  faults that explain an array, here and in `diagnosis`.
- What nothing explains: `residual_description`, with `error_distribution`.
- What follows a wrong step: `backward_of_wrong_steps`; `layer_order`, one origin for layers in the wrong order.
- Other tests: `dropout_masks`, `initial_draws`, `loss_curve`, `cosines`.
- Properties of the goldens: `detection_power`, `verify_goldens`.
- Words: `number_words`, `step_phrases`. Parallel execution: `threads`.

The depths of a judgement are

- `screen`: RMS and maximum of each step: pass or fail, and where. In half-precision formats it is less strict than `full`: a
  mistake whose effect lies within the sigma of the widest legal arithmetic in every layer fails only by being named, and `screen`
  names no mistakes.
- `full`: filters, explanations and the global error as well.
- `exhaustive`: the same, of every element.

At the first two, not every element of a large activation is tested exactly (`gate`), and its global error is that of one row of the
batch in eight.
"""

import math
from typing import Literal, get_args

Depth = Literal["screen", "full", "exhaustive"]

DEPTHS: tuple[Depth, ...] = get_args(Depth)

FEATURES = 32  # of a linear layer that are projected together: the product with a projected weight costs 1/32 of the layer's
OPENED = 0.01  # probability that a gate opens for a correct step; the exact test that follows costs ten times as much as the gate
SCREENED = "which mistake it is was not looked for (depth screen)"


def visible_element() -> float:
    """Return the smallest error of a single element that opens a gate of up to a million projections.

    Its unit is the root mean square sigma of the features that are projected together, if their errors do not cancel it.
    """
    from conformance.numerics.thresholds import max_threshold  # imports NumPy, which `--help` and `list` do not need

    return math.sqrt(FEATURES) * max_threshold(10**6, OPENED)
