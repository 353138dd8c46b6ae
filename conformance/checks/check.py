"""A check, and a request to run one; imports are light because commands need them before any check runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from conformance.judge import Depth
from conformance.results.case import Case, KnownFailure

if TYPE_CHECKING:
    from conformance.candidates.registry import Implementation
    from conformance.goldens.golden import Golden
    from conformance.results.example import Example
    from conformance.results.result import Result

EXAMPLES = 20


@dataclass(frozen=True)
class Plan:
    """The extent of searches and judgements.

    Attributes:
        examples: the number of examples per check.
        seed: the seed of the drawn examples; None to draw different examples on each run.
        depth: the depth of a judgement, `full` or `screen`.
        shared: the number of examples among which the false-alarm probability is shared, if that is more than `examples`: those of
            the search that found an example which is tried again.
    """

    examples: int = EXAMPLES
    seed: int | None = 0
    depth: Depth = "full"
    shared: int = 0


USUAL = Plan()


@dataclass(frozen=True)
class Request:
    """What is to be run: one check of one candidate on one golden. The command line, pytest and Python make it; checks take it.

    Attributes:
        case: the key of the result.
        implementation: the candidate as requested: its name, or an object.
        network: the golden as requested: a name that `open_golden` accepts, or a golden.
        runs: number of checks among which the false-alarm probability is shared.
        plan: the extent of the search and of the judgement.
        examples: examples to try before any is drawn.
        require: patterns of activations that must be observed; used only by checks that judge all exposed activations.
        known_failures: those of the run that apply to the case; None if the candidate's own do not apply either.
        load: returns the candidate for a name or an object (`load_implementation` by default).
    """

    case: Case
    implementation: Any
    network: "str | Golden"
    runs: int = 1
    plan: Plan = USUAL
    examples: "Sequence[Example]" = ()
    require: Sequence[str] = ()
    known_failures: Sequence[KnownFailure] | None = None
    load: "Callable[[Any], Implementation] | None" = None

    @classmethod
    def of(
        cls,
        implementation: Any,
        golden: "str | Golden" = "tiny",
        device: str = "cpu",
        dtype: str = "float32",
        check: str = "values",
        **further: Any,
    ) -> Self:
        """Return the request with the case of these names, and with further attributes."""
        from conformance.candidates.registry import name_of

        network = golden if isinstance(golden, str) else getattr(golden, "name", str(golden))
        return cls(Case(name_of(implementation), network, str(device), str(dtype), check), implementation, golden, **further)

    @cached_property
    def candidate(self) -> "Implementation":
        """The loaded candidate; raises what `load` raises."""
        from conformance.candidates.registry import load_implementation
        from conformance.results.termination import waiting

        with waiting():
            return (self.load or load_implementation)(self.implementation)

    @cached_property
    def golden(self) -> "Golden":
        """The opened golden; raises what `open_golden` raises."""
        from conformance.errors import UsageError
        from conformance.goldens.custom_golden import open_golden
        from conformance.goldens.golden import Golden

        found = open_golden(self.network) if isinstance(self.network, str) else self.network
        if not isinstance(found, Golden):
            raise UsageError(f"a golden is a name or what golden_of() makes, not {found!r}")
        return found

    def of_candidate(self, candidate: Any) -> Self:
        """Return the request for another object as its candidate, such as a view of it."""
        return replace(self, implementation=candidate, load=None)

    def on(self, golden: "Golden") -> Self:
        """Return the request for the same loaded candidate on another golden."""
        return replace(self.of_candidate(self.candidate), network=golden)


@dataclass(frozen=True)
class Check:
    """A check: what it is for its users, and the function that does it, whose docstring describes the method.

    Attributes:
        name: the name used in test ids, results and known failures.
        proves: the property that a passing candidate has.
        catches: examples of mistakes that the check finds.
        remedy: the usual repair of a candidate that fails.
        function: what the check does; each kind of check calls it in its own way.
        every_golden: whether the check runs on all goldens; if not, it runs on the small ones only.
        searches: whether batches are drawn at random; if not, they are those of the golden.
        inputs: a description of the inputs.
    """

    name: str
    proves: str
    catches: str
    remedy: str
    function: Callable[..., Any]
    every_golden: bool = False
    searches: ClassVar[bool] = False
    inputs: ClassVar[str] = "the golden's own batches"

    @classmethod
    def of(cls, name: str, **attributes: Any) -> Callable[[Callable[..., Any]], Self]:
        """Return the decorator that makes a function a check of this kind, with these attributes."""
        return lambda function: cls(name, function=function, **attributes)

    def run(self, request: Request) -> "Result":
        """Do the check and return its result; no exception is raised."""
        raise NotImplementedError


@dataclass
class Count:
    """The number of things that a check has tried, such as training steps or rows; 0 until there is something to judge."""

    tried: int = 0


class CountingCheck(Check):
    """A check whose function sets the count of what it tries, and returns what is wrong, or an empty text."""

    def run(self, request: Request) -> "Result":
        """Call the function and return the result; no exception is raised."""
        from conformance.results.result import Searched
        from conformance.results.termination import Termination, run_guarded

        count = Count()

        def judged() -> Termination:
            wrong = self.wrong(request, count)
            return Termination("fail", wrong, 1) if wrong else Termination("pass")

        termination = run_guarded(judged)
        return termination.result(request.case, executed=count.tried > 0 and termination.is_judged, searched=Searched(count.tried))

    def wrong(self, request: Request, count: Count) -> str:
        """Return what is wrong, or an empty text."""
        return str(self.function(request, count))
