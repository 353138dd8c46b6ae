"""The search: Hypothesis draws examples, `target` steers them towards the largest error, and failing examples are shrunk.

If a candidate fails in two ways, only the first is shrunk, so that the smallest example shows the failure that was reported. If an
example fails once and then passes, the result depends on earlier calls; this is also reported as a failure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings, target
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from conformance.checks.check import Plan
from conformance.checks.search.agreement import Undecided
from conformance.checks.search.strategies import ROWS
from conformance.errors import CandidateCrash, CandidateEnded, CandidateError, CandidateTimeout, Unsupported, UsageError
from conformance.progress import report_progress
from conformance.results.example import Example, LawBroken, Size, largest_sizes

Failure = LawBroken | CandidateError | CandidateCrash | CandidateTimeout


class _Falsified(Exception):
    """The only exception that Hypothesis sees, of one type and raised at one place, so that it takes all failures as one."""


@dataclass
class Search:
    """A search for the smallest example on which a property fails, and its result.

    Attributes:
        tried: the number of examples run, not counting shrinking.
        worst: the largest ratio of an error to its limit among the examples that pass.
        sizes: the largest numbers of rows and tokens per row of the examples that pass.
        example, failure: the smallest failing example, and its failure.
        repeatable: whether the failing example failed again when it was run again.
    """

    tried: int = 0
    worst: float = 0.0
    sizes: tuple[Size, ...] = ()
    example: Example | None = None
    failure: Failure | None = None
    repeatable: bool = True
    _unsupported: Unsupported | None = None
    _undecided: tuple[Example, LawBroken] | None = None

    def run(
        self,
        holds: Callable[[Example], float],
        examples: SearchStrategy[Example],
        plan: Plan,
        given_examples: Sequence[Example] = (),
        boundaries: Sequence[SearchStrategy[Example]] = (),
    ) -> None:
        """Search for the smallest example on which `holds` raises a `Failure`.

        The given examples are tried first, unchanged; then drawn ones; then one per boundary. The number of examples in the plan
        includes those at boundaries, but at least half of it are drawn without restriction. A failure at a boundary is shrunk only
        within that boundary, but a batch of more rows than are usually drawn is cut by bisection. `holds` returns the ratio of an
        error to its limit, which the search maximizes. If it raises `Undecided` for an example and fails for none, the wrong step
        of that example is the failure.

        Raises:
            Unsupported: the first that `holds` raised for an example, if no example failed.
            UsageError: a given example lacks a parameter of this check's variation.
        """
        drawn = max(plan.examples - len(boundaries), (plan.examples + 1) // 2)
        planned = len(given_examples) + drawn + len(boundaries)

        def maximized(example: Example) -> None:
            excess = self._tried(holds, example, planned)
            if excess > 0.0:  # without any difference there is nothing to maximize
                target(excess)

        try:
            for example in given_examples:
                try:
                    self._tried(holds, example, planned)
                except KeyError as error:
                    raise UsageError(f"an example that is kept for this check lacks the variation {error}") from error
            for strategy, count in ((examples, drawn), *((boundary, 1) for boundary in boundaries)):
                if count:
                    seed(plan.seed)(_configured(given(strategy)(maximized), count))()
        except _Falsified:
            self._cut(holds)
        except Flaky:
            if self.failure is None:
                raise
            self.repeatable = False
        if self.failure is None and self._undecided is not None:
            self.example, self.failure = self._undecided
        if self.failure is None and self._unsupported is not None:
            raise self._unsupported

    def _tried(self, holds: Callable[[Example], float], example: Example, planned: int) -> float:
        """Return the ratio of an error to its limit, 0 if nothing is decided; raise `_Falsified` if the example fails."""
        self.tried += self.failure is None
        report_progress(*self._progress(planned))
        try:
            excess = holds(example)
        except Unsupported as why:
            self._unsupported = self._unsupported or why
            return 0.0
        except Undecided as why:
            self._undecided = self._undecided or (example, why.wrong)
            return 0.0
        except (CandidateEnded, CandidateTimeout) as failure:
            if self.failure is None:  # not shrunk: the failure would be the same for every example
                self.example, self.failure = example, failure
            raise _Falsified from None
        except (LawBroken, CandidateError, CandidateCrash) as failure:
            if self.failure is None or type(failure) is type(self.failure):
                self.example, self.failure = example, failure
                raise _Falsified from None
            return 0.0
        self.worst = max(self.worst, excess)
        self.sizes = largest_sizes([*self.sizes, (example.batch.size, example.batch.length)])
        return excess

    def _progress(self, planned: int) -> tuple[str, float]:
        """Return which example is being tried and the fraction completed; the duration of shrinking cannot be predicted."""
        if self.failure is not None:
            return f"example {self.tried} fails; a smaller one is looked for", self.tried / planned
        return f"example {self.tried} of {planned}", (self.tried - 1) / planned

    def _cut(self, holds: Callable[[Example], float]) -> None:
        """Cut a large batch that fails to the fewest rows, and these to the fewest tokens, with which it fails, by bisection."""
        ended = isinstance(self.failure, CandidateEnded | CandidateTimeout)
        if self.example is None or self.example.batch.size <= ROWS or self.example.variation or ended:
            return

        def fails(rows: int, tokens: int) -> bool:
            assert self.example is not None
            batch = self.example.batch.cut(slice(rows), tokens)
            if not batch.mask.any(-1).all():  # a row whose mask is all zeros has no defined result
                return False
            try:
                self._tried(holds, Example(batch), 1)
            except _Falsified:
                return True
            return False

        length = self.example.batch.length
        rows = _fewest(self.example.batch.size, lambda rows: fails(rows, length))
        _fewest(length, lambda tokens: fails(rows, tokens))


def _fewest(size: int, fails: Callable[[int], bool]) -> int:
    """Return the size at which a failure begins, by bisection; it fails at `size`."""
    passing, failing = 0, size
    while failing - passing > 1:
        middle = (passing + failing) // 2
        passing, failing = (passing, middle) if fails(middle) else (middle, failing)
    return failing


def _configured(test: Callable[[], None], examples: int) -> Callable[[], None]:
    """Return the test with settings for a search: without a deadline, since first calls are slow, and without a database."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        phases=[Phase.generate, Phase.target, Phase.shrink],
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )(test)
