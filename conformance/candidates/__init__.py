"""Candidates: finding them, building them from tables, and capturing their activations while they run.

- The interface: `registry.Implementation`, and `registry.load_implementation`, which loads one by its name. `lookup` says what a
  name stands for: an entry point of a package, an object of a module or of a file, an exported program (`archives`), a recorded
  trace (`recorded_trace`) or a program in any language (`command`). `source_imports` reads, before that, whether it needs a
  package that is slow to import.
- Torch modules: `torch_implementation` builds a candidate from a table of parameters, in `layouts`, and a table of activations, in
  `tables`, with messages on entries that do not fit; `uncovered` says what acts and is not in the checkpoint.
- Capture: `capture` of activations and `capture_gradients` of a backward pass or of a step of a training loop, by hooks.
  `hook_effects` finds the modules that hooks change, which are also run without them.
- What a runner yields: `arrays` converts it to pairs of a name and an array, and reads arrays of any library. `returned_value`
  compares the tensors that a module returns with its captured activations.
- `torch_state` restores what a candidate has changed in the process.
"""
