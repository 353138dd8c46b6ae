"""Judgement of differences: statistics with derived thresholds, local and global error, matched filters.

- The verdicts: `judge.Judge` decides for each activation of a stream, after `validate`, as far as its `depth` says;
  `select_arithmetic`, `further_rows` and `disambiguation` decide once all activations are there. `evidence` has the conclusions
  as values.
- The expected result and its error: `segment` and `observation` (from the candidate's own inputs), `noise`, `limits`,
  `judged_elements`, `looked_up_rows` and `effective_samples` (which elements count, and how many are independent).
  `exact_requirements` are those of elements that must be finite, zero or exactly right.
- Large activations: `gate`, which tests a sample exactly (`parts`) and verifies the rest, products by `projections`.
- The local error: `local_error`, by `block_totals`, `sums` and `filters`, for the faults of a segment, each a direction of
  `fault_directions` with `fault_effects`; `screen` is the same without filters.
- The global error: `global_error`, which a step may amplify, with `sampled_sigma`, kept by `cache`.
- A failing activation: `failing_activation`, by `whole_activation` under each hypothesis, `explanation_search`, which solves a
  `step_problem`, and `by_hand`. `search` finds the sets of faults that explain an array, here and in `diagnosis`.
- What nothing explains: `residual_description`, with `error_distribution` and `narrower_format`.
- What follows a wrong step: `backward_of_wrong_steps`; `layer_order`, one origin for layers in the wrong order; and
  `found_equations`, the equations that a candidate has instead, and sigma propagated through them.
- Other tests: `dropout_masks`, `initial_draws`, `loss_curve`, `cosines`.
- Properties of the goldens: `detection_power`, `verify_goldens`.
- Words: `number_words`, `step_phrases`. Parallel execution: `threads`.
"""
