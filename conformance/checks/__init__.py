"""The checks that a candidate must pass, and the code that runs them.

- `check.Request` says what is to be run and `check.Check` is a function with a decorator that describes it; `catalogue.CHECKS` are
  the decorated functions.
- `run_check.check` is the public function. It, pytest and the command line run a request with `run_check.run_check`.
- `judgement` judges activations, in the passes (`passes.Pass`) of `backward_passes`, `training_passes` or `optimizer_passes`.
  `training_loops` are checks of whole training loops.
- `laws` are the checks that search for a batch on which a property fails, with `search`; `data` are those of pre-training data.
- `contract` asks a candidate what it supports and for its runner, reads what it yields and checks it; `candidate_device` views a
  candidate and says where it computes, and `integrity` detects that it has altered the data by which it is judged.
- `known_failures` are declared in a file and mark the results.
- `recording` writes a run to its folder, with the header of `run_header` and files that reproduce failures (`repro`, `snippet`);
  `replay` runs a failed check again. `trace` stores all activations of a candidate.
"""
