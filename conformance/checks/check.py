"""A check, a request to run one, and its extent; imports are light because commands need them before any check runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conformance.judge import Depth
from conformance.results.case import Case

EXAMPLES = 20


@dataclass(frozen=True)
class Plan:
    """The extent of searches and judgements.

    Attributes:
        examples: the number of examples per check.
        seed: the seed of the drawn examples; None to draw different examples on each run.
        database: a Hypothesis example database, which stores failing examples; or None.
        depth: the depth of a judgement, `full` or `screen`.
        shared: the number of examples among which the false-alarm probability is shared, if that is more than `examples`: those of
            the search that found an example which is tried again.
    """

    examples: int = EXAMPLES
    seed: int | None = 0
    database: Any = None
    depth: Depth = "full"
    shared: int = 0


USUAL = Plan()


if TYPE_CHECKING:
    from conformance.goldens.golden import Golden
    from conformance.results.example import Example


@dataclass(frozen=True)
class Check:
    """A check: its name, its description for users, and the code that runs it.

    Attributes:
        name: the name used in test ids, results and known failures.
        proves: the property that a passing candidate has.
        catches: examples of mistakes that the check finds.
        entry_point: `module:name` in this package of a `Law`, or of a function that takes a `CheckRequest`; imported when the check
            runs.
        every_golden: whether the check runs on all goldens; if not, it runs on the small ones only.
        searches: whether batches are drawn at random; if not, they are those of the golden.
        remedy: the usual repair of a candidate that fails.
        inputs: a description of the inputs, if they are neither drawn batches nor those of the golden.
        described_in: the module in this package whose docstring describes the method; if empty, the module of the entry point.
    """

    name: str
    proves: str
    catches: str
    entry_point: str
    every_golden: bool = False
    searches: bool = False
    remedy: str = ""
    inputs: str = ""
    described_in: str = ""


@dataclass(frozen=True)
class CheckRequest:
    """A request to run one check on one candidate.

    Attributes:
        case: the key of the result.
        candidate: the implementation.
        golden: the network and its batches.
        runs: number of checks among which the false-alarm probability is shared.
        plan: the extent of the search and of the judgement.
        known: examples to try before any is drawn.
        require: patterns of activations that must be observed; used only by checks that judge all exposed activations.
    """

    case: Case
    candidate: Any
    golden: "Golden"
    runs: int = 1
    plan: Plan = USUAL
    known: "Sequence[Example]" = ()
    require: Sequence[str] = ()
