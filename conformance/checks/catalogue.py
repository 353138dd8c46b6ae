"""The checks by name: judgements on a golden, training, laws on drawn batches, tokenization, and pre-training data.

To add a check:

1. Write a function with a decorator, which carries its description, in the module of its topic. `@Law.of` (`checks.laws.law`)
   decorates a function of subject and example that raises `LawBroken` if the law does not hold, and otherwise returns the largest
   ratio of an error to its limit. `@Judgement.of` (`checks.judgement`) decorates a function of a request that returns the candidate
   to judge, or a view of it, and has the passes to run (`checks.passes.Passes`). `@DataCheck.of` (`checks.data.epochs`) decorates a
   function of a candidate's pre-training examples that yields a sentence for each violated property, and `@CountingCheck.of` a
   function of a request that returns what is wrong.
2. Add a new module to `MODULES`.
3. Add a candidate that fails it and, if needed, an unusual and correct one, and run the tests: `BROKEN` and `UNUSUAL` of
   `conformance/tests/lawless.py` with `test_laws.py`, or those of `test_suite.py` for activations; `BROKEN` and `CORRECT` of
   `broken_pipelines.py` and `pipelines.py` with `test_pretraining_data.py`; `WRONG` and `CORRECT` of
   `conformance.benchmarks.training.loops` with `test_training_loops.py`.
4. Paste the table printed by `python -m conformance.checks.catalogue` into `README.md` beside it.
"""

from collections.abc import Iterator, Mapping

from conformance.checks import (
    backward_passes,
    judgement,
    optimizer_passes,
    training_loops,
    training_passes,
)
from conformance.checks.check import Check
from conformance.checks.data import draws, rows
from conformance.checks.laws import batches, calls, inputs, parameters, tokenization
from conformance.errors import UnknownNameError
from conformance.names import nearest

MODULES = (
    *(judgement, backward_passes, training_passes, optimizer_passes, training_loops),
    *(batches, inputs, calls, parameters, tokenization, rows, draws),
)

CHECKS: Mapping[str, Check] = {
    value.name: value for module in MODULES for value in vars(module).values() if isinstance(value, Check)
}


def named(name: str) -> Check:
    """Return the check of that name; raise `UnknownNameError` with the nearest names if there is none."""
    if name not in CHECKS:
        raise UnknownNameError(f"no check {name!r}; {nearest(name, CHECKS)}")
    return CHECKS[name]


def table() -> Iterator[str]:
    """Yield the lines of a Markdown table with one row per check."""
    yield "| check | proves | catches, for example |"
    yield "| --- | --- | --- |"
    for check in CHECKS.values():
        yield f"| `{check.name}` | {check.proves} | {check.catches} |"


if __name__ == "__main__":
    print("\n".join(table()))
