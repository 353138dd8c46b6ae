"""Judgement of differences: statistics with derived thresholds, local and global error, matched filters.

- The verdicts: `judge.Judge` decides for each activation of a stream, after `validate`; `select_arithmetic` and
  `disambiguation` decide once all activations are there. `evidence` has the conclusions as values.
- The expected result and its error: `segment` and `observation` (from the candidate's own inputs), `noise`, `thresholds`,
  `judged_elements` and `effective_samples` (which elements count, and how many are independent).
- The local error: `local_error`, by `block_totals`, `sums` and `filters`, for the faults of `faults_of_segment`, each a direction
  of `fault_directions`; `screen` is the same without filters.
- The global error: `global_error`, with `sampled_sigma` or `propagated_sigma`, kept by `cache`.
- A failing activation: `failing_activation`, by `whole_activation` under each hypothesis, `explanation_search`, `row_projections`
  and `by_hand`. `search` finds the sets of faults that explain an array, here and in `diagnosis`. `residual_description` describes
  what remains, with `residual_models`, `localization`, `error_distribution` and `narrower_format`.
- Other tests: `dropout_masks`, `initial_draws`, `loss_curve`, `cosines`, `rank_changes`.
- Properties of the goldens: `detection_power`, `verify_goldens`.
- Words: `number_words`, `step_phrases`.
"""
