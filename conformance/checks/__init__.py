"""The checks that a candidate must pass, and the code that runs them.

- `check.Check` describes a check, `catalogue.CHECKS` lists them, and `check.CheckRequest` is a request to run one.
- `public_check.check` is the public function. It and the command line run a check with `run_check.run_check`.
- `activation_checks` are the checks that judge activations: `check_values.check_values` judges the passes (`passes.Pass`) that
  `forward_passes`, `backward_passes`, `training_passes`, `optimizer_passes` or `initial_passes` list.
- `laws` are the checks that search for a batch on which a property fails: `execute_law.execute` runs them with `search`.
- `data` are the checks of pre-training data; `learning` and `loss_curve` those of training loops.
- `contract` asks a candidate what it supports and for its runner, and checks what it returns; `candidate_stream` reads what it
  yields.
- `recording` writes a run to its folder, with the header of `run_header`.
"""
