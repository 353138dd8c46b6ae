"""The search: Hypothesis draws examples, `target` steers them towards the largest error, and failing examples are shrunk.

If a candidate fails in two ways, only the first is shrunk, so that the smallest example shows the failure that was found. If an
example fails once and then passes, the result depends on earlier calls; this is also reported as a failure.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, Phase, Verbosity, given, settings, target
from hypothesis import seed as seeded
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from conformance.checks.check import Plan
from conformance.checks.search.strategies import ROWS
from conformance.checks.search.subject import fewer, shorter
from conformance.errors import CandidateCrash, CandidateEnded, CandidateError, CandidateTimeout, Unsupported, UsageError
from conformance.progress import report_progress
from conformance.results.example import Example, LawBroken, Size, largest_sizes

Failure = LawBroken | CandidateError | CandidateCrash | CandidateTimeout


@dataclass
class SearchState:
    """The state of a search, and its result.

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


class _Falsified(Exception):
    """The only exception that Hypothesis sees, of one type and raised at one place, so that it takes all failures as one."""


class _NamespacedDatabase(ExampleDatabase):
    """A database with its own keys within another one; Hypothesis identifies a test by its function, which is the same here."""

    def __init__(self, inner: ExampleDatabase, key: str) -> None:
        super().__init__()
        self._inner, self._key = inner, key.encode()

    def save(self, key: bytes, value: bytes) -> None:
        self._inner.save(key + self._key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return self._inner.fetch(key + self._key)

    def delete(self, key: bytes, value: bytes) -> None:
        self._inner.delete(key + self._key, value)


def find_counterexample(
    holds: Callable[[Example], float],
    strategy: SearchStrategy[Example],
    plan: Plan,
    found: SearchState,
    known: Sequence[Example] = (),
    key: str = "",
    boundaries: Sequence[SearchStrategy[Example]] = (),
) -> None:
    """Search for the smallest example on which `holds` raises a `Failure`.

    The known examples are tried first, unchanged; then drawn examples; then one example per boundary. The number of examples in the
    plan includes those at boundaries, but at least half of it are drawn without restriction. A failure at a boundary is shrunk only
    within that boundary, but a batch of more rows than are usually drawn is cut by bisection. `holds` returns the ratio of an error
    to its limit, which the search maximizes. `key` distinguishes the stored examples of several searches in the database.

    Raises:
        Unsupported: the first that `holds` raised for an example, if no example failed.
        UsageError: if a known example lacks a parameter of this check's variation.
    """
    drawn = max(plan.examples - len(boundaries), (plan.examples + 1) // 2)
    guarded = _GuardedExamples(holds, found, known, len(known) + drawn + len(boundaries))

    def maximized(example: Example) -> None:
        excess = guarded.run(example)
        if excess > 0.0:  # without any difference there is nothing to maximize
            target(excess)

    searches = [(strategy, drawn, key), *((one, 1, f"{key} at boundary {i}") for i, one in enumerate(boundaries))]
    try:
        for example in known:
            guarded.run(example)
        for examples, count, name in searches:
            if count and found.failure is None:
                _configured(given(examples)(maximized), replace(plan, examples=count), name)()
    except _Falsified:
        guarded.cut()
    except Flaky:
        if found.failure is None:
            raise
        found.repeatable = False
    if guarded.skips and found.failure is None:
        raise guarded.skips[0]


@dataclass
class _GuardedExamples:
    """Runs examples, and keeps the smallest failing one.

    Attributes:
        holds, found, known: as for `find_counterexample`.
        planned: number of examples that are planned.
        skips: what `holds` raised for examples that the candidate does not support.
    """

    holds: Callable[[Example], float]
    found: SearchState
    known: Sequence[Example]
    planned: int
    skips: list[Unsupported] = field(default_factory=list)

    def run(self, example: Example) -> float:
        """Return the ratio of an error to its limit, 0 for an unsupported example; raise `_Falsified` if the example fails."""
        found = self.found
        found.tried += found.failure is None
        report_progress(*_progress(found, self.planned))
        try:
            excess = self.holds(example)
        except KeyError as error:
            if example in self.known:
                raise UsageError(f"an example that is kept for this check lacks the variation {error}") from error
            raise
        except Unsupported as why:
            self.skips.append(why)
            return 0.0
        except (CandidateEnded, CandidateTimeout) as failure:
            if found.failure is None:  # not shrunk: the failure would be the same for every example
                found.example, found.failure = example, failure
            raise _Falsified from None
        except (LawBroken, CandidateError, CandidateCrash) as failure:
            if found.failure is None or type(failure) is type(found.failure):
                found.example, found.failure = example, failure
                raise _Falsified from None
            return 0.0
        found.worst = max(found.worst, excess)
        found.sizes = largest_sizes([*found.sizes, (example.batch.size, example.batch.length)])
        return excess

    def cut(self) -> None:
        """Cut a large batch that fails to the fewest rows, and these to the fewest tokens, with which it fails, by bisection."""
        found = self.found
        ended = isinstance(found.failure, CandidateEnded | CandidateTimeout)
        if found.example is None or found.example.batch.size <= ROWS or found.example.variation or ended:
            return
        for size, cut in ((found.example.batch.size, fewer), (found.example.batch.length, shorter)):
            passing, failing = 0, size
            while failing - passing > 1:
                middle = (passing + failing) // 2
                fails = self._fails(Example(cut(found.example.batch, middle)))
                passing, failing = (passing, middle) if fails else (middle, failing)

    def _fails(self, example: Example) -> bool:
        """Run an example; return whether it fails. A row whose mask is all zeros has no defined result."""
        if not example.batch.mask.any(-1).all():
            return False
        try:
            self.run(example)
        except _Falsified:
            return True
        return False


def _progress(found: SearchState, planned: int) -> tuple[str, float]:
    """Return which example is being tried and the fraction completed; the duration of shrinking cannot be predicted."""
    if found.failure is not None:
        return f"example {found.tried} fails; a smaller one is looked for", found.tried / planned
    return f"example {found.tried} of {planned}", (found.tried - 1) / planned


def _configured(test: Callable[[], None], plan: Plan, key: str) -> Callable[[], None]:
    """Return the test with the plan's settings: without a deadline, since first calls are slow, and reproducible with a seed."""
    configured = settings(
        max_examples=plan.examples,
        deadline=None,
        database=None if plan.database is None else _NamespacedDatabase(plan.database, key),
        derandomize=False,
        phases=[Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )(test)
    return configured if plan.seed is None else seeded(plan.seed)(configured)
