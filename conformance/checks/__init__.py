"""The checks that a candidate must pass, and the code that runs them.

- `check.Check` describes a check, `catalogue.CHECKS` lists them, and `check.CheckRequest` is a request to run one.
- `run_check.check` is the public function. It and the command line run a check with `run_check.run_check`.
- `activation_checks` are the checks that judge activations: `check_values.check_values` judges the passes (`passes.Pass`) that
  `passes.forward_passes`, `backward_passes`, `training_passes`, `optimizer_passes` or `initial_passes` list, of the candidate or
  of a view of it with a part of its activations; `moments` are tested on the way.
- `laws` are the checks that search for a batch on which a property fails: `execute_law.execute` runs them with `search`, from
  `attached_examples` first.
- `data` are the checks of pre-training data; `learning` and `loss_curve` those of training loops. `counted` makes the results of
  checks that count what they judge. `published` compares outputs that others have published.
- `contract` asks a candidate what it supports and for its runner, reads what it yields and checks it; `candidate_device` views a
  candidate and says where it computes, and `integrity` detects that it has altered the data by which it is judged.
- `known_failures` are declared in a file and mark the results: `validate_patterns` refuses patterns that match nothing.
- `recording` writes a run to its folder, with the header of `run_header` and files that reproduce failures (`repro`); `replay` runs
  a failed check again. `trace` stores all activations of a candidate.
"""
